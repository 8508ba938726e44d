"""The ``search`` tool: the best passages of an index for a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from tools.base import Tool
from tools.search_index import Passage, SearchIndex, format_passages

#: Characters of a title and the marks around it, for the limit on a whole answer.
_TITLE_CHARS = 200


class Search(Tool):
    """What all search tools share: how they look to the model, and what an answer is.

    Answers with ``top_k`` passages, each cut at ``passage_chars``; ``data`` is the list of their titles, best
    first. A passage is cut, not the answer, so that the model sees every title that the environment counts.
    """

    name: ClassVar[str] = "search"
    description: ClassVar[str] = "Search the corpus for passages."
    parameters: ClassVar[dict] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "what to look for"}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, top_k: int = 5, passage_chars: int = 2000):
        self.top_k, self.passage_chars = top_k, passage_chars
        self.max_output_chars = top_k * (passage_chars + _TITLE_CHARS)

    def answer(self, passages: Sequence[Passage]) -> tuple[str, list[str]]:
        """(text for the model, titles)."""
        return format_passages(map(self._cut, passages)), [passage.title for passage in passages]

    def _cut(self, passage: Passage) -> Passage:
        if len(passage.text) <= self.passage_chars:
            return passage
        return replace(passage, text=passage.text[: self.passage_chars - 2].rstrip() + " …")


class SearchTool(Search):
    """Over an index in this process."""

    def __init__(self, index: SearchIndex, top_k: int = 5):
        super().__init__(top_k)
        self.index = index

    def execute(self, query: str) -> tuple[str, list[str]]:
        return self.answer([passage for passage, _ in self.index.search(query, self.top_k)])
