"""Faults that come at random moments, while there is chaos."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.simulation.world import World


class Faults:
    """One method for each of ``scenario.EVENTS``."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self) -> None:
        """One fault every second or two, until it is cancelled."""
        world = self._world
        while True:
            await asyncio.sleep(world.rng.uniform(0.3, 3.0))
            if world.scenario.events:
                getattr(self, world.rng.choice(world.scenario.events))()

    def actor_killed(self) -> None:
        if actor := self._any_actor():
            actor.kill()

    def actor_leaves(self) -> None:
        if actor := self._any_actor():
            actor.leave()

    def actor_cut_off(self) -> None:
        world = self._world
        if actor := self._any_actor():
            world.count("actors cut off")
            world.note("%s is cut off", actor.name)
            world.network.cut_off.add(actor.name)
            world.loop.call_later(world.rng.uniform(0.5, 8.0), world.network.cut_off.discard, actor.name)

    def actor_clock_jumps(self) -> None:
        if actor := self._any_actor():
            self._world.count("clocks jumped")
            actor.ahead += self._world.rng.choice([1.0, 4.0, 60.0])

    def learner_killed(self) -> None:
        world = self._world
        if world.learner:
            world.learner.kill(world.rng.random() < world.scenario.power_cut)

    def learner_stops(self) -> None:
        world = self._world
        if world.learner:
            world.count("learner stopped")
            world.note("the learner is stopped for a while")
            world.spawn(world.learner.stop_for(world.rng.uniform(0.5, 8.0)))

    def learner_clock_jumps(self) -> None:
        self._world.count("clocks jumped")
        self._world.learner_ahead += self._world.rng.choice([1.0, 4.0, 60.0, 3600.0])

    def server_down(self) -> None:
        world = self._world
        server = world.rng.choice(world.servers)
        if server.up:
            world.count("servers down")
            world.note("%s is down", server.name)
            server.up = False
            world.loop.call_later(world.rng.uniform(0.5, 6.0), setattr, server, "up", True)

    def _any_actor(self):
        actors = [actor for actor in self._world.actors.values() if actor]
        return self._world.rng.choice(actors) if actors else None
