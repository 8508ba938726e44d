"""What watching costs: the learner's update with no, one and five dashboards attached, and what each of them takes.

    python -m benchmarks.dashboard_cost             about four minutes on quiet cores
    python -m benchmarks.dashboard_cost --quick     to see it work

A real learner engine updates the built-in policy on one batch again and again, in the process of a real gateway
that two actors report to; nothing is sampled, so that nothing else varies. The dashboards are the real program, each
on a pseudo-terminal of 120 × 36 of its own. Blocks without, with one and with five of them alternate. The last line
printed is one JSON object; ``spread`` is by how much blocks of the same kind differ.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import multiprocessing
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from actors.link import Link
from configs.load import load_config
from configs.schema import Config
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from learner.policy.engine import PolicyEngine
from protocol.messages import Task
from protocol.trajectory import NO_VERSION, Group, Trajectory

WATCHERS = (0, 1, 5)
PORT = 5790
#: Seconds that dashboards are given to start before their block is measured.
SETTLE_S = 8.0
_STATS = {
    "in_flight": 64, "episodes": 5_000, "turns": 15_000, "tokens": 400_000, "tokens_per_s": 1900.0, "episodes_per_s": 12.0,
    "version": 40, "latency_p50": 0.6, "latency_p99": 1.9, "faults": {"tool.malformed": 12},
    "servers": {"http://127.0.0.1:8100": {"requests": 15_000, "p50": 0.6, "p99": 1.9}},
    "tools": {"search": {"calls": 9_800, "faults": 12, "p50": 0.002, "p99": 0.02}}, "rss_mb": 143.0,
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each kind")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a block")
    parser.add_argument("--quick", action="store_true", help="one short block of each kind")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured")
    args = parser.parse_args(argv)
    rounds, length = (1, 4.0) if args.quick else (args.rounds, args.seconds)
    if args.dry_run:
        print(f"{rounds} blocks of {length:g} s with each of {WATCHERS} dashboards")
        return 0
    config = load_config(overrides=[f"gateway.port={PORT}", "learner.cpu_threads=1", "baselines=[]"])
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(config, Path(folder), rounds, length)
    _show(found)
    print(json.dumps(found))
    return 0


def _measure(config: Config, folder: Path, rounds: int, length: float) -> dict[str, Any]:
    tasks = [Task(task_id=f"task-{i}", dataset="hotpot", payload={}) for i in range(64)]
    gateway = Gateway(config, Ledger(folder / "ledger.sqlite", tasks, 0), "cost", {})
    gateway.start()
    actors = multiprocessing.get_context("spawn").Process(target=_actors, daemon=True)
    actors.start()
    try:
        engine = PolicyEngine(config)
        groups, advantages = _batch(config, engine.vocabulary)
        learner = _Learner(gateway, engine, groups, advantages)
        learner.step()  # the first one compiles and allocates
        steps: dict[int, list[list[float]]] = {n: [] for n in WATCHERS}
        shares: list[float] = []
        for _ in range(rounds):
            for n in WATCHERS:
                with _dashboards(n) as watching:
                    if n:
                        time.sleep(SETTLE_S)
                    began, before = time.monotonic(), [_cpu_s(p) for p in watching]
                    steps[n].append(learner.block(length))
                    span = time.monotonic() - began
                    shares += [(_cpu_s(p) - was) / span for p, was in zip(watching, before, strict=True)]
    finally:
        actors.terminate()
        actors.join(timeout=10)
        gateway.stop("over")
    medians = {n: [statistics.median(block) for block in blocks] for n, blocks in steps.items()}
    step_s = {n: statistics.median(values) for n, values in medians.items()}
    spread = max((max(values) - min(values)) / min(values) for values in medians.values())
    return {
        "step_s": {str(n): round(value, 4) for n, value in step_s.items()},
        "slower": {str(n): round(step_s[n] / step_s[0] - 1, 4) for n in WATCHERS if n},
        "spread": round(spread, 4),
        "dashboard_core_share": round(statistics.median(shares), 4),
        "steps": sum(len(block) for blocks in steps.values() for block in blocks),
        "rounds": rounds,
    }


class _Learner:
    """The engine's part of a training step, told to the gateway as the trainer does."""

    def __init__(self, gateway: Gateway, engine: PolicyEngine, groups: list[Group], advantages: list[list[np.ndarray]]):
        self._gateway, self._engine, self._groups, self._advantages = gateway, engine, groups, advantages
        self._step = 0

    def step(self) -> float:
        """Seconds of one update."""
        self._gateway.publish(
            "run", {"phase": "update", "phase_since": time.time(), "step": self._step, "steps": 10_000}
        )
        began = time.perf_counter()
        metrics = self._engine.update(self._groups, self._advantages, self._step)
        took = time.perf_counter() - began
        self._step += 1
        seconds = {"wait": 0.0, "update": took, "push": 0.0, "step": took}
        record = {
            "step": self._step,
            "version": self._step,
            "time_s": time.monotonic(),
            "reward": 0.5,
            "seconds": seconds,
        }
        self._gateway.append_history(metrics | record)
        return took

    def block(self, length: float) -> list[float]:
        end = time.monotonic() + length
        taken = [self.step()]
        while time.monotonic() < end:
            taken.append(self.step())
        return taken


