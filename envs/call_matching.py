"""Are these the calls that were expected? The rules of BFCL, on JSON values.

An expected call is {"name": str, "possible_args": {argument: [accepted values]}}; "" among the accepted
values means that the argument may be left out. Values are compared as in the AST checker of the Berkeley
Function-Calling Leaderboard (Patil et al. 2025), with numbers as JSON has them: 10 and 10.0 are one number.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from tools.base import ToolCall

#: What BFCL does not look at in strings, besides upper and lower case and the kind of quotes.
_IGNORED = str.maketrans({**dict.fromkeys(" ,./-_*^", None), "'": '"'})


def count_matched(calls: Sequence[ToolCall], expected: Sequence[Mapping[str, Any]]) -> int:
    """The most pairs of a call and an expected call that fit, each used once; the order does not matter."""
    fits = [
        [i for i, call in enumerate(calls) if call.name == want["name"] and accepts(want["possible_args"], call)]
        for want in expected
    ]
    owner: dict[int, int] = {}  # call → expected call

    def place(want: int, tried: set[int]) -> bool:
        """An augmenting path: a call that suits several may have to change hands (Kuhn 1955)."""
        for call in fits[want]:
            if call not in tried:
                tried.add(call)
                if call not in owner or place(owner[call], tried):
                    owner[call] = want
                    return True
        return False

    return sum(place(want, set()) for want in range(len(expected)))


def accepts(accepted: Mapping[str, Any], call: ToolCall) -> bool:
    """Every argument has an accepted value, none is unexpected, and only those are missing that may be."""
    return call.arguments is not None and _accepts(accepted, call.arguments)


def reference_arguments(accepted: Mapping[str, Any], required: Container[str] = ()) -> dict[str, Any]:
    """One set of arguments that is accepted: the first value of each, without those that may be left out.

    required: arguments that are given all the same.
    """
    return {
        name: _reference(next((value for value in _alternatives(values) if value != ""), ""))
        for name, values in accepted.items()
        if "" not in _alternatives(values) or name in required
    }


def _accepts(accepted: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    return arguments.keys() <= accepted.keys() and all(
        any(_same(arguments[name], value) for value in _alternatives(values))
        if name in arguments
        else "" in _alternatives(values)
        for name, values in accepted.items()
    )


def _same(value: Any, accepted: Any) -> bool:
    match accepted:
        case dict():  # its values are lists of alternatives again
            return isinstance(value, dict) and _accepts(accepted, value)
        case list():
            return isinstance(value, list) and len(value) == len(accepted) and all(map(_same, value, accepted))
        case str():
            return isinstance(value, str) and _standard(value) == _standard(accepted)
        case bool() | None:
            return value is accepted
    return isinstance(value, int | float) and not isinstance(value, bool) and value == accepted


def _reference(value: Any) -> Any:
    if isinstance(value, dict):
        return reference_arguments(value)
    return [_reference(item) for item in value] if isinstance(value, list) else value


def _alternatives(values: Any) -> list[Any]:
    """Inside objects, some rows have one plain value where a list of alternatives belongs."""
    return values if isinstance(values, list) else [values]


def _standard(text: str) -> str:
    return text.lower().translate(_IGNORED)
