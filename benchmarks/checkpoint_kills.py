"""Kill -9 at random instants of a learner that does little but write checkpoints: is what is left always whole?

    python -m benchmarks.checkpoint_kills --kills 50

The learner is the real one (trainer, DeepSpeed engine, gateway, ledger, run folder) in lock-step with a
checkpoint a step; its groups follow from the seeds of the leases, so an undisturbed run says what every
checkpoint has to hold: a SHA-256 over weights, optimizer and random state, by version. After a kill

- the checkpoint that ``latest`` names has to be whole and equal to the undisturbed run's of that version;
- the ledger, taken back to that version, has to say that each step up to it used its own units, none is lost;
- the next learner has to go on from that very version.

The last line is one JSON object: {kills, resumed, whole, mid_write, failures}. mid_write: kills that left a
half-written checkpoint behind. Exit code 1 with any failure.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.link import Link
from configs.schema import Config
from envs.base import Message, StepResult, ToolEnv
from learner.evaluate import train_tasks
from learner.gateway.ledger import Ledger
from learner.gateway.recorded import RecordedGroups
from learner.gateway.router import Gateway
from learner.policy.engine import PolicyEngine
from learner.policy.zero import SafeCheckpointEngine
from learner.run import checkpoints
from learner.run.folder import RunFolder
from learner.trainer import Trainer
from learner.weights.push import PushReport
from protocol.messages import Lease, Leases
from protocol.trajectory import NO_VERSION, Group, Trajectory

STEPS, GROUPS, GROUP_SIZE = 30, 2, 2
#: A kill comes within the step after at most this many more checkpoints: most of a step is the writing of one.
LAPS = 3
#: Within this long where a life is killed before its first checkpoint, seconds.
FIRST_S = 1.0
#: Longest wait for any word of a learner, seconds.
WAIT_S = 120.0
os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for it when imported
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["deepspeed", "learner.policy.zero", "learner.trainer", "actors.link"])


class Nothing(ToolEnv):
    """Tasks by name only: the episodes are made up."""

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        return [{"id": f"{split}-{number}"} for number in range(50)][:limit]

    async def reset(self, task: dict[str, Any], seed: int) -> list[Message]:
        raise NotImplementedError("these episodes are made up")

    async def step(self, text: str, finish: str) -> StepResult:
        raise NotImplementedError("these episodes are made up")


def config(folder: Path, port: int = 1, resume: bool = False, keep: int = 2) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": str(folder), "steps": STEPS, "resume": resume},
            "env": {"path": "benchmarks.checkpoint_kills:Nothing", "train": ["toy"], "eval": ["toy"]},
            "actor": {"heartbeat_s": 0.2},
            "learner": {"groups": GROUPS, "group_size": GROUP_SIZE, "mini_batches": 1, "cpu_threads": 1},
            "staleness": 0,
            "gateway": {"port": port, "batch_timeout_s": WAIT_S},
            "checkpoint": {"every": 1, "keep": keep},
            "eval": {"every": 0, "final_size": 1},
            "log": {"trackers": [], "trajectories": 0},
        }
    )


# ── the learner that is killed ───────────────────────────────────────────────


class Reporting(PolicyEngine):
    """Tells the parent which checkpoint it loads, and draws a random number an update, so that the generator moves."""

    def __init__(self, cfg: Config, say: Connection):
        super().__init__(cfg)
        self._say = say

    def update(self, *args: Any, **more: Any) -> dict[str, Any]:
        torch.rand(())
        return super().update(*args, **more)

    def load_state(self, folder: Path) -> None:
        super().load_state(folder)
        self._say.send(folder.name)


class NoServers:
    """In the place of ``WeightPusher``: there is nobody to push to."""

    def push(self, tensors: list, version: int) -> PushReport:
        return PushReport(version, [])

    def current_servers(self) -> list[str]:
        return []


def learn(settings: Config, say: Connection) -> None:
    """One life of the learner, with an actor of its own in a thread."""
    _silence()
    folder = RunFolder.open(settings)
    ledger = Ledger(folder.path / "ledger.sqlite", train_tasks(settings), settings.run.seed)
    gateway = Gateway(settings, ledger, "kills", {})
    gateway.pause_training(True)
    gateway.start()
    threading.Thread(target=lambda: asyncio.run(_play(settings.gateway.port)), daemon=True).start()
    trainer = Trainer(settings, Reporting(settings, say), None, gateway, NoServers(), folder)
    say.send("ready")
    trainer.run()
    gateway.stop("over")
    folder.close()


async def _play(port: int) -> None:
    link = Link(f"tcp://127.0.0.1:{port}", "made-up", 0.2)
    await link.connect(WAIT_S)
    held: dict[str, Lease] = {}
    while True:
        link.update(GROUPS, list(held), {}, {})
        event = await link.next_event()
        if isinstance(event, Leases):
            for lease in event.leases:
                held[lease.lease_id] = lease
                link.update(GROUPS, list(held), {}, {})
                await link.deliver(_group(lease, max(lease.min_version, link.version)))
                del held[lease.lease_id]


def _group(lease: Lease, version: int) -> Group:
    """Episodes that follow from the lease's seed alone."""
    return Group(lease.lease_id, lease.task.task_id, [_episode(lease, n, version) for n in range(lease.group_size)])