@contextmanager
def _dashboards(count: int) -> Iterator[list[psutil.Process]]:
    """``count`` dashboards on terminals that a thread reads as fast as it can."""
    command = [sys.executable, "run.py", "--role", "dashboard", f"gateway.port={PORT}"]
    opened = []
    for _ in range(count):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm-256color"}
        )
        os.close(slave)
        threading.Thread(target=_drain, args=(master,), daemon=True).start()
        opened.append((child, master))
    try:
        yield [psutil.Process(child.pid) for child, _ in opened]
        if dead := [child.returncode for child, _ in opened if child.poll() is not None]:
            raise RuntimeError(f"{len(dead)} dashboards left early (exit codes {dead}): the figures would be wrong")
    finally:
        for child, _ in opened:
            child.terminate()
        for child, master in opened:
            child.wait(timeout=20)
            os.close(master)


def _drain(master: int) -> None:
    while True:
        try:
            if not os.read(master, 65536):
                return
        except OSError:  # closed
            return


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _actors() -> None:
    """Two actors that report as usual and hold what they are given."""
    asyncio.run(_report())


async def _report() -> None:
    links = [Link(f"tcp://127.0.0.1:{PORT}", f"actor-{i}", 1.0) for i in range(2)]
    for link in links:
        await link.connect(60.0)
    while True:
        for link in links:
            link.update(0, [], {}, {**_STATS, "rss_mb": 140 + time.monotonic() % 10})
        await asyncio.sleep(1.0)


def _batch(config: Config, vocabulary: int) -> tuple[list[Group], list[list[np.ndarray]]]:
    """As many groups as a step takes, of random tokens: what an update costs does not depend on which."""
    random = np.random.default_rng(0)
    groups, advantages = [], []
    for g in range(config.learner.groups):
        members = [_episode(random, vocabulary) for _ in range(config.learner.group_size)]
        groups.append(Group(f"lease-{g}", f"task-{g}", members))
        advantages.append([random.normal() * t.action_mask.astype(np.float32) for t in members])
    return groups, advantages


def _episode(random: np.random.Generator, vocabulary: int, turns: int = 3) -> Trajectory:
    mask = np.concatenate([np.zeros(60), *[np.concatenate([np.ones(25), np.zeros(15)])] * turns])[:-15].astype("u1")
    spans = np.array([[60 + 40 * k, 85 + 40 * k] for k in range(turns)], np.int32)
    return Trajectory(
        token_ids=random.integers(0, vocabulary, len(mask), dtype=np.int32),
        action_mask=mask,
        behaviour_logprobs=np.where(mask, -1.0, 0.0).astype("<f4"),
        versions=np.where(mask, 0, NO_VERSION).astype("<i4"),
        rewards=np.zeros(len(mask), "<f4"),
        turns=spans,
        terminated=True,
        facts={},
    )


def _show(found: dict[str, Any]) -> None:
    table = Table("dashboards", "seconds an update", "slower by")
    for n in WATCHERS:
        slower = found["slower"].get(str(n))
        table.add_row(str(n), f"{found['step_s'][str(n)]:.3f}", "" if slower is None else f"{100 * slower:+.1f} %")
    console = Console()
    console.print(table)
    console.print(
        f"blocks of the same kind differ by up to {100 * found['spread']:.1f} %; "
        f"a dashboard takes {100 * found['dashboard_core_share']:.1f} % of a core"
    )


if __name__ == "__main__":
    sys.exit(main())
