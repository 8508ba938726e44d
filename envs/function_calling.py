"""Function calling: one turn, scored by the calls that were expected."""

from __future__ import annotations

from typing import Any, ClassVar

from envs.base import Message, StepResult, ToolEnv
from envs.call_matching import count_matched
from envs.data.calls import CallSource, load_conversations
from envs.data.source import Catalogue
from tools.base import Tool
from tools.runner import run_calls


class DeclaredTool(Tool):
    """A function of a data set: there is only its schema, so a call is checked against it and comes to nothing."""

    def __init__(self, function: dict[str, Any]):
        """function: OpenAI's {"name", "description", "parameters"}."""
        self.name, self.description = function["name"], function["description"]
        self.parameters = function["parameters"]

    async def execute(self, /, **arguments: Any) -> str:
        return "noted"


class FunctionCalling(ToolEnv):
    """The policy reads a conversation and makes its calls, or none, in one turn; then the episode is over.

    Outcome: 1 if the calls are the expected ones (``envs.call_matching``), else 0. Metrics: em (the same),
    matched (share of all calls, made or expected, that have a partner), calls (made), format (1 if every call
    could be read and fits its function).
    """

    catalogue: ClassVar[Catalogue[CallSource]]
    instructions: ClassVar[str] = ""

    @classmethod
    def setup(cls, files: dict[str, Any], bad_rows: str = "fatal", instructions: str = "") -> None:
        """
        files, bad_rows: see ``envs.data.source``. instructions: system message, where the conversation
        has none of its own. Raises ``ValueError``.
        """
        cls.catalogue = Catalogue(files, CallSource, bad_rows)
        cls.instructions = instructions

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        conversations = load_conversations(cls.catalogue.source(split, dataset), cls.catalogue.bad_rows)
        return [
            {"id": c.id, "split": split, "messages": c.messages, "tools": c.tools, "expected_calls": c.expected}
            for c in conversations[:limit]
        ]

    async def reset(self, task: dict[str, Any], seed: int) -> list[Message]:
        self.tools = [DeclaredTool(tool["function"]) for tool in task["tools"]]
        self._expected = task["expected_calls"]
        messages = [dict(message) for message in task["messages"]]
        if self.instructions and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.instructions})
        return messages

    async def step(self, text: str, finish: str) -> StepResult:
        calls = self.tool_format.parse(text, self.tools, cut=finish == "length")
        results = await run_calls(self.tools, calls)
        matched, most = count_matched(calls, self._expected), max(len(calls), len(self._expected))
        em = float(matched == most)
        metrics = {
            "em": em,
            "matched": matched / most if most else 1.0,
            "calls": float(len(calls)),
            "format": float(all(result.fault is None for result in results)),
        }
        return StepResult(done=True, info={"metrics": metrics, "outcome_reward": em}, tool_results=results)
