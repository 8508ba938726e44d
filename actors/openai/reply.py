"""One sampled turn as the OpenAI API tells it: whole, or as a stream of events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from actors.openai.request import ChatRequest
from tools.base import ToolCall
from tools.formats import ToolFormat
from tools.formats.thinking import THINKING, without_thinking


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """What a tool format has to know of a tool of the agent's own."""

    name: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy wrote, taken apart. calls: those that can be read; malformed: how many cannot."""

    content: str
    thought: str
    calls: list[ToolCall]
    malformed: int

    @classmethod
    def of(cls, text: str, cut: bool, style: ToolFormat, tools: Sequence[dict[str, Any]]) -> Turn:
        """text: as decoded. cut: by a token limit. tools: that may be called; without any, nothing is a call.

        A call that cannot be read stays in the content, as servers leave it: the agent sees what was written.
        """
        declared = [DeclaredTool(t["function"]["name"], t["function"]["parameters"]) for t in tools]
        found = style.parse(text, declared, cut=cut) if tools else []
        calls = [call for call in found if call.problem is None]
        spoken = without_thinking(style.before_calls(text) if calls else text)
        return cls(spoken.strip(), _thought(text), calls, len(found) - len(calls))


@dataclass(frozen=True, slots=True)
class Reply:
    """message: the turn as a message of the history, in the form of ``request._messages``. finish: of the API."""

    request: ChatRequest
    message: dict[str, Any]
    finish: str
    prompt_tokens: int
    completion_tokens: int
    number: int

    def body(self) -> dict[str, Any]:
        """A ``chat.completion``."""
        content, calls = self.message["content"], self._calls()
        message = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if thought := self.message.get("reasoning_content"):
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "logprobs": None}
        return self._head("chat.completion") | {"choices": [choice], "usage": self._usage()}

    def events(self) -> Iterator[dict[str, Any]]:
        """``chat.completion.chunk`` objects. The turn is complete when they begin: they are few."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if thought := self.message.get("reasoning_content"):
            deltas.append({"reasoning_content": thought})
        if content := self.message["content"]:
            deltas.append({"content": content})
        deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(self._calls())]
        head = self._head("chat.completion.chunk")
        for delta in deltas:
            yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]}
        if self.request.with_usage:
            yield head | {"choices": [], "usage": self._usage()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.number}",
            "object": kind,
            "created": int(time.time()),
            "model": self.request.model,
        }

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {
                **call,
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in self.message.get("tool_calls", [])
        ]

    def _usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


def _thought(text: str) -> str:
    """What stands in ``<think>`` at the beginning of a turn, closed or not."""
    for opening, closing in THINKING.items():
        if text.lstrip().startswith(opening):
            return text.lstrip().removeprefix(opening).partition(closing)[0].strip()
    return ""
