"""An environment of the ``verifiers`` library, as its users write them: say a word backwards.

PYTHONPATH=docs/examples python run.py --config docs/examples/verifiers.yaml
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from difflib import SequenceMatcher

import verifiers.v1 as vf

__all__ = ["ReverseTaskset"]


class ReverseData(vf.TaskData):
    answer: str


class ReverseTask(vf.Task[ReverseData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def alike(self, trace: vf.Trace) -> float:
        return SequenceMatcher(None, trace.last_reply.strip(), self.data.answer).ratio()

    @vf.metric
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)


class ReverseTaskset(vf.Taskset[ReverseTask, vf.TasksetConfig]):
    def load(self) -> Iterator[ReverseTask]:
        for letters in itertools.permutations("stone"):
            word = "".join(letters)
            yield ReverseTask(ReverseData(prompt=f"Write backwards: {word}", answer=word[::-1]), self.config.task)
