"""One schedule: a run with its faults, then a time without any in which everything has to recover."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.simulation.actor import ActorProcess
from benchmarks.simulation.checks import Checks
from benchmarks.simulation.disk import Disk
from benchmarks.simulation.faults import Faults
from benchmarks.simulation.learner import LearnerProcess
from benchmarks.simulation.loop import VirtualLoop
from benchmarks.simulation.network import Network
from benchmarks.simulation.scenario import RECOVERY_S, draw
from benchmarks.simulation.servers import Server
from protocol.messages import Message

#: Kinds of problem; ``unbounded``: a queue or a credit out of its bounds, ``error``: anything else.
KINDS = ("lost", "duplicates", "over_stale", "stuck", "unbounded", "error")


#: The ledger's counters, in words.
_COUNTERS = {
    "duplicates": "duplicate groups refused",
    "stale_dropped": "stale groups dropped",
    "stale_cancelled": "stale leases cancelled",
    "reissued": "units issued again",
}


@dataclass(slots=True)
class Outcome:
    """problem: (kind, text) of the first thing that went wrong. counts: faults and what came of them.

    recovery_s: from the last fault until all that was under way then was used up.
    """

    seed: int
    problem: tuple[str, str] | None
    counts: Counter[str]
    steps: int
    virtual_s: float
    recovery_s: float
    trace: list[str] = field(default_factory=list)


class World:
    """``chaos``: faults happen. ``learner``, ``actors``: the processes that live now."""

    def __init__(self, seed: int, folder: Path, trace: bool) -> None:
        self.rng = random.Random(seed)
        self.scenario = draw(self.rng)
        self.loop = VirtualLoop()
        self.disk = Disk(folder, self.rng)
        self.network = Network(self)
        self.checks = Checks(self)
        self.servers = [Server(f"server-{i}") for i in range(self.scenario.servers)]
        self.actors: dict[str, ActorProcess | None] = {f"actor-{i}": None for i in range(self.scenario.actors)}
        self.learner: LearnerProcess | None = None
        self.learner_ahead = 0.0  # its clock of the world's, in seconds
        self.chaos = True
        self.evaluation_wanted = False
        self.steps = 0
        self.ended = 0.0
        self.counts: Counter[str] = Counter()
        self.found: tuple[str, str] | None = None
        self.trace: list[str] | None = [] if trace else None
        self._pid = 0
        self._over = self.loop.create_future()
        self._tasks: set[asyncio.Task] = set()
        self.loop.set_exception_handler(
            lambda _, context: self.problem("error", repr(context.get("exception", context)))
        )

    # ── what everybody calls ─────────────────────────────────────────────────

    def note(self, text: str, *values: object) -> None:
        if self.trace is not None:
            told = tuple(_told(value) if isinstance(value, Message) else value for value in values)
            self.trace.append(f"{self.loop.time():9.3f}  {text % told}")

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def problem(self, kind: str, text: str) -> None:
        """The schedule ends with the first."""
        self.note("%s: %s", kind.upper(), text)
        if self.found is None:
            self.found = (kind, text)
            self._over.cancel()

    def fuse(self, mean: int) -> int:
        """Steps until a process dies by itself; 0 for never."""
        return self.rng.randint(1, 2 * mean) if mean else 0

    def spawn(self, work: Coroutine) -> asyncio.Task:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.problem("error", f"the simulation itself: {error!r}")

    # ── processes come and go ────────────────────────────────────────────────

    def to_learner(self, actor: str, frames: list) -> None:
        if self.learner:
            self.learner.receive(actor, frames)

    def to_actor(self, name: str, frames: list) -> None:
        if actor := self.actors[name]:
            actor.receive(frames)

    def learner_died(self, learner: LearnerProcess, power_cut: bool) -> None:
        self.count("learner cut off from power" if power_cut else "learner killed")
        self.note("the learner is dead%s", ": power cut" if power_cut else "")
        self.checks.died(learner, power_cut)
        self._sum_up(learner)
        self.disk.crash(learner.connection.real, power_cut)
        self.learner = None
        self.loop.call_later(self.rng.uniform(0.2, 4.0), self._boot_learner)

    def actor_ended(self, actor: ActorProcess) -> None:
        self.actors[actor.name] = None
        self.loop.call_later(self.rng.uniform(0.2, 4.0), self._boot_actor, actor.name)

    def evaluated(self) -> None:
        self.count("evaluations")
        if not self.chaos:
            self.evaluation_wanted = False

    def _boot_learner(self) -> None:
        self.learner = LearnerProcess(self)
        self.note("the learner is started, boot %d", self.learner.ledger.boot)
        self.checks.reopened(self.learner)

    def _boot_actor(self, name: str) -> None:
        self._pid += 1
        self.note("%s is started, pid %d", name, self._pid)
        self.actors[name] = ActorProcess(self, name, self._pid)

    def _sum_up(self, learner: LearnerProcess) -> None:
        """The ledger's counters, which outlive the process, so that the newest are the right ones."""
        for name, n in learner.connection.real.execute("SELECT name, n FROM counters").fetchall():
            self.counts[_COUNTERS[name]] = n

    # ── the schedule ─────────────────────────────────────────────────────────

    def run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self.loop.run_until_complete(self._schedule())
            if self.learner:
                self._sum_up(self.learner)
            self.ended = self.loop.time()
        finally:
            self._end()

    async def _schedule(self) -> None:
        self.note("%s", self.scenario)
        self._boot_learner()
        for name in self.actors:
            self.loop.call_later(self.rng.uniform(0.0, 2.0), self._boot_actor, name)
        driver = self.spawn(self._drive())
        driver.add_done_callback(lambda _: self._over.cancel())
        await self._over

    async def _drive(self) -> None:
        faults = self.spawn(Faults(self).run())
        await asyncio.sleep(self.scenario.chaos_s)
        faults.cancel()
        self.chaos, self.evaluation_wanted = False, True
        self.network.cut_off.clear()
        for server in self.servers:
            server.up = True
        self.note("from here on everybody is healthy")
        frontier, deadline = None, self.loop.time() + RECOVERY_S
        while self.loop.time() < deadline:
            await asyncio.sleep(0.5)
            if self.learner and frontier is None:
                frontier = self.learner.ledger._frontier
            if self.learner and not self.evaluation_wanted and not self.checks.unsettled(self.learner, frontier):
                return
        self.problem("stuck", f"not recovered after {RECOVERY_S:g} s: {self._describe(frontier)}")

    def _describe(self, frontier: int | None) -> str:
        if self.learner is None:
            return "there is no learner"
        learner = self.learner
        left = self.checks.unsettled(learner, frontier or 0)
        return f"version {learner.version}, units {left} open, {learner.dispatcher.describe(learner.now())}"

    def _end(self) -> None:
        """Leave no task, no file and no connection behind."""
        self.chaos = False
        self.trace, trace = None, self.trace
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1000.0))
        if self.learner:
            self.learner.close()
        self.trace = trace
        self.loop.close()


