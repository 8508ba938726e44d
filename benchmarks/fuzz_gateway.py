"""A live gateway under fire, with honest actors at work: ``python -m benchmarks.fuzz_gateway --frames 1000000``.

The gateway runs in a process of its own with a real ledger, as a learner would run it; honest
actors (the real link) in another. This process sends garbage of every kind over many sockets
and reads the gateway's memory. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from actors.link import Link, LinkError
from benchmarks.attackers import Attacker, make_attackers
from benchmarks.garbage import group
from configs.schema import Config
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway, WaitTimeout
from protocol.limits import Limits
from protocol.messages import Cancel, Leases, Task

BEAT_S = 0.5
HONEST = 3
#: An honest group that is acknowledged within this many seconds counts as served.
SERVED_S = 5.0
_SAMPLE_S, _WARM_S = 0.05, 5.0
_TASKS = 500


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fuzz_config(port: int) -> Config:
    """A small run: the gateway's own options are the defaults."""
    return Config.model_validate(
        {
            "run": {"steps": 1_000_000},
            "learner": {"groups": 4, "mini_batches": 1, "group_size": 2},
            "actor": {"heartbeat_s": BEAT_S, "leases": 4},
            "gateway": {"port": port, "lease_timeout_s": 10.0},
        }
    )


def run_gateway(folder: str, port: int, pipe: Connection) -> None:
    """Serve until told to stop, consuming batches as a learner does; answers with how it went."""
    logging.basicConfig(filename=f"{folder}/gateway.log", level=logging.INFO)
    config = fuzz_config(port)
    tasks = [Task(task_id=f"q{i}", dataset="toy", payload={"n": i}) for i in range(_TASKS)]
    gateway = Gateway(config, Ledger(f"{folder}/ledger.sqlite", tasks, 0), "fuzz", {})
    gateway.start()
    gateway.set_servers(["http://127.0.0.1:1"])
    pipe.send("up")
    step, crash = 0, ""
    try:
        while not pipe.poll():
            try:
                gateway.take_batch(config.learner.groups, 0.5)
            except WaitTimeout:
                continue
            step += 1
            gateway.commit(step)
            gateway.set_version(step)
            gateway.checkpointed(step)
            gateway.append_history({"step": step, "reward": 0.5})
    except Exception as error:
        crash = repr(error)
    queue = gateway.snapshot()["queue"]
    gateway.stop("over")
    pipe.send(
        {"steps": step, "crash": crash} | {k: queue[k] for k in ("rejected_frames", "lost", "duplicates", "failed")}
    )


def run_honest(port: int, pipe: Connection) -> None:
    """Actors that work on their leases until told to stop; says when the first is served, answers with the seconds each group took."""
    waits: list[float] = []
    problems: list[str] = []

    async def actor(number: int, over: asyncio.Event) -> None:
        rng = random.Random(number)
        link = Link(f"tcp://127.0.0.1:{port}", f"honest-{number}", BEAT_S)
        await link.connect(30.0)
        held: dict[str, asyncio.Task[None]] = {}

        async def work(lease) -> None:
            await asyncio.sleep(rng.uniform(0.02, 0.3))
            began = time.monotonic()
            task = lease.task
            await link.deliver(group(rng, lease.lease_id, task.task_id, task.dataset, lease.group_size, link.version))
            waits.append(time.monotonic() - began)
            held.pop(lease.lease_id, None)

        while not over.is_set():
            link.update(4, list(held), {}, {"tokens_per_s": 1.0})
            try:
                event = await asyncio.wait_for(link.next_event(), 0.1)
            except TimeoutError:
                continue
            if isinstance(event, Leases):
                for lease in event.leases:
                    held[lease.lease_id] = asyncio.create_task(work(lease))
            elif isinstance(event, Cancel):
                for lease_id in event.lease_ids:
                    if task := held.pop(lease_id, None):
                        task.cancel()
        for task in list(held.values()):
            task.cancel()
        await link.goodbye()

    async def main() -> None:
        over = asyncio.Event()
        actors = [asyncio.create_task(actor(n, over)) for n in range(HONEST)]
        said = False
        while not pipe.poll():
            await asyncio.sleep(0.1)
            if waits and not said:
                said = True
                pipe.send("up")
        over.set()
        for result in await asyncio.gather(*actors, return_exceptions=True):
            if isinstance(result, LinkError | Exception):
                problems.append(repr(result))

    asyncio.run(main())
    pipe.send({"waits": waits, "problems": problems})


