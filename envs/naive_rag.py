"""Naive RAG, the baseline: one retrieval with the question as the query, one turn, one answer."""

from __future__ import annotations

from typing import Any

from envs.answer_env import parse_answer
from envs.base import Message, StepResult
from envs.multihop import MultiHopQA
from envs.world.messages import rag_prompt


class NaiveRag(MultiHopQA):
    """``MultiHopQA``'s questions, corpus and scores without the agent."""

    @classmethod
    def setup(cls, world_seed: int = 0, top_k: int = 5) -> None:
        super().setup(world_seed, top_k, process_reward=0.0)

    def start(self, task: dict[str, Any], seed: int) -> list[Message]:
        [question] = super().start(task, seed)
        [search], self.tools = self.tools, []
        passages, titles = search.execute(question["content"])
        self._found = self._gold.intersection(titles)
        self._searches = 1
        return [{"role": "user", "content": rag_prompt(question["content"], passages)}]

    async def step(self, text: str, finish: str) -> StepResult:
        return self._outcome(parse_answer(text))
