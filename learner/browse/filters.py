"""``reward<0.5 dataset:hotpot fault:timeout moon`` → a predicate on episodes. All words must hold."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable
from typing import Any

from learner.dashboard.format import finite

Episode = dict[str, Any]
Predicate = Callable[[Episode], bool]

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}

_WORD = re.compile(r"^(?P<field>[A-Za-z_][\w]*)(?P<op><=|>=|<|>|=|:)(?P<value>.+)$")

#: Field → the numbers that an episode has for it; one of them must hold.
NUMBERS: dict[str, Callable[[Episode], list[Any]]] = {
    "reward": lambda e: [e.get("reward")],
    "step": lambda e: [e.get("step")],
    "version": lambda e: sorted(set(e.get("token_versions") or [])),
    "turns": lambda e: [e.get("turns")],
    "length": lambda e: [e.get("tokens")],
    "sampled": lambda e: [e.get("sampled")],
    "faults": lambda e: [len(fault_names(e))],
}

#: Field → the texts that an episode has for it; one of them must contain the value.
TEXTS: dict[str, Callable[[Episode], list[Any]]] = {
    "task": lambda e: [e.get("task_id")],
    "dataset": lambda e: [e.get("dataset")],
    "kind": lambda e: [e.get("kind")],
    "finish": lambda e: [e.get("finish")],
    "group": lambda e: [e.get("group")],
    "fault": lambda e: fault_names(e),
    "tool": lambda e: [c.get("name") for c in e.get("tool_calls") or []],
    "text": lambda e: [s.get("text") for s in e.get("segments") or []],
}

#: Metrics that most environments report; any other is found by ``metric_NAME``.
METRICS = ("em", "f1", "sub_em")


class FilterError(ValueError):
    """The word cannot be understood; the text says what can."""


def parse(query: str) -> Predicate:
    """An empty query keeps everything. A word without an operator is looked for in the text. Raises ``FilterError``."""
    tests = [_test(word) for word in query.split()]
    return lambda episode: all(test(episode) for test in tests)


def fault_names(episode: Episode) -> list[str]:
    return [str(call["fault"]) for call in episode.get("tool_calls") or [] if call.get("fault")]


def _test(word: str) -> Predicate:
    found = _WORD.match(word)
    if not found:
        return _contains(TEXTS["text"], word)
    field, op, value = found["field"].lower(), found["op"], found["value"]
    if field in TEXTS:
        if op not in (":", "="):
            raise FilterError(f"{word!r}: {field} is text; write {field}:{value}")
        return _contains(TEXTS[field], value)
    if (numbers := _numbers(field)) is None:
        known = [*NUMBERS, *METRICS, *TEXTS]
        close = difflib.get_close_matches(field, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)} and metric_NAME"
        raise FilterError(f"{word!r}: no field {field!r}; {hint}")
    try:
        bound = float(value)
    except ValueError:
        raise FilterError(f"{word!r}: {field} is a number; write {field}>0.5") from None
    compare = _OPERATORS["=" if op == ":" else op]
    return lambda episode: any(compare(n, bound) for raw in numbers(episode) if (n := finite(raw)) is not None)


def _numbers(field: str) -> Callable[[Episode], list[Any]] | None:
    if field in NUMBERS:
        return NUMBERS[field]
    name = field if field in METRICS else field.removeprefix("metric_") if field.startswith("metric_") else None
    return (lambda episode: [(episode.get("metrics") or {}).get(name)]) if name else None


def _contains(texts: Callable[[Episode], list[Any]], value: str) -> Predicate:
    wanted = value.lower()
    return lambda episode: any(wanted in str(text).lower() for text in texts(episode) if text is not None)