def _episode(lease: Lease, number: int, version: int) -> Trajectory:
    rng, size = np.random.default_rng([lease.seed, number]), 12
    mask = np.array([0, 0, *[1] * (size - 2)], "u1")
    rewards = np.zeros(size, "<f4")
    rewards[-1] = rng.random()
    return Trajectory(
        token_ids=rng.integers(270, 820, size).astype("<i4"),
        action_mask=mask,
        behaviour_logprobs=(-14.0 * mask).astype("<f4"),
        versions=np.where(mask, version, NO_VERSION).astype("<i4"),
        rewards=rewards,
        turns=np.array([[2, size]], "<i4"),
        terminated=True,
        facts={"task_id": lease.task.task_id, "dataset": lease.task.dataset, "outcome_reward": float(rewards[-1])},
    )


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


# ── the parent ───────────────────────────────────────────────────────────────


@contextmanager
def life(settings: Config) -> Iterator[tuple[multiprocessing.Process, Connection]]:
    """A learner in a process of its own, gone at the end."""
    hear, say = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=learn, args=(settings, say))
    process.start()
    say.close()
    try:
        yield process, hear
    finally:
        process.kill()
        process.join()
        hear.close()


def listen(hear: Connection) -> str:
    if not hear.poll(WAIT_S):
        raise RuntimeError(f"the learner said nothing for {WAIT_S:g} s")
    return hear.recv()  # EOFError: it died by itself


def until(process: multiprocessing.Process, folder: Path, laps: int) -> float:
    """Wait for ``laps`` more checkpoints, or the end. Returns how long the last of them took, seconds."""
    pointer, took = folder / "checkpoints" / checkpoints.LATEST, FIRST_S
    seen = _read(pointer)
    for _ in range(laps):
        began = time.monotonic()
        while (now := _read(pointer)) == seen and process.is_alive():
            if time.monotonic() - began > WAIT_S:
                raise RuntimeError(f"no checkpoint within {WAIT_S:g} s after {seen or 'the start'}")
            time.sleep(0.002)
        seen, took = now, time.monotonic() - began
    return took


def _read(pointer: Path) -> str:
    return pointer.read_text(encoding="utf-8") if pointer.exists() else ""


def undisturbed(folder: Path, port: int) -> dict[int, str]:
    """version → what its checkpoint holds, in a run that nobody kills."""
    with life(config(folder, port, keep=STEPS)) as (process, _):
        process.join(STEPS * WAIT_S)
        if process.exitcode != 0:
            raise RuntimeError(f"the undisturbed learner did not come to its end (exit code {process.exitcode})")
    root = folder / "checkpoints"
    return {step: fingerprint(checkpoints.path_of(root, step)) for step in checkpoints.steps(root)}


