"""One learner process: the production dispatcher, gate and ledger under the calls that gateway and trainer make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from benchmarks.simulation.disk import Checkpoint, Crash, CrashingConnection
from benchmarks.simulation.scenario import HEARTBEAT_S
from learner.evaluate import welcome_config
from learner.gateway.dispatch import Dispatcher, Outgoing
from learner.gateway.ledger import Ledger
from protocol.codec import decode, encode
from protocol.trajectory import Group

if TYPE_CHECKING:
    from benchmarks.simulation.world import World

T = TypeVar("T")
_TICK_S = HEARTBEAT_S / 4


class LearnerProcess:
    """``trained``: the seqs behind each version of its weights; ``version``: how many there are."""

    def __init__(self, world: World) -> None:
        self.world, self.dead = world, False
        self._fuse, self._burnt = world.fuse(world.scenario.learner_fuse), False
        config = world.scenario.config
        self.ledger = Ledger(world.disk.ledger, world.scenario.task_list, seed=0)
        self.connection = CrashingConnection(self.ledger._db, world.disk, self._step)
        world.disk.synced()
        self.dispatcher = Dispatcher(config, self.ledger, "sim", welcome_config(config))
        self.dispatcher.paused = True
        self.ledger._db = self.connection
        self.restored = 0  # units under way when it was started
        self.version, self.trained = 0, []
        self._current: set[str] = set()  # servers
        self._pushing = asyncio.Lock()
        self._push: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None
        self._backlog: list[tuple[str, list]] | None = None  # while it is stopped
        self._tasks = [world.loop.create_task(self._guarded(part)) for part in (self._train, self._tick, self._monitor)]

    def now(self) -> float:
        return self.world.loop.time() + self.world.learner_ahead

    # ── the gateway's thread ─────────────────────────────────────────────────

    def receive(self, actor: str, frames: list) -> None:
        if self._backlog is not None:
            self._backlog.append((actor, frames))
            return
        with self._alive():
            message, group = decode(frames)
            self.world.note("%s → %s", actor, message)
            self._send(self.dispatcher.on_message(actor, message, group, self.now()))
        self._notify()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self._backlog is None:
                self._send(self.dispatcher.tick(self.now()))
                self._notify()

    def _send(self, out: Outgoing) -> None:
        for actor, message in out:
            self._step()
            self.world.note("%s ← %s", actor, message)
            self.world.network.carry(actor, encode(message), lambda frames, to=actor: self.world.to_actor(to, frames))

    async def stop_for(self, seconds: float) -> None:
        """As SIGSTOP would: messages wait in the socket."""
        self._backlog = self._backlog or []
        await asyncio.sleep(seconds)
        backlog, self._backlog = self._backlog or [], None
        for actor, frames in backlog:
            if not self.dead:
                self.receive(actor, frames)

    # ── the trainer, call by call ────────────────────────────────────────────

    async def _train(self) -> None:
        world, scenario, dispatcher = self.world, self.world.scenario, self.dispatcher
        checkpoint = world.disk.load(damaged=world.chaos and world.rng.random() < 0.1)
        self.version, self.trained = checkpoint.version, list(checkpoint.trained)
        world.checks.rolled_back(self.version)
        units = dispatcher.rollback(self.version)
        world.note("the learner goes on from version %d, %d units are used again", self.version, units)
        self.restored = world.checks.open_units(self)
        await self._push_to_all()
        dispatcher.set_version(self.version)
        dispatcher.paused = False
        while True:
            groups = await self._until(lambda: dispatcher.take(scenario.groups))
            world.checks.batch(self, groups)
            await self._work(groups)
            if self.version % scenario.checkpoint_every == 0:
                self._checkpoint()
            if (scenario.eval_every and self.version % scenario.eval_every == 0) or world.evaluation_wanted:
                await self._evaluate()

    async def _work(self, groups: list[Group]) -> None:
        world, dispatcher = self.world, self.dispatcher
        await asyncio.sleep(world.rng.uniform(0.05, 0.8))
        self._step()
        self.version += 1
        self.trained.append(tuple(world.checks.seq(group) for group in groups))
        dispatcher.commit(self.version)
        world.note("version %d is made of units %s", self.version, self.trained[-1])
        world.checks.committed(self)
        self._step()
        if self._push:
            await self._push
        if world.scenario.staleness == 0:
            await self._push_to_all()
            dispatcher.set_version(self.version)
        else:
            dispatcher.set_version(self.version)
            self._push = world.loop.create_task(self._guarded(self._push_to_all))
        world.steps += 1

    def _checkpoint(self) -> None:
        self._step()
        self.world.disk.save(Checkpoint(self.version, tuple(self.trained)))
        self._step()
        while self.ledger.checkpointed(self.version):
            pass

    async def _evaluate(self) -> None:
        world = self.world
        if self._push:
            await self._push
        wanted = world.scenario.task_list[: world.rng.randint(1, 4)]
        world.note("evaluation of %d tasks by version %d", len(wanted), self.version)
        self.dispatcher.submit_eval(wanted, self.version)
        episodes = await self._until(self.dispatcher.eval_results)
        world.checks.evaluation(wanted, episodes, self.version)
        world.evaluated()

    # ── weights ──────────────────────────────────────────────────────────────

    async def _push_to_all(self) -> None:
        await self._push_to([server.name for server in self.world.servers])

    async def _push_to(self, names: list[str]) -> None:
        world = self.world
        async with self._pushing:
            version = self.version
            for server in world.servers:
                if server.name not in names:
                    continue
                await asyncio.sleep(world.rng.uniform(0.02, 0.3))
                failed = world.chaos and world.rng.random() < world.scenario.push_failing
                if server.up and not failed:
                    server.version = version
                    self._current.add(server.name)
                else:
                    world.count("pushes failed")
                    self._current.discard(server.name)
            self.dispatcher.servers = sorted(self._current)
            world.note("servers with version %d: %s", version, self.dispatcher.servers)

    async def _monitor(self) -> None:
        """Take back servers that were excluded."""
        while True:
            await asyncio.sleep(1.5)
            excluded = [s.name for s in self.world.servers if s.up and s.name not in self._current]
            if excluded and not self._pushing.locked():
                await self._push_to(excluded)

    # ── dying ────────────────────────────────────────────────────────────────

    def kill(self, power_cut: bool = False) -> None:
        if self.dead:
            return
        self.dead = True
        self.world.learner_died(self, power_cut)
        for task in (*self._tasks, self._push):
            if task:
                task.cancel()

    def close(self) -> None:
        """The schedule is over."""
        self.dead = True
        self.connection.real.close()

    def _step(self) -> None:
        """One statement or message more: the place to die."""
        if self._fuse and self.world.chaos:
            self._fuse -= 1
            self._burnt = not self._fuse
        if self.dead or self._burnt:
            raise Crash

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except Crash:
            self.kill(self.world.rng.random() < self.world.scenario.power_cut)
        except Exception as error:
            self.world.problem("error", f"the learner died: {error!r}")

    async def _guarded(self, part: Callable) -> None:
        with self._alive():
            await part()

    async def _until(self, attempt: Callable[[], T | None]) -> T:
        while (result := attempt()) is None:
            self._changed = self.world.loop.create_future()
            await self._changed
        return result

    def _notify(self) -> None:
        if not self.dead:
            self.world.checks.after_event(self)
        if self._changed and not self._changed.done():
            self._changed.set_result(None)
