"""The built-in world: generated passages and multi-hop questions, for training and held-out.

world = load_world(seed=0, split="heldout")
world.passages, world.questions("hotpot"), world.index.search("Nora Marsh", 2)
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from envs.world.generator import Entity, generate_entities, passages_of
from envs.world.names import SPLITS
from envs.world.questions import DATASETS, Question, build_questions
from envs.world.traces import oracle
from tools.search_index import Passage, SearchIndex, format_passages

__all__ = ["DATASETS", "SPLITS", "Entity", "Passage", "Question", "World", "load_world", "oracle"]


class World:
    """One seeded world of a split. Its parts are generated when first used and then kept."""

    def __init__(self, seed: int, split: str):
        if split not in SPLITS:
            raise ValueError(f"unknown split '{split}': one of {', '.join(SPLITS)}")
        self.seed, self.split = seed, split
        self.entities: dict[str, Entity] = generate_entities(seed, split)
        self.names: list[str] = list(self.entities)
        self.passages: list[Passage] = passages_of(self.entities)
        self._questions: dict[str, list[Question]] = {}
        self._found: dict[tuple[str, int], list[Passage]] = {}

    @cached_property
    def index(self) -> SearchIndex:
        """The search index over ``passages``."""
        return SearchIndex(self.passages)

    def questions(self, dataset: str) -> list[Question]:
        """All questions of ``hotpot``, ``wiki2`` or ``musique``, in a fixed order."""
        if dataset not in DATASETS:
            raise ValueError(f"unknown data set '{dataset}': one of {', '.join(DATASETS)}")
        if dataset not in self._questions:
            self._questions[dataset] = build_questions(self.entities, dataset, self.split, self.seed)
        return self._questions[dataset]

    def search(self, query: str, top_k: int) -> list[Passage]:
        """The best passages; remembered, for scripts that ask the same again and again."""
        key = (query, top_k)
        if key not in self._found:
            self._found[key] = [passage for passage, _ in self.index.search(query, top_k)]
        return self._found[key]

    def text_of(self, name: str) -> str:
        """The passage about an entity."""
        return self._texts[name]

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {passage.title: passage.text for passage in self.passages}

    def lookup(self, query: str, top_k: int) -> str:
        """What the search tool answers."""
        return format_passages(self.search(query, top_k))


@lru_cache(maxsize=8)
def load_world(seed: int, split: str) -> World:
    """The world of a seed and split (``train`` or ``heldout``); one instance a process."""
    return World(seed, split)
