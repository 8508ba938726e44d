"""The built-in multi-hop questions, answered at leisure: a run on few steps a minute, with everything else as ever."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from envs.base import StepResult
from envs.multihop import MultiHopQA


class PatientMultiHop(MultiHopQA):
    """``env.args.pause_s``: seconds that each turn takes longer, as a slow tool's would."""

    pause_s: ClassVar[float] = 0.0

    @classmethod
    def setup(cls, pause_s: float = 0.0, **args: Any) -> None:
        super().setup(**args)
        cls.pause_s = pause_s

    async def step(self, text: str, finish: str) -> StepResult:
        await asyncio.sleep(self.pause_s)
        return await super().step(text, finish)
