"""Says in words who waits for what, and for how long, when nothing moves. Knows no clock, thread or socket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

log = logging.getLogger("rollway.watchdog")

#: The learner waits for others in these phases, for what is named here; in all others it works by itself.
AWAITED = {"wait": "no group", "eval": "no evaluation episode", "push": "no push is through"}
#: Phases in which nothing is to be told.
_SILENT = ("", "start", "done")
#: Own work may take this many times as long as it ever did before it is told: a large model's update takes minutes.
_LONGER = 2.0
#: Servers that are named one by one; of more, the rest is counted.
_NAMED = 4


class Watchdog:
    """``message`` is what is to be shown now, empty while things move.

    limit_s: seconds without a group, an episode or the end of a phase after which it speaks,
    in the log at that moment and each time the silence has doubled.
    """

    def __init__(self, limit_s: float) -> None:
        self.message = ""
        self._limit = limit_s
        self._mark: tuple[str, Hashable] = ("", None)
        self._since, self._tokens = 0.0, 0
        self._due = limit_s
        self._longest: dict[str, float] = {}  # phase of own work → the longest so far, seconds

    def look(self, now: float, phase: str, mark: Hashable, tokens: int, facts: Callable[[], str]) -> None:
        """Call it about once a second.

        mark: changes whenever something moves. tokens: sampled so far, by all actors.
        facts: who holds what, asked for only when there is something to tell.
        """
        quiet = now - self._since
        here = (phase, mark if phase in AWAITED else None)  # what arrives meanwhile says nothing about own work
        if here != self._mark:
            self._moved(now, quiet, here, tokens)
            return
        due = quiet >= self._due and phase not in _SILENT
        if due or self.message:
            self.message = _sentence(phase, quiet, max(0, tokens - self._tokens), facts())
        if due:
            log.warning("%s", self.message)
            self._due = 2 * quiet

    def _moved(self, now: float, quiet: float, here: tuple[str, Hashable], tokens: int) -> None:
        before, phase = self._mark[0], here[0]
        if before not in AWAITED:
            self._longest[before] = max(quiet, self._longest.get(before, 0.0))
        if self.message:
            log.info("it goes on after %.0f s", quiet)
        self.message, self._mark, self._since, self._tokens = "", here, now, tokens
        self._due = self._limit if phase in AWAITED else max(self._limit, _LONGER * self._longest.get(phase, 0.0))


def _sentence(phase: str, quiet: float, tokens: int, facts: str) -> str:
    if phase in AWAITED:
        return f"{AWAITED[phase]} for {quiet:.0f} s, {tokens or 'no'} tokens sampled meanwhile: {facts}"
    return f"the learner has been in its {phase} for {quiet:.0f} s"


def describe_servers(rows: Sequence[Mapping[str, Any]]) -> str:
    """The servers that are not well, each with its trouble; else how busy they are. rows: as the monitor publishes."""
    if not rows:
        return "nothing known about the servers yet"
    ill = [
        f"server {row['url']}: {row.get('error') or row['state']}"
        for row in rows
        if row.get("error") or row["state"] != "current"
    ]
    if ill:
        more = [f"{len(ill) - _NAMED} more servers like that"] if len(ill) > _NAMED else []
        return ", ".join(ill[:_NAMED] + more)
    running, waiting = (sum(row.get(key) or 0 for row in rows) for key in ("running", "waiting"))
    return f"{len(rows)} servers answer, {running:.0f} requests running and {waiting:.0f} waiting"
