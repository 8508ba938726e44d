"""Messages between actors and learner: on their way they are lost, doubled, late and overtaken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from benchmarks.simulation.world import World

Deliver = Callable[[list], None]


class Network:
    """Harsher than TCP: any message may be lost or overtaken, not only at a reconnect."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cut_off: set[str] = set()  # actors that nothing reaches and nothing leaves

    def carry(self, actor: str, frames: list, deliver: Deliver) -> None:
        """Have ``deliver(frames)`` called a little later: once, twice, much later or never."""
        world, faults, rng = self._world, self._world.scenario, self._world.rng
        copies = 1
        if world.chaos:
            if actor in self.cut_off or rng.random() < faults.lost:
                world.count("messages lost")
                return
            if rng.random() < faults.doubled:
                world.count("messages doubled")
                copies = 2
        for _ in range(copies):
            delay = rng.uniform(0.001, 0.02)
            if world.chaos and rng.random() < faults.late:
                world.count("messages late")
                delay += rng.uniform(0.1, 4.0)
            world.loop.call_later(delay, deliver, frames)


class Dealer:
    """What an actor's wire thread has for a socket."""

    def __init__(self, world: World, actor: str, on_message: Callable[[], None], on_send: Callable[[], None]) -> None:
        self._world, self._actor, self._on_message, self._on_send = world, actor, on_message, on_send
        self._inbox: list[list] = []
        self.open = True

    def arrive(self, frames: list) -> None:
        if self.open:
            self._inbox.append(frames)
            self._on_message()

    def send_multipart(self, frames: list, flags: int = 0, copy: bool = True) -> None:
        if not self.open:
            return
        if self._world.learner is None:
            raise zmq.Again  # nobody is connected
        self._world.network.carry(self._actor, frames, lambda sent: self._world.to_learner(self._actor, sent))
        self._on_send()

    def recv_multipart(self, flags: int = 0) -> list[Any]:
        if not self._inbox:
            raise zmq.Again
        return self._inbox.pop(0)
