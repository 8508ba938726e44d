"""Hermes-format tool calls: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several a turn."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tools.base import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_EXPECTED = f'Write {OPEN}{{"name": "...", "arguments": {{...}}}}{CLOSE}.'
_MAX_NAME = 64


def parse_tool_calls(text: str, cut: bool = False) -> list[ToolCall]:
    """Every call of one turn, in order. Pure, and total: no text makes it raise.

    A block that cannot be read becomes a ``ToolCall`` whose ``problem`` says what is
    wrong, in words for the model.

    cut: the turn was ended by a token limit. A last block without its closing tag is
        then not a call at all, since the model never got to finish it.
    """
    calls = []
    blocks = text.split(OPEN)[1:]
    for i, block in enumerate(blocks):
        body, closed, _ = block.partition(CLOSE)
        if closed:
            calls.append(_parse_body(body))
        elif not (cut and i == len(blocks) - 1):
            calls.append(_problem(f"the block is not closed with {CLOSE}"))
    return calls


def _parse_body(body: str) -> ToolCall:
    try:
        call = json.loads(body, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return _problem(f"the block is not valid JSON ({error.msg} at character {error.pos})")
    except (ValueError, RecursionError) as error:  # NaN, integers of thousands of digits, bottomless nesting
        return _problem(f"the block is not valid JSON ({str(error)[:100]})")
    if not isinstance(call, dict):
        return _problem("the block is not a JSON object")
    name = call.get("name")
    if not isinstance(name, str) or not name:
        return _problem('"name" is missing or not a string')
    # Names end up in messages and headers: bounded, and free of lone surrogates, which JSON can smuggle in.
    name = name[:_MAX_NAME].encode("utf-8", "replace").decode()
    arguments: Any = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return _problem('"arguments" is not a JSON object', name)
    return ToolCall(name=name, arguments=arguments)


def _problem(what: str, name: str = "") -> ToolCall:
    return ToolCall(name=name, arguments=None, problem=f"malformed tool call: {what}. {_EXPECTED}")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
