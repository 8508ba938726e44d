"""Multi-hop question answering over the built-in world, with one search tool."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from envs.search_qa import SearchQA
from envs.world import load_world
from tools.search import SearchTool

#: Split of the tasks → split of the world. Held-out questions have a world of their own.
_WORLD_OF = {"train": "train", "eval": "heldout"}


class MultiHopQA(SearchQA):
    """Questions about generated people, works, places and organisations; see ``envs.world``."""

    world_seed: ClassVar[int] = 0

    @classmethod
    def setup(
        cls,
        world_seed: int = 0,
        top_k: int = 1,
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
                "kind": question.kind,
            }
            for question in load_world(cls.world_seed, _WORLD_OF[split]).questions(dataset)[:limit]
        ]

    @classmethod
    def search_tool(cls, task: dict[str, Any]) -> SearchTool:
        return _search_tool(cls.world_seed, _WORLD_OF[task["split"]], cls.top_k)


@lru_cache(maxsize=8)
def _search_tool(world_seed: int, split: str, top_k: int) -> SearchTool:
    return SearchTool(load_world(world_seed, split).index, top_k)
