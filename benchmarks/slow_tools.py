"""The built-in questions with tools as slow as the web's: each search takes a time drawn from a long-tailed distribution."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

from envs.base import Message, StepResult
from envs.multihop import MultiHopQA

#: Seconds of one call: lognormal, slept and not computed.
MEDIAN_S, P99_S = 0.3, 5.0
_SIGMA = math.log(P99_S / MEDIAN_S) / 2.3263  # the 99th percentile of a normal distribution


class SlowTools(MultiHopQA):
    """Latencies follow from the episode's seed, so every arm of a comparison waits for the same ones."""

    async def reset(self, task: dict[str, Any], seed: int) -> list[Message]:
        self._rng = random.Random(f"{task['id']} {seed}")
        return await super().reset(task, seed)

    async def step(self, text: str, finish: str) -> StepResult:
        result = await super().step(text, finish)
        for _ in result.tool_results:
            await asyncio.sleep(latency_s(self._rng))
        return result


def latency_s(rng: random.Random) -> float:
    """Seconds of one tool call."""
    return rng.lognormvariate(math.log(MEDIAN_S), _SIGMA)
