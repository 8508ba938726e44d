"""Python-call style (Llama 3.2 and 4, LFM2): ``[search(query="Blind Castle"), add(a=1, b=2)]``.

The text is parsed and looked at, never run.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Sequence
from typing import Any

from tools.base import Tool, ToolCall
from tools.formats.base import Malformed, ToolFormat, bounded
from tools.formats.thinking import after_thinking, find, outside_thinking

#: LFM2's and Llama 4's tags around the list; other models write the list alone.
_TAG = outside_thinking(r"<\|tool_call_start\|>|<\|python_start\|>")
_TAG_END = re.compile(r"<\|tool_call_end\|>|<\|python_end\|>")
_BARE = re.compile(r"\[\s*[^\W\d][\w.]*\s*\(")
#: JSON's words, which templates write for values within an object.
_JSON_WORDS = {"true": True, "false": False, "null": None}
#: Longer than any call: odd texts of this length already keep Python's parser busy for tenths of a second.
_MAX_CHARS = 32_000


class Pythonic(ToolFormat):
    name = "pythonic"
    expected = "Write [name(argument=value, ...)] with plain values only."
    turn_ends = ("<|eom_id|>", "<|eom|>")

    def render(self, calls: Sequence[ToolCall]) -> str:
        return f"[{', '.join(_render(call) for call in calls)}]"

    def _start(self, text: str) -> int | None:
        if _BARE.match(text, bare := after_thinking(text)):
            return bare
        return tag.start() if (tag := find(_TAG, text)) else None

    def _read(self, text: str, tools: Sequence[Tool], cut: bool) -> list[ToolCall]:
        if _BARE.match(text, start := after_thinking(text)):
            return self._list(text[start : text.rfind("]") + 1 or len(text)], cut)
        calls, at = [], 0
        while tag := find(_TAG, text, at):
            closing = _TAG_END.search(text, tag.end())
            end, at = (closing.start(), closing.end()) if closing else (len(text), len(text))
            calls += self._list(text[tag.end() : end], cut and not closing)
        return calls

    def _list(self, source: str, cut: bool) -> list[ToolCall]:
        try:
            nodes = _nodes(source.strip())
        except Malformed as error:
            return [] if cut else [self._problem(error)]
        calls = []
        for node in nodes:
            try:
                calls.append(_call(node))
            except Malformed as error:
                calls.append(self._problem(error))
        return calls


def _nodes(source: str) -> list[ast.expr]:
    """The elements of the list that ``source`` is."""
    if len(source) > _MAX_CHARS:
        raise Malformed(f"it has more than {_MAX_CHARS} characters")
    try:
        parsed = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise Malformed(
            f"it is not valid Python ({error.msg}, line {error.lineno}, character {error.offset})"
        ) from None
    except (RecursionError, MemoryError):  # the parser's way to say that its stack is full
        raise Malformed("it is nested too deeply") from None
    except ValueError as error:  # null bytes, integers of thousands of digits
        raise Malformed(f"it is not valid Python ({str(error)[:100]})") from None
    if not isinstance(parsed, ast.List) or not parsed.elts:
        raise Malformed("it is not a list of calls")
    return parsed.elts


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise Malformed("an element of the list is not a call")
    name = _name(node.func)
    if node.args or any(word.arg is None for word in node.keywords):
        raise Malformed("arguments are given by name only", name)
    try:
        return ToolCall(bounded(name), {word.arg: _value(word.value) for word in node.keywords})
    except RecursionError:
        raise Malformed("it is nested too deeply", name) from None
    except Malformed as error:
        raise Malformed(str(error), name) from None


def _name(node: ast.expr) -> str:
    """``tool`` or ``module.tool``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise Malformed("what is called is not a name")
    return ".".join([node.id, *reversed(parts)])


def _value(node: ast.expr) -> Any:
    """A plain value: what JSON has too."""
    match node:
        case ast.Constant(value=str() | bool() | int() | None):
            return node.value
        case ast.Constant(value=float()) if math.isfinite(node.value):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            value = _value(node.operand)
            if not isinstance(value, bool):
                return -value
        case ast.List() | ast.Tuple():
            return [_value(element) for element in node.elts]
        case ast.Dict():
            keys = [_value(key) if key else None for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return dict(zip(keys, map(_value, node.values), strict=True))
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
    raise Malformed("an argument is not a plain value (text, number, True, False, None, list, dict)")


def _render(call: ToolCall) -> str:
    arguments = call.arguments or {}
    for name in (*call.name.split("."), *arguments):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{name!r} cannot be written as a name in Python")
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
