"""Qwen3-Coder and newer Qwen models: one tag a parameter, values as plain text.

::

    <tool_call>
    <function=search>
    <parameter=query>
    Blind Castle
    </parameter>
    </function>
    </tool_call>

The text of a value has no type of its own: the tool's schema says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tools.base import Tool, ToolCall
from tools.formats.base import Malformed, ToolFormat, bounded, schema_of
from tools.formats.json_call import read_json, write_json
from tools.formats.thinking import find, outside_thinking

#: Models leave out the outer tag at times.
_OPENING = outside_thinking(r"<tool_call>|(?=<function=)")
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_SPACE = re.compile(r"\s*")
_VALUE_END, _FUNCTION_END, _CALL_END = "</parameter>", "</function>", "</tool_call>"
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
#: As Python writes them, and so at times a model.
_SPELLINGS = {"True": True, "False": False, "None": None}


class QwenXml(ToolFormat):
    name = "qwen_xml"
    expected = "Write <tool_call><function=name><parameter=key>value</parameter></function></tool_call>."

    def render(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(_render(call) for call in calls)

    def _start(self, text: str) -> int | None:
        return found.start() if (found := find(_OPENING, text)) else None

    def _read(self, text: str, tools: Sequence[Tool], cut: bool) -> list[ToolCall]:
        calls, at = [], 0
        while opened := find(_OPENING, text, at):
            at = opened.end()
            try:
                call, at = _function(text, at, tools, wrapped=bool(opened.group()))
            except Malformed as error:
                at = skip.end() if (skip := _FUNCTION.match(text, at)) else max(at, opened.start() + 1)
                if cut and not find(_OPENING, text, at):
                    break
                call = self._problem(error)
            calls.append(call)
        return calls


def _function(text: str, at: int, tools: Sequence[Tool], wrapped: bool) -> tuple[ToolCall, int]:
    """The call at ``at`` and where it ends. wrapped: ``<tool_call>`` stood before it."""
    function = _FUNCTION.match(text, at)
    if not function:
        raise Malformed("it has no <function=name>")
    name, at = function[1].strip(), function.end()
    schemas, arguments = schema_of(tools, name), {}
    while parameter := _PARAMETER.match(text, at):
        key, start = parameter[1].strip(), parameter.end()
        end = text.find(_VALUE_END, start)
        if end < 0:
            raise Malformed(f"parameter {bounded(key)} is not closed with {_VALUE_END}", name)
        value = text[start:end].removeprefix("\n").removesuffix("\n")
        arguments[key], at = _typed(value, schemas.get(key)), end + len(_VALUE_END)
    at = _closed(text, at, _FUNCTION_END, name)
    return ToolCall(bounded(name), arguments), _closed(text, at, _CALL_END, name) if wrapped else at


def _closed(text: str, at: int, tag: str, name: str) -> int:
    """Where ``tag`` ends, which has to come next."""
    rest = _SPACE.match(text, at).end()
    if not text.startswith(tag, rest):
        raise Malformed(f"it is not closed with {tag}", name)
    return rest + len(tag)


def _typed(text: str, schema: Any) -> Any:
    """The value that ``text`` is under a schema; the text itself where it is none, and the schema's check will tell."""
    types = _types(schema)
    if not types or types == {"string"}:
        return text
    try:
        value, end = read_json(text)
        if text[end:].strip():
            return text
    except Malformed:
        if text.strip() not in _SPELLINGS:
            return text
        value = _SPELLINGS[text.strip()]
    fits = any(isinstance(value, _TYPES.get(name, ())) for name in types)
    return value if fits and (not isinstance(value, bool) or "boolean" in types) else text


def _types(schema: Any) -> set[str]:
    """The types that a schema allows, as far as they are written down."""
    if not isinstance(schema, dict):
        return set()
    types = schema.get("type")
    found = {t for t in (types if isinstance(types, list) else [types]) if isinstance(t, str)}
    for choices in (schema.get("anyOf"), schema.get("oneOf")):
        found.update(*map(_types, choices if isinstance(choices, list) else ()))
    return found


def _render(call: ToolCall) -> str:
    if not _FUNCTION.fullmatch(f"<function={call.name}>"):
        raise ValueError(f"{call.name!r} cannot be written as a <function=…>")
    lines = ["<tool_call>", f"<function={call.name}>"]
    for key, value in (call.arguments or {}).items():
        text = value if isinstance(value, str) else write_json(value)
        if _VALUE_END in text or not _PARAMETER.fullmatch(f"<parameter={key}>") or key != key.strip():
            raise ValueError(f"argument {key!r} cannot be written as a <parameter=…>")
        lines += [f"<parameter={key}>", text, _VALUE_END]
    return "\n".join([*lines, _FUNCTION_END, _CALL_END])
