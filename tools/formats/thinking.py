"""Finds what is written outside of thinking: reasoning models plan calls there that they do not make."""

from __future__ import annotations

import re

#: How thinking opens → how it closes. The second pair is that of Mistral's reasoning models.
THINKING = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_OPENING = "|".join(map(re.escape, THINKING))


def outside_thinking(pattern: str) -> re.Pattern[str]:
    """Compile ``pattern`` for ``find``."""
    return re.compile(f"(?P<thinking>{_OPENING})|{pattern}", re.DOTALL)


def find(pattern: re.Pattern[str], text: str, at: int = 0) -> re.Match[str] | None:
    """The first match from ``at`` on that no thinking holds. pattern: of ``outside_thinking``.

    Thinking that is never closed goes on to the end. Read a call to its end before looking
    for the next, and a tag in one of its arguments opens nothing.
    """
    while (found := pattern.search(text, at)) and (opening := found["thinking"]):
        end = text.find(THINKING[opening], found.end())
        if end < 0:
            return None
        at = end + len(THINKING[opening])
    return found


_SPOKEN = outside_thinking(r"\S")


def after_thinking(text: str) -> int:
    """Where a turn begins to speak: after white space and thinking at its start."""
    found = find(_SPOKEN, text)
    return found.start() if found else len(text)


def unclosed_thinking(text: str) -> str | None:
    """What stands in thinking that is never closed; None where all of it is."""
    for opening, closing in THINKING.items():
        _, found, rest = text.rpartition(opening)
        if found and closing not in rest:
            return rest
    return None


def without_thinking(text: str) -> str:
    """The turn as far as it speaks, thinking that is never closed left out as well."""
    for opening, closing in THINKING.items():
        text = re.sub(f"{re.escape(opening)}.*?(?:{re.escape(closing)}|$)", "", text, flags=re.DOTALL)
    return text
