"""One actor process: the production pool, link and wire thread, without a socket and without a thread."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from actors.link import Link, LinkError
from actors.main import ActorShare, _serve
from actors.wire import WireThread
from benchmarks.simulation.network import Dealer
from benchmarks.simulation.scenario import HEARTBEAT_S, PATIENCE_S
from benchmarks.simulation.servers import SimulatedSampler
from envs.base import StepResult, ToolEnv
from tools.formats import HERMES

if TYPE_CHECKING:
    from benchmarks.simulation.world import World

#: Stands in for ``actors.chat.ChatFormat``: nobody reads what is said.
_CHAT = SimpleNamespace(
    prompt_ids=lambda messages, tools: [1, 2],
    continue_ids=lambda ids, messages, tools: [3],
    decode=lambda ids: "",
    stop_ids=[0],
    tool_format=HERMES,
)
#: What an actor's events and requests may pile up to.
QUEUE_BOUND = 500


class SimulatedEnv(ToolEnv):
    """One turn or two; at times it raises, or hangs for good."""

    world: World

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        return []

    async def reset(self, task: dict[str, Any], seed: int) -> list[dict[str, Any]]:
        world = self.world
        if world.chaos and world.rng.random() < world.scenario.failing:
            world.count("episodes failed")
            raise OSError("broken tool")
        if world.chaos and world.rng.random() < world.scenario.hanging:
            world.count("episodes hung")
            await asyncio.sleep(1e6)
        return []

    async def step(self, text: str, finish: str) -> StepResult:
        return StepResult(done=self.world.rng.random() < 0.6, info={"outcome_reward": 1.0, "metrics": {}})


class SimulatedWire(WireThread):
    """The wire thread's own code, in turns of the event loop."""

    def __init__(self, actor: ActorProcess, *args: Any) -> None:
        super().__init__(*args, clock=actor.clock)
        self._context.destroy()
        self._wake_in.close()
        self._wake_out.close()
        self._process = ("sim", actor.pid)
        self._actor = actor
        self._socket = Dealer(actor.world, actor.name, self._wake, actor.step)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._wake()

    def close(self) -> bool:
        """Send what was asked for and be silent from now on."""
        if self._socket.open and self._error is None:
            self._send_due(self._clock())
        self._socket.open = False
        return True

    def _wake(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._actor.world.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._timer = None
        if not self._socket.open or self._error:
            return
        self._listen()
        if self._error is None:
            self._send_due(self._clock())
            pause = min(max(self._next_beat - self._clock(), 0.001), 0.5)
            self._timer = self._timer or self._actor.world.loop.call_later(pause, self._turn)
        self._actor.check()


class SimulatedLink(Link):
    def receive(self, frames: list) -> None:
        self._thread._socket.arrive(frames)

    def cut(self) -> None:
        """The process is dead: not a word from now on."""
        self._thread._socket.open = False

    def piled_up(self) -> int:
        return max(self._events.qsize(), len(self._thread._requests), len(self._thread._outbox))

    async def _close(self) -> None:
        self._thread.close()


class ActorProcess:
    """From its start to its death or good-bye; the next one of the same name has another ``pid``."""

    def __init__(self, world: World, name: str, pid: int) -> None:
        self.world, self.name, self.pid = world, name, pid
        self.ahead = 0.0  # of the world's clock, in seconds
        self._fuse = world.fuse(world.scenario.actor_fuse)
        self._dead = False
        # Its own idea of the interval is far off: the learner's is the one that counts.
        self._link = SimulatedLink("sim", name, 5 * HEARTBEAT_S, thread=partial(SimulatedWire, self))
        self.work = world.loop.create_task(self._run())

    def clock(self) -> float:
        return self.world.loop.time() + self.ahead

    def receive(self, frames: list) -> None:
        if not self._dead:
            self._link.receive(frames)
            self.step()

    def step(self) -> None:
        """One message more in or out: the place to die."""
        if self._fuse and self.world.chaos:
            self._fuse -= 1
            if not self._fuse:
                self.kill()

    def kill(self) -> None:
        if not self._dead:
            self.world.count("actors killed")
            self.world.note("%s (pid %d) is killed", self.name, self.pid)
            self._dead = True
            self._link.cut()
            self.work.cancel()

    def leave(self) -> None:
        """As after SIGTERM."""
        if not self._dead:
            self.world.count("actors left")
            self.world.note("%s (pid %d) is asked to leave", self.name, self.pid)
            self.work.cancel()

    def check(self) -> None:
        if self._link.piled_up() > QUEUE_BOUND:
            self.world.problem("unbounded", f"{self.name} has a queue of more than {QUEUE_BOUND}")

    async def _run(self) -> None:
        """As ``actors.main.run_actor``, without loading anything."""
        world = self.world
        try:
            try:
                welcome = await self._link.connect(PATIENCE_S)
                share = ActorShare.model_validate(welcome.config)
                envs = {"main": type("Env", (SimulatedEnv,), {"world": world})}
                await _serve(self._link, share, envs, _CHAT, SimulatedSampler(world, self._link))
            finally:
                await self._link.goodbye()
        except LinkError as error:
            world.count("actors gave up")
            world.note("%s (pid %d) gives up: %s", self.name, self.pid, error)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            world.problem("error", f"{self.name}: {error!r}")
        self._dead = True
        world.actor_ended(self)
