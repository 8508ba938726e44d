"""Hermes, Qwen2.5, Qwen3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several a turn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tools.base import Tool, ToolCall
from tools.formats.base import Malformed, ToolFormat
from tools.formats.json_call import call_from, read_json, write_json
from tools.formats.thinking import find, outside_thinking

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OPENING = outside_thinking(OPEN)
_CLOSING = re.compile(rf"\s*{CLOSE}")


class Hermes(ToolFormat):
    name = "hermes"
    expected = f'Write {OPEN}{{"name": "...", "arguments": {{...}}}}{CLOSE}.'

    def render(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(
            f"{OPEN}\n{write_json({'name': call.name, 'arguments': call.arguments})}\n{CLOSE}" for call in calls
        )

    def _start(self, text: str) -> int | None:
        return found.start() if (found := find(_OPENING, text)) else None

    def _read(self, text: str, tools: Sequence[Tool], cut: bool) -> list[ToolCall]:
        calls, at = [], 0
        while opened := find(_OPENING, text, at):
            at = opened.end()
            try:
                call, at = _block(text, at)
            except Malformed as error:
                closed, following = text.find(CLOSE, at), find(_OPENING, text, at)
                if closed >= 0 and not (following and following.start() < closed):
                    call, at = self._problem(error), closed + len(CLOSE)
                elif cut and not following:
                    break
                else:
                    call = self._problem(Malformed(f"it is not closed with {CLOSE}"))
            calls.append(call)
        return calls


def _block(text: str, at: int) -> tuple[ToolCall, int]:
    """The call of a block whose content begins at ``at``, and where the block ends."""
    value, end = read_json(text, at)
    closing = _CLOSING.match(text, end)
    if not closing:
        raise Malformed("it is not valid JSON (text follows the object)")
    return call_from(value), closing.end()
