"""One arm of the comparison: its processes, and how a stretch of its work is measured.

The CPU time of the measured processes is what counts: arms, generator and gateway may share
cores with each other and with strangers, and wall time with them. Turns are counted by the
generator, for all arms alike.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from benchmarks.actor_load.generator import Generator
from benchmarks.actor_load.processes import GROUP, config_of, end_of, run_bare, run_learner, run_load_actor
from benchmarks.fuzz_gateway import free_port

_SPAWN = multiprocessing.get_context("spawn")
_UP_S = 120.0
_WINDOW_S = 300.0


@dataclass(slots=True)
class Window:
    """turns, wall seconds and CPU seconds of one stretch. lags, passes: see ``processes.Probe``."""

    turns: int
    wall_s: float
    cpu_s: float
    gateway_s: float
    lags: list[float]
    passes: list[float]

    @property
    def cpu_us(self) -> float:
        """CPU of the measured processes per turn, µs."""
        return 1e6 * self.cpu_s / self.turns


@dataclass(slots=True)
class Arm:
    """``in_flight``: requests that wait when its generator is held."""

    name: str
    in_flight: int
    generator: Generator
    measured: list[psutil.Process] = field(default_factory=list)
    gateway: psutil.Process | None = None
    pipes: list[Connection] = field(default_factory=list)
    kb_per_episode: float | None = None
    windows: list[Window] = field(default_factory=list)
    _closing: list[Callable[[], None]] = field(default_factory=list)

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Raises ``RuntimeError`` where ``condition`` does not come true, or a process dies."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {what} not after {timeout_s:g} s")
            if not all(process.is_running() and process.status() != "zombie" for process in self.measured):
                raise RuntimeError(f"{self.name}: a process died before: {what}")
            time.sleep(0.002)

    def all_held(self) -> None:
        self.until(lambda: self.generator.waiting == self.in_flight, "all in flight", _UP_S)

    def measure(self, turns: int) -> None:
        """Release the arm for a warm-up of one turn each and a window of ``turns``; it is held again after."""
        first = self.generator.answered
        self.generator.release()
        self.until(lambda: self.generator.answered >= first + self.in_flight, "warm-up", _WINDOW_S)
        for pipe in self.pipes:
            pipe.send("start")
        began, done = time.monotonic(), self.generator.answered
        cpu, gateway = self._cpu(), self._gateway_cpu()
        self.until(lambda: self.generator.answered >= done + turns, f"{turns} turns", _WINDOW_S)
        wall, made = time.monotonic() - began, self.generator.answered - done
        cpu, gateway = self._cpu() - cpu, self._gateway_cpu() - gateway
        lags, passes = [], []
        for pipe in self.pipes:
            pipe.send("stop")
            late, taken = pipe.recv()
            lags, passes = lags + late, passes + taken
        self.generator.hold()
        self.windows.append(Window(made, wall, cpu, gateway, lags, passes))
        self.all_held()

    def rss(self) -> int:
        """Resident bytes of the measured processes."""
        return sum(process.memory_info().rss for process in self.measured)

    def close(self) -> None:
        for end in self._closing:
            end()

    def spawn(self, target: Callable[..., None], *args: object) -> tuple[Connection, psutil.Process]:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=target, args=(*args, theirs), daemon=True)
        process.start()
        theirs.close()

        def end() -> None:
            ours.close()
            process.join(5)
            process.kill()
            process.join()

        self._closing.append(end)
        return ours, psutil.Process(process.pid)

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.measured)

    def _gateway_cpu(self) -> float:
        return sum(self.gateway.cpu_times()[:2]) if self.gateway else 0.0


def start_actors(arm: Arm, folder: Path, actors: int = 1, call: bool = False) -> None:
    """``actors`` processes that share ``arm.in_flight`` episodes, and their learner's gateway."""
    leases = arm.in_flight // GROUP // actors
    arm.in_flight = leases * GROUP * actors
    config = config_of(free_port(), leases, call)
    learner, arm.gateway = arm.spawn(run_learner, str(folder), config, arm.generator.url)
    if not learner.poll(_UP_S):
        raise RuntimeError(f"{arm.name}: the gateway did not start: {end_of(folder)}")
    learner.recv()
    address = f"tcp://127.0.0.1:{config.gateway.port}"
    for i in range(actors):
        log = str(folder / f"actor{i}.log")
        pipe, process = arm.spawn(run_load_actor, address, f"actor{i}", config.actor, log)
        arm.pipes.append(pipe)
        arm.measured.append(process)

    def ready() -> bool:
        learner.send("ready")
        return learner.recv() == actors

    arm.until(ready, "actors joined", _UP_S)
    idle = arm.rss()
    learner.send("go")
    arm.all_held()
    arm.kb_per_episode = (arm.rss() - idle) / 1024 / arm.in_flight


def start_bare(arm: Arm, folder: Path) -> None:
    pipe, process = arm.spawn(run_bare, arm.generator.url, arm.in_flight)
    arm.pipes.append(pipe)
    arm.measured.append(process)
    arm.all_held()


def start_peer(arm: Arm, folder: Path, python: str) -> None:
    """The rollout loop of ``verifiers`` in the Python that has it."""
    script = Path(__file__).with_name("peer.py")
    with open(folder / "peer.log", "w") as log:
        words = [python, str(script), arm.generator.url, str(arm.in_flight)]
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

    def end() -> None:
        process.kill()
        process.wait()

    arm._closing.append(end)
    arm.measured.append(psutil.Process(process.pid))
    try:
        arm.all_held()
    except RuntimeError as error:
        raise RuntimeError(f"{error}: {end_of(folder)}") from None
