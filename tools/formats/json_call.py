"""Calls that are JSON objects: strict reading, and what the object has to hold."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from tools.base import ToolCall
from tools.formats.base import Malformed, bounded

_SPACE = re.compile(r"[ \t\n\r]*")


def read_json(text: str, at: int = 0) -> tuple[Any, int]:
    """(value, where it ends) of the JSON value at ``at``, white space before it skipped.

    Raises ``Malformed``, also for NaN, for infinity, and for what Python's reader gives up on.
    """
    at = _SPACE.match(text, at).end()
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise Malformed(f"it is not valid JSON ({error.msg} at character {error.pos - at})") from None
    except (ValueError, RecursionError) as error:  # integers of thousands of digits, bottomless nesting
        raise Malformed(f"it is not valid JSON ({str(error)[:100]})") from None


def write_json(value: Any) -> str:
    """As chat templates write JSON."""
    return json.dumps(value, ensure_ascii=False)


def call_from(value: Any, arguments_key: str = "arguments") -> ToolCall:
    """The call that ``{"name": …, arguments_key: {…}}`` states. Raises ``Malformed``."""
    if not isinstance(value, dict):
        raise Malformed("it is not a JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed('"name" is missing or not a string')
    arguments = value.get(arguments_key, {})
    if not isinstance(arguments, dict):
        raise Malformed(f'"{arguments_key}" is not a JSON object', name)
    return ToolCall(bounded(name), arguments)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    if math.isinf(value := float(number)):
        raise ValueError(f"{number[:20]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