def fingerprint(folder: Path) -> str:
    """SHA-256 of every value that a checkpoint's files hold; their bytes also hold addresses in memory."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*.pt")):
        _feed(whole, str(path.relative_to(folder)), SafeCheckpointEngine().load(str(path)))
    return whole.hexdigest()


def _feed(whole: Any, name: str, value: Any) -> None:
    match value:
        case dict():
            for key, part in value.items():
                _feed(whole, f"{name}.{key}", part)
        case list() | tuple():
            for number, part in enumerate(value):
                _feed(whole, f"{name}.{number}", part)
        case torch.Tensor():
            whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.numpy().tobytes())
        case _:
            whole.update(f"{name} {value!r}".encode())


def examine(folder: Path, expected: dict[int, str]) -> tuple[int, list[str]]:
    """(the version that ``latest`` names, 0 for none yet; everything that is wrong with what the kill left)."""
    root = folder / "checkpoints"
    pointer = root / checkpoints.LATEST
    version, wrong = 0, []
    if pointer.exists():
        name = pointer.read_text(encoding="utf-8")
        version = checkpoints.step_of(name) or 0
        if problem := checkpoints.damage(root / name):
            return version, [f"{name}: {problem}"]
        state = json.loads((root / name / checkpoints.STATE).read_text(encoding="utf-8"))
        if (state["step"], state["extra"]["version"]) != (version, version):
            wrong.append(f"{name} says that it is of version {state['extra']['version']}")
        if fingerprint(root / name) != expected[version]:
            wrong.append(f"{name} does not hold what the undisturbed run's holds")
    return version, wrong + _ledger_faults(folder, version)


def _ledger_faults(folder: Path, version: int) -> list[str]:
    path = folder / "ledger.sqlite"
    ledger = Ledger(path, train_tasks(config(folder)), 0)
    ledger.rollback(version)
    audit = ledger.audit()
    ledger.close()
    with RecordedGroups(path) as recorded:
        used = {step: recorded.units(step) for step in range(1, version + 1)}
    wrong = [f"ledger: {audit}"] if audit["lost"] or audit["consumed"] != version * GROUPS else []
    for step, seqs in used.items():
        if seqs != list(range((step - 1) * GROUPS, step * GROUPS)):
            wrong.append(f"ledger: step {step} used the units {seqs}")
    return wrong


def run(kills: int, seed: int, scratch: Path, port: int) -> dict[str, Any]:
    rng = random.Random(seed)
    expected = undisturbed(scratch / "undisturbed", port)
    result: dict[str, Any] = {"kills": 0, "resumed": 0, "whole": 0, "mid_write": 0, "failures": []}
    chapter, version, begun = 0, 0, False
    while True:
        folder = scratch / f"run-{chapter}"
        with life(config(folder, port, resume=begun)) as (process, hear):
            assert listen(hear) == "ready"
            if begun:
                went_on = checkpoints.step_of(listen(hear)) if version else 0
                result["resumed"] += went_on == version
                if went_on != version:
                    result["failures"].append(f"went on from {went_on} instead of {version}")
            if result["kills"] == kills:
                return result
            process.join(rng.random() * until(process, folder, rng.randint(0, LAPS)))
            if process.exitcode == 0:  # all steps are made: another run
                chapter, version, begun = chapter + 1, 0, False
                continue
            if process.exitcode is not None:
                raise RuntimeError(f"the learner ended by itself with exit code {process.exitcode}")
        result["kills"] += 1
        begun = True
        result["mid_write"] += bool(list((folder / "checkpoints").glob("*.tmp")))
        version, wrong = examine(folder, expected)
        result["whole"] += not wrong
        result["failures"] += wrong
        print(f"kill {result['kills']}: version {version}{': ' + '; '.join(wrong) if wrong else ''}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--port", type=int, default=5640, help="of the learner's gateway")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rollway-kills-") as scratch:
        result = run(args.kills, args.seed, Path(scratch), args.port)
    print(json.dumps(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
