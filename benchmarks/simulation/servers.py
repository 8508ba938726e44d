"""Servers that only have a version, and an actor's sampler on top of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.link import Link
from actors.sampler import Sampled, SamplingFailed
from actors.stats import Latencies

if TYPE_CHECKING:
    from benchmarks.simulation.world import World

_REQUEST_TIMEOUT_S = 20.0


@dataclass(slots=True)
class Server:
    """``version``: of the weights that it holds, whatever the learner believes."""

    name: str
    version: int = 0
    up: bool = True


class SimulatedSampler:
    """Stands in for ``actors.sampler.Sampler``: weights may change in the middle of a turn."""

    def __init__(self, world: World, link: Link) -> None:
        self._world, self._link = world, link
        self.latency, self.latency_by_server = Latencies(), {}
        self.faults: Counter[str] = Counter()

    async def generate(self, ids: list[int], *, min_version: int, **_: Any) -> Sampled:
        world, rng = self._world, self._world.rng
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                while True:
                    server = self._pick(min_version)
                    if server is None:
                        await asyncio.sleep(0.2)
                    elif sampled := await self._turn(server):
                        break
        except TimeoutError:
            raise SamplingFailed("no server") from None
        if world.chaos and rng.random() < world.scenario.failing / 2:
            world.count("requests failed")
            raise SamplingFailed("refused")
        return sampled

    def _pick(self, min_version: int) -> Server | None:
        fit = [s for s in self._world.servers if s.name in self._link.servers and s.up and s.version >= min_version]
        return self._world.rng.choice(fit) if fit else None

    async def _turn(self, server: Server) -> Sampled | None:
        """Two tokens, some time apart; None where the server dies meanwhile."""
        versions = []
        for _ in range(2):
            await asyncio.sleep(self._world.rng.uniform(0.02, 0.5))
            if not server.up:
                return None
            versions.append(server.version)
        return Sampled([5, 6], [-0.5, -0.5], versions, "stop")
