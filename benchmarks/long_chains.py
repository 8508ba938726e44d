"""A sparse task on the built-in world: questions of three or of four hops only, in training as in evaluation."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from envs.multihop import MultiHopQA
from envs.world import Question, load_world
from envs.world.questions import build_questions

DATASET = "chains"
HOPS = (3, 4)
#: Split of the tasks → (split of the world, draws of long questions). A draw has about 300 of each length.
_SOURCES = {"train": ("train", 8), "eval": ("heldout", 2)}


class LongChains(MultiHopQA):
    """``MultiHopQA``'s tool, passages and rewards; ``chains`` is its only data set. ``env.args.hops``: 3 or 4."""

    hops: ClassVar[int] = 4

    @classmethod
    def setup(cls, hops: int = 4, **args: Any) -> None:
        if hops not in HOPS:
            raise ValueError(f"env.args.hops: {hops}; questions have 3 or 4")
        super().setup(**args)
        cls.hops = hops

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        if dataset != DATASET:
            return []
        return [
            {
                "id": f"{DATASET}-{split}-{number}",
                "split": split,
                "question": question.question,
                "answers": list(question.answers),
                "gold_titles": list(question.gold_titles),
            }
            for number, question in enumerate(_questions(cls.world_seed, split, cls.hops)[:limit])
        ]


@lru_cache(maxsize=4)
def _questions(world_seed: int, split: str, hops: int) -> list[Question]:
    """Distinct chains of relations over the world of a split, in a fixed order.

    The built-in sets have no such question to train on; here the builder of the held-out set of long
    questions is let loose on the training world as well.
    """
    world_split, draws = _SOURCES[split]
    entities = load_world(world_seed, world_split).entities
    found: dict[str, Question] = {}
    for draw in range(draws):
        for question in build_questions(entities, "musique", "heldout", draw):
            if question.kind == f"bridge{hops}":
                found.setdefault(str(question.program), question)
    return list(found.values())
