"""Multi-hop question answering over the built-in world, with one search tool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from envs.answer_env import AnswerEnv
from envs.base import Message
from envs.scoring import exact_match, f1, substring_match
from envs.world import load_world
from tools.base import ToolResult
from tools.search import SearchTool

#: Split of the tasks → split of the world. Held-out questions have a world of their own.
_WORLD_OF = {"train": "train", "eval": "heldout"}


class MultiHopQA(AnswerEnv):
    """Find the answer by searching, as often as it takes.

    Metrics: em, f1, sub_em, format, searches (calls answered), found (share of the gold
    passages that a search brought up).
    """

    world_seed: ClassVar[int] = 0
    top_k: ClassVar[int] = 2
    process_weight: ClassVar[float] = 0.1
    instructions: ClassVar[str] = ""

    @classmethod
    def setup(
        cls,
        world_seed: int = 0,
        top_k: int = 2,
        process_reward: float = 0.1,
        format_weight: float = 1.0,
        instructions: str = "",
    ) -> None:
        """
        top_k: passages of one search. process_reward: what all gold passages of a question
        earn together, each when first seen. format_weight: see ``AnswerEnv``. instructions:
        system message, for a policy that was not trained on this task before.
        """
        cls.world_seed, cls.top_k, cls.instructions = world_seed, top_k, instructions
        cls.process_weight, cls.format_weight = process_reward, format_weight

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        return [
            {
                "id": question.id,
                "split": split,
                "question": question.question,
                "answers": list(question.answers),
                "gold_titles": list(question.gold_titles),
            }
            for question in load_world(cls.world_seed, _WORLD_OF[split]).questions(dataset)[:limit]
        ]

    def start(self, task: dict[str, Any], seed: int) -> list[Message]:
        self.tools = [_search_tool(self.world_seed, _WORLD_OF[task["split"]], self.top_k)]
        self._answers = task["answers"]
        self._gold, self._found = set(task["gold_titles"]), set()
        self._searches = 0
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return [*system, {"role": "user", "content": task["question"]}]

    def process_reward(self, results: Sequence[ToolResult]) -> float:
        self._searches += sum(result.fault is None for result in results)
        seen = {title for result in results for title in result.data or ()}
        new = (seen & self._gold) - self._found
        self._found |= new
        return self.process_weight * len(new) / len(self._gold)

    def judge_answer(self, answer: str) -> dict[str, float]:
        return {
            "em": exact_match(answer, self._answers),
            "f1": f1(answer, self._answers),
            "sub_em": substring_match(answer, self._answers),
            "searches": float(self._searches),
            "found": len(self._found) / len(self._gold),
        }


@lru_cache(maxsize=8)
def _search_tool(world_seed: int, split: str, top_k: int) -> SearchTool:
    return SearchTool(load_world(world_seed, split).index, top_k)