def _told(message: Message) -> str:
    """A message in a few words, for people who read the trace."""
    fields = message.model_dump(exclude={"type", "actor_id", "config", "stats", "facts", "protocol", "host"})
    if "leases" in fields:
        fields["leases"] = [f"{lease['lease_id']} (v ≥ {lease['min_version']})" for lease in fields["leases"]]
    return f"{message.type} " + ", ".join(f"{name} {value}" for name, value in fields.items())


class _LogToTrace(logging.Handler):
    """What the machines log belongs to the story; a traceback in it is a problem."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.trace is not None:
            self._world.note("    %s: %s", record.name, record.getMessage())
        if record.exc_info:
            self._world.problem("error", f"{record.getMessage()}: {record.exc_info[1]!r}")


def run_schedule(seed: int, trace: bool = False) -> Outcome:
    """Play the schedule of ``seed``: the same seed, the same story, message by message."""
    log = logging.getLogger("rollway")
    with tempfile.TemporaryDirectory(prefix="rollway-sim-", dir=_memory()) as folder:
        world = World(seed, Path(folder), trace)
        handler = _LogToTrace(world)
        log.addHandler(handler)
        propagate, log.propagate = log.propagate, False
        level = log.level
        log.setLevel(logging.INFO if trace else logging.ERROR)
        try:
            world.run()
        finally:
            log.removeHandler(handler)
            log.propagate = propagate
            log.setLevel(level)
    virtual_s, recovery_s = world.ended, max(0.0, world.ended - world.scenario.chaos_s)
    return Outcome(seed, world.found, world.counts, world.steps, virtual_s, recovery_s, world.trace or [])


def _memory() -> str | None:
    """A RAM disk where there is one: the files are real, and a power cut is simulated anyway."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
