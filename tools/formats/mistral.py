"""Mistral: ``[TOOL_CALLS]`` and a JSON list of calls, or one ``name[ARGS]{…}`` (newer models) after each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from tools.base import Tool, ToolCall
from tools.formats.base import Malformed, ToolFormat, bounded
from tools.formats.json_call import call_from, read_json, write_json
from tools.formats.thinking import find, outside_thinking

TAG = "[TOOL_CALLS]"
_TAG = outside_thinking(re.escape(TAG))
_NAMED = re.compile(r"\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?(?:\[ARGS\])?\s*(?=\{)")
_JSON = re.compile(r"\s*(?=[\[{])")
#: What Mistral's own tokenizers and templates take for the id of a call.
_ID = re.compile(r"[a-zA-Z0-9]{9}")


class Mistral(ToolFormat):
    name = "mistral"
    expected = f'Write {TAG}[{{"name": "...", "arguments": {{...}}}}] or {TAG}name[ARGS]{{...}}.'

    def render(self, calls: Sequence[ToolCall]) -> str:
        """The list form, which models of all versions read."""
        items = [
            {"name": call.name, "arguments": call.arguments, **({"id": call.call_id} if call.call_id else {})}
            for call in calls
        ]
        return TAG + write_json(items)

    def _start(self, text: str) -> int | None:
        return found.start() if (found := find(_TAG, text)) else None

    def _read(self, text: str, tools: Sequence[Tool], cut: bool) -> list[ToolCall]:
        calls, at = [], 0
        while tag := find(_TAG, text, at):
            at = tag.end()
            try:
                stated, at = _stated(text, at)
            except Malformed as error:
                if cut and not find(_TAG, text, at):
                    break
                calls.append(self._problem(error))
                continue
            for value in stated:
                try:
                    calls.append(dataclasses.replace(call_from(value), call_id=_id(value)))
                except Malformed as error:
                    calls.append(self._problem(error))
        return calls


def _stated(text: str, at: int) -> tuple[list[Any], int]:
    """What follows a tag, as a list of call objects, and where it ends."""
    if named := _NAMED.match(text, at):
        try:
            arguments, end = read_json(text, named.end())
        except Malformed as error:
            raise Malformed(str(error), named["name"]) from None
        return [{"name": bounded(named["name"]), "arguments": arguments, "id": named["id"]}], end
    if not _JSON.match(text, at):
        raise Malformed(f"neither a list nor a name with its arguments follows {TAG}")
    value, end = read_json(text, at)
    if value == []:
        raise Malformed("the list of calls is empty")
    return value if isinstance(value, list) else [value], end


def _id(value: dict[str, Any]) -> str:
    written = value.get("id")
    return written if isinstance(written, str) and _ID.fullmatch(written) else ""
