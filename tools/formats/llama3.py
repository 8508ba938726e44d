"""Llama 3.1 to 3.3: the turn is ``{"name": …, "parameters": {…}}``, after ``<|python_tag|>`` or bare.

Several calls are separated by ``;`` or white space.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tools.base import Tool, ToolCall
from tools.formats.base import Malformed, ToolFormat
from tools.formats.json_call import call_from, read_json, write_json
from tools.formats.thinking import after_thinking, find, outside_thinking

_TAG = outside_thinking(r"<\|python_tag\|>")
_NEXT = re.compile(r"[\s;]*(?:<\|python_tag\|>)?\s*(?=\{)")


class Llama3(ToolFormat):
    name = "llama3"
    expected = 'Write {"name": "...", "parameters": {...}} and nothing else.'
    turn_ends = ("<|eom_id|>", "<|eot_id|>")

    def render(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(write_json({"name": call.name, "parameters": call.arguments}) for call in calls)

    def _start(self, text: str) -> int | None:
        bare = after_thinking(text)
        if text.startswith("{", bare):
            return bare
        return tag.start() if (tag := find(_TAG, text)) else None

    def _read(self, text: str, tools: Sequence[Tool], cut: bool) -> list[ToolCall]:
        calls = []
        at: int | None = _content(text)
        while at is not None:
            try:
                value, end = read_json(text, at)
            except Malformed as error:
                return calls if cut else [*calls, self._problem(error)]
            try:
                calls.append(call_from(value, _arguments_key(value)))
            except Malformed as error:
                calls.append(self._problem(error))
            following = _NEXT.match(text, end)
            at = following.end() if following else None
        return calls


def _arguments_key(value: Any) -> str:
    """``parameters``, or what other models say, where only that is there."""
    return (
        "arguments" if isinstance(value, dict) and "arguments" in value and "parameters" not in value else "parameters"
    )


def _content(text: str) -> int | None:
    """Where the first call begins: after the tag, or where a turn begins to speak with a brace."""
    bare = after_thinking(text)
    if text.startswith("{", bare):
        return bare
    tag = find(_TAG, text)
    return tag.end() if tag else None
