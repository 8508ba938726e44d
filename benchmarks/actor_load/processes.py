"""The processes that are measured: a learner's gateway, an actor, a bare client loop. Each has a pipe to the parent."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import uvloop

from actors.chat import ChatFormat
from actors.main import run_actor
from benchmarks.actor_load.work import MODEL, requests
from configs.schema import ActorConfig, Config
from learner.evaluate import welcome_config
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway, WaitTimeout
from protocol.messages import Task

GROUP = 8
_BATCH = 32
_PROBE_S = 0.01
_HOURS = 7200.0


def config_of(port: int, leases: int, call: bool) -> Config:
    """A run in which one actor holds ``leases`` groups, and none of them ever gets too old."""
    return Config.model_validate(
        {
            "run": {"steps": 1_000_000},
            "env": {"path": "benchmarks.actor_load.work:Lookups", "args": {"call": call}},
            "model": {"path": str(MODEL)},
            "learner": {"groups": _BATCH, "mini_batches": 1, "group_size": GROUP},
            "staleness": 4 + 8 * leases // _BATCH,
            # Requests are held while other arms are measured.
            "actor": {"leases": leases, "request_timeout_s": _HOURS},
            "gateway": {"port": port, "lease_timeout_s": _HOURS},
        }
    )


def run_learner(folder: str, config: Config, url: str, pipe: Connection) -> None:
    """Gateway and ledger as a learner has them, and batches taken from them as fast as they come.

    Says "up"; then answers "ready" with the number of actors that report figures, takes "go"
    (issue leases), and ends when the pipe closes.
    """
    logging.basicConfig(filename=f"{folder}/learner.log", level=logging.INFO)
    tasks = [Task(task_id=f"q{i}", dataset="load", payload={"id": f"q{i}"}) for i in range(1000)]
    gateway = Gateway(config, Ledger(f"{folder}/ledger.sqlite", tasks, 0), "load", welcome_config(config))
    gateway.start()
    gateway.set_servers([url])
    gateway.pause_training(True)
    pipe.send("up")
    step = 0
    with suppress(EOFError):
        while True:
            while pipe.poll():
                if pipe.recv() == "go":
                    gateway.pause_training(False)
                else:
                    pipe.send(sum(bool(actor["stats"]) for actor in gateway.snapshot()["actors"]))
            try:
                gateway.take_batch(_BATCH, 0.2)
            except WaitTimeout:
                continue
            step += 1
            gateway.commit(step)
            gateway.set_version(step)
            gateway.checkpointed(step)
    gateway.stop("over")


class Probe:
    """How long callbacks of an event loop wait, since ``start``.

    lags: seconds by which a timer was late, on the clock. passes: CPU seconds of one pass of the
    loop, which is what a callback waits for on a core of its own.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.lags: list[float] = []
        self.passes: list[float] = []

    async def watch(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._command)
        while True:
            due = time.monotonic() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            self.lags.append(max(0.0, time.monotonic() - due))
            before = time.thread_time()
            await asyncio.sleep(0)
            self.passes.append(time.thread_time() - before)

    def _command(self) -> None:
        try:
            what = self._pipe.recv()
        except EOFError:
            os._exit(0)
        if what == "start":
            self.lags, self.passes = [], []
        else:
            self._pipe.send((self.lags, self.passes))


def run_load_actor(address: str, name: str, actor: ActorConfig, log: str, pipe: Connection) -> None:
    """``actors.main`` with a probe beside it."""
    logging.basicConfig(filename=log, level=logging.INFO)

    async def main() -> None:
        probe = asyncio.create_task(Probe(pipe).watch())
        try:
            await run_actor(address, name, actor)
        finally:
            probe.cancel()

    uvloop.run(main())


def run_bare(url: str, in_flight: int, pipe: Connection) -> None:
    """The yardstick: the same bodies, sent with aiohttp and read with json, and nothing else."""
    bodies = requests(ChatFormat.load(str(MODEL)))
    sampling = {"max_tokens": 128, "temperature": 1.0, "top_p": 1.0, "seed": 1, "stop_token_ids": [1, 2]}
    sampling |= {"logprobs": 0, "detokenize": False}
    gc.freeze()

    async def client(session: aiohttp.ClientSession) -> None:
        for ids in itertools.cycle(bodies):
            body = json.dumps({"token_ids": ids, "sampling_params": sampling})
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/inference/v1/generate", data=body, headers=headers) as response:
                [choice] = json.loads(await response.read())["choices"]
            tokens, logprobs = choice["token_ids"], [t["logprob"] for t in choice["logprobs"]["content"]]
            assert len(tokens) == len(logprobs)

    async def main() -> None:
        probe = asyncio.create_task(Probe(pipe).watch())
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            await asyncio.gather(*(client(session) for _ in range(in_flight)))
        probe.cancel()

    uvloop.run(main())


def end_of(folder: Path) -> str:
    """The last lines that the processes of a folder wrote, for whoever has to find out what went wrong."""
    logs = sorted(folder.glob("*.log"))
    return "\n".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-5:])