class Memory:
    """Resident memory of a process over time, MiB."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.start = self.peak = self.now()
        self._due = 0.0

    def now(self) -> float:
        try:
            return self._process.memory_info().rss / 2**20
        except psutil.NoSuchProcess:
            return 0.0

    def sample(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _SAMPLE_S
            self.peak = max(self.peak, self.now())


def attack(attackers: list[Attacker], frames: int, deadline: float, memory: Memory, alive) -> Counter[str]:
    """Let all attackers send in turn until ``frames`` frames are out; returns frames by attacker."""
    sent: Counter[str] = Counter()
    while sent.total() < frames and time.monotonic() < deadline and alive():
        before = sent.total()
        for attacker in attackers:
            sent[attacker.name] += attacker.act()
        memory.sample()
        if sent.total() == before:  # all sockets are full: back-pressure
            time.sleep(0.002)
    return sent


def fuzz(frames: int, seed: int, limit_s: float, say=print) -> dict:
    """One fuzzing run; returns the summary that is printed. Raises ``RuntimeError`` where nothing could start."""
    spawn = multiprocessing.get_context("spawn")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="rollway-fuzz-") as folder:
        ends = [spawn.Pipe() for _ in range(2)]
        gateway = spawn.Process(target=run_gateway, args=(folder, port, ends[0][1]), daemon=True)
        honest = spawn.Process(target=run_honest, args=(port, ends[1][1]), daemon=True)
        attackers: list[Attacker] = []
        try:
            gateway.start()
            if not ends[0][0].poll(60):
                raise RuntimeError("the gateway did not come up within a minute")
            ends[0][0].recv()
            honest.start()
            if not ends[1][0].poll(60):
                raise RuntimeError("the honest actors were not served within a minute, before any attack")
            ends[1][0].recv()
            time.sleep(_WARM_S)  # memory is compared with that of a gateway at work
            memory = Memory(gateway.pid)
            limits = Limits(tokens=fuzz_config(port).learner.group_size * fuzz_config(port).model.max_tokens)
            attackers = make_attackers(f"tcp://127.0.0.1:{port}", port, limits, seed)
            began = time.monotonic()
            sent = attack(attackers, frames, began + limit_s, memory, gateway.is_alive)
            seconds = time.monotonic() - began
            say(f"{sent.total()} frames in {seconds:.0f} s; asking the gateway and the actors how it was")
            for attacker in attackers:
                attacker.close()
            ends[1][0].send("stop")
            actors = ends[1][0].recv() if ends[1][0].poll(60) else {"waits": [], "problems": ["no answer"]}
            ends[0][0].send("stop")
            state = ends[0][0].recv() if ends[0][0].poll(60) else {"crash": "no answer"}
            log = Path(folder, "gateway.log").read_text(errors="replace")
        finally:
            for process in (honest, gateway):
                if process.pid:
                    process.join(10)
                    process.kill()
                    process.join()
    waits = sorted(actors["waits"])
    served = sum(wait <= SERVED_S for wait in waits)
    crashes = bool(state["crash"]) + log.count("Traceback") + len(actors["problems"])
    return {
        "frames": sent.total(),
        "crashes": crashes,
        "memory_growth_mb": round(memory.peak - memory.start, 1),
        "honest_served": round(served / max(1, len(waits)), 4),
        "honest_groups": len(waits),
        "honest_slowest_s": round(max(waits, default=0.0), 3),
        "honest_median_s": round(waits[len(waits) // 2], 4) if waits else None,
        "rejected_messages": state.get("rejected_frames"),
        "lost": state.get("lost"),
        "memory_start_mb": round(memory.start, 1),
        "seconds": round(seconds, 1),
        "frames_by_kind": dict(sent),
        "problems": actors["problems"] + ([state["crash"]] if state["crash"] else []),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_gateway", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="frames to send (default 1000000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit-s", type=float, default=900.0, help="stop after this long, however many frames are out"
    )
    parser.add_argument("--quick", action="store_true", help="40,000 frames, under a minute")
    args = parser.parse_args(argv)
    result = fuzz(40_000 if args.quick else args.frames, args.seed, 40.0 if args.quick else args.limit_s)
    table = Table("", "", title="The gateway under fire", show_header=False)
    for name, value in result.items():
        if name != "frames_by_kind":
            table.add_row(name, str(value))
    for name, count in sorted(result["frames_by_kind"].items()):
        table.add_row(f"frames of {name}", str(count))
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print(json.dumps(result))
    return 0 if not result["crashes"] and result["honest_groups"] else 1


if __name__ == "__main__":
    sys.exit(main())
