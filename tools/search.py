"""The ``search`` tool: the best passages of an index for a query."""

from __future__ import annotations

from typing import ClassVar

from tools.base import Tool
from tools.search_index import SearchIndex, format_passages


class SearchTool(Tool):
    """Answers with ``top_k`` passages; ``data`` is the list of their titles, best first."""

    name: ClassVar[str] = "search"
    description: ClassVar[str] = "Search the corpus for passages."
    parameters: ClassVar[dict] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "what to look for"}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, index: SearchIndex, top_k: int = 5):
        self.index, self.top_k = index, top_k

    def execute(self, query: str) -> tuple[str, list[str]]:
        passages = [passage for passage, _ in self.index.search(query, self.top_k)]
        return format_passages(passages), [passage.title for passage in passages]
