"""A whole run without vLLM, whose every figure follows from its seed: real learner, real actors over real
sockets, weights over real gloo, and a server whose tokens follow from the request and the very weights it holds.

Processes are forked from one that has imported everything: a learner starts in a second instead of ten.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from configs.schema import Config
from envs.base import StepResult, ToolEnv
from tests.canned_server import answer
from tests.weight_server import StandIn
from tests.wire_samples import free_port

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for it when imported
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["deepspeed", "learner.policy.zero", "learner.trainer", "learner.main", "actors.main", "tests.lockstep"]
)

#: Of configs/models/tiny-agent: token ids to draw from, and the end of a turn.
WORDS, END = range(270, 820), 258


class Echoes(ToolEnv):
    """Two turns; what a turn earns is a hash of its text, so the smallest difference in tokens changes the rewards."""

    @classmethod
    def tasks(cls, split, dataset, limit=None):
        return [{"id": f"{split}-{number}", "question": f"say {number}"} for number in range(50)][:limit]

    async def reset(self, task, seed):
        self.turns = 0
        return [{"role": "user", "content": task["question"]}]

    async def step(self, text, finish):
        self.turns += 1
        worth = zlib.crc32(text.encode()) % 1000 / 1000
        if self.turns == 2:
            return StepResult(done=True, info={"outcome_reward": worth, "metrics": {"em": worth}})
        return StepResult(messages=[{"role": "user", "content": "and?"}], reward=worth)


class WeighingServer(StandIn):
    """Answers with tokens that a hash of weights, prompt and seed decides; slower ones overtake, as in real life."""

    digest = b""

    def handle(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/inference/v1/generate":
            return self.generate(body)
        reply = super().handle(path, body)
        if path == "/finish_weight_update":
            self.digest = digest(self.weights)
        return reply

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        while self.paused:
            time.sleep(0.005)
        wanted = json.dumps([body["token_ids"], body["sampling_params"]["seed"]]).encode()
        rng = np.random.default_rng(list(hashlib.sha256(self.digest + wanted).digest()))
        ids = [int(token) for token in rng.choice(WORDS, size=rng.integers(3, 9))] + [END]
        time.sleep(float(np.random.default_rng().uniform(0, 0.02)))
        reply = answer(ids, versions=[(self.version, 0, len(ids))])
        for token in reply["choices"][0]["logprobs"]["content"]:
            token["logprob"] -= 14.0  # about what the policy thinks of such words: ratios near 1 make gradients
        return reply


def digest(weights: dict[str, Any]) -> bytes:
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(name.encode() + weights[name].numpy().tobytes())
    return whole.digest()


def config(folder: Path, server: str, **options: Any) -> Config:
    parts: dict[str, Any] = {
        "run": {"dir": str(folder), "steps": 5},
        "env": {"path": "tests.lockstep:Echoes", "train": ["toy"], "eval": ["toy"]},
        "actor": {"leases": 2, "heartbeat_s": 0.5},
        "server": {"urls": [server]},
        "learner": {"groups": 4, "group_size": 3, "mini_batches": 2, "cpu_threads": 1, "optimizer": {"lr": 1e-3}},
        "staleness": 0,
        "gateway": {"port": free_port(), "batch_timeout_s": 300},
        "checkpoint": {"every": 2},
        "eval": {"every": 3, "size": 2, "final_size": 3},
        "log": {"trackers": []},
    }
    for name, value in options.items():
        parts[name] = {**parts[name], **value} if isinstance(value, dict) and name in parts else value
    return Config.model_validate(parts)


class Run:
    """The processes of one run; ``learner`` and ``actors`` may be killed and started again."""

    def __init__(self, config: Config):
        self.config = config
        self.folder = Path(config.run.dir)
        self.actors = [self.start("actor", n) for n in range(2)]
        self.learner = self.start("learner")

    def start(self, role: str, number: int = 0) -> multiprocessing.Process:
        log = self.folder.with_name(f"{self.folder.name}-{role}-{number}.log")
        process = FORKS.Process(target=_role, args=(role, self.config, log))
        process.start()
        return process

    def resume(self) -> None:
        """After a kill: go on in the same folder."""
        self.config = self.config.model_copy(update={"run": self.config.run.model_copy(update={"resume": True})})
        self.learner = self.start("learner")

    def steps(self) -> list[dict[str, Any]]:
        """Records of the steps so far."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [record for record in map(json.loads, lines) if "eval" not in record]

    def until(self, condition: Callable[[], bool], limit_s: float = 300.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert self.learner.exitcode is None, self.words()
            assert time.monotonic() < deadline, self.words()
            time.sleep(0.01)

    def finish(self, limit_s: float = 300.0) -> None:
        self.learner.join(limit_s)
        assert self.learner.exitcode == 0, self.words()

    def kill(self) -> None:
        for process in (self.learner, *self.actors):
            process.kill()
            process.join(10)

    def words(self) -> str:
        return "\n".join(p.read_text()[-3000:] for p in self.folder.parent.glob(f"{self.folder.name}-*.log"))


@contextmanager
def running(config: Config):
    run = Run(config)
    try:
        yield run
    finally:
        run.kill()


def _role(role: str, config: Config, log: Path) -> None:
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    if role == "actor":
        from actors.main import main
    else:
        from learner.main import main
    os.environ["ROLLWAY_ACTOR_ID"] = log.stem
    raise SystemExit(main(config))
