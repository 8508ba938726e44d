"""``SearchQA``: question answering with one search tool, whatever the corpus."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from envs.answer_env import AnswerEnv
from envs.base import Message
from envs.scoring import exact_match, f1, substring_match
from tools.base import Tool, ToolResult
from tools.search import SearchTool


class SearchQA(AnswerEnv):
    """Find the answer by searching, as often as it takes.

    A task is {"id", "split", "question", "answers": [accepted strings], "gold_titles": [...]};
    a subclass says where tasks come from (``tasks``) and what is searched (``search_tool``).
    Metrics: em, f1, sub_em, format, searches (calls answered), found (share of the gold
    passages that a search brought up).
    """

    top_k: ClassVar[int] = 5
    process_weight: ClassVar[float] = 0.1
    instructions: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def search_tool(cls, task: dict[str, Any]) -> Tool:
        """The tool for this task; built once a process and kept."""

    def start(self, task: dict[str, Any], seed: int) -> list[Message]:
        self.tools = [self.search_tool(task)]
        self._answers = task["answers"]
        self._gold, self._found = set(task["gold_titles"]), set()
        self._searches = 0
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return [*system, {"role": "user", "content": task["question"]}]

    def process_reward(self, results: Sequence[ToolResult]) -> float:
        answered = [result for result in results if result.fault is None and result.name == SearchTool.name]
        self._searches += len(answered)
        seen = {title for result in answered for title in result.data}
        new = (seen & self._gold) - self._found
        self._found |= new
        return self.process_weight * len(new) / len(self._gold) if self._gold else 0.0

    def judge_answer(self, answer: str) -> dict[str, float]:
        return {
            "em": exact_match(answer, self._answers),
            "f1": f1(answer, self._answers),
            "sub_em": substring_match(answer, self._answers),
            "searches": float(self._searches),
            "found": len(self._found) / len(self._gold) if self._gold else 0.0,
        }
