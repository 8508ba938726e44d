"""The dashboards that look at this run, and what each of them has been shown: links may be slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Seconds since its last question for which a dashboard counts as watching.
WATCHING_S = 5.0

#: Records of steps in one answer; a dashboard that lacks more asks again.
PAGE = 64

#: Sections that change once a step or less: sent when they did.
_SLOW = ("evals", "latest")


@dataclass(slots=True)
class _Watcher:
    asked: float
    since_step: int
    shown: dict[str, Any] = field(default_factory=dict)


class Watchers:
    """Of more than ``limit`` dashboards, those that asked last are remembered.

    An identity is one connection: a dashboard that missed an answer comes back with another.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._known: dict[bytes, _Watcher] = {}

    def asked(self, identity: bytes, since_step: int, now: float) -> None:
        known = self._known.pop(identity, None) or _Watcher(now, since_step)
        known.asked, known.since_step = now, since_step
        self._known[identity] = known
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]

    def news(self, identity: bytes, snapshot: dict[str, Any]) -> dict[str, Any]:
        """The part of a snapshot that this dashboard lacks; ``history`` has ``PAGE`` records at most, oldest first."""
        shown = self._known[identity].shown
        # A section that was published anew is another object: no need to compare what is in it.
        old = [name for name in _SLOW if name in shown and shown[name] is snapshot[name]]
        shown.update({name: snapshot[name] for name in _SLOW})
        news = {name: section for name, section in snapshot.items() if name not in old}
        return news | {"history": snapshot["history"][:PAGE]}

    def present(self, now: float) -> list[tuple[bytes, int]]:
        """(identity, the step from which on it wants the history) of those that watch."""
        return [(name, known.since_step) for name, known in self._known.items() if now - known.asked < WATCHING_S]
