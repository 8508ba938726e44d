"""Where the learner's time went: seconds of each phase, a step and in all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from learner.dashboard.format import finite, share
from learner.report.figures import seconds_of

#: In the order in which a step goes through them; ``between`` is evaluations and checkpoints between two steps.
PHASES = ("wait", "update", "push", "between")

#: Parts of ``update`` that the engine times by itself: field → what it is.
UPDATE_PARTS = {
    "proximal_s": "proximal log-probs",
    "forward_s": "forward",
    "backward_s": "backward",
    "optimizer_s": "optimizer",
}

#: Bars of the timeline; more steps share one.
_BARS = 60


@dataclass(frozen=True)
class PhaseRow:
    """One line of the table: seconds a step on average, its share of the time, the longest."""

    name: str
    mean_s: float
    share: float
    longest_s: float
    part: bool = False


def phases(steps: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Seconds of each of ``PHASES`` for each step.

    What lies between the ends of two steps and is not the second one's own time was
    spent on an evaluation or a checkpoint.
    """
    out, ended = [], None
    for record in steps:
        spent = {name: seconds_of(record, name) for name in ("wait", "update", "push")}
        now, whole = finite(record.get("time_s")), seconds_of(record, "step")
        gap = now - ended - whole if now is not None and ended is not None else 0.0
        # Below a tenth of a second it is the writing of records.
        out.append(spent | {"between": gap if gap > 0.1 else 0.0})
        ended = now
    return out


def bars(steps: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """([{first, last, wait, update, push, between}], steps a bar): mean seconds a step, for the chart."""
    spent = phases(steps)
    size = max(1, math.ceil(len(steps) / _BARS))
    out = []
    for start in range(0, len(steps), size):
        members = spent[start : start + size]
        ends = steps[start], steps[min(start + size, len(steps)) - 1]
        means = {name: sum(row[name] for row in members) / len(members) for name in PHASES}
        out.append({"first": ends[0].get("step"), "last": ends[1].get("step"), **means})
    return out, size


def table(steps: list[dict[str, Any]]) -> list[PhaseRow]:
    """Phases and, under ``update``, its parts."""
    spent = phases(steps)
    total = sum(sum(row.values()) for row in spent)
    if not total:
        return []
    rows = []
    for name in PHASES:
        values = [row[name] for row in spent]
        rows.append(_row(name, values, total))
        if name == "update":
            for field, label in UPDATE_PARTS.items():
                found = [finite(record.get(field)) or 0.0 for record in steps]
                if any(found):
                    rows.append(_row(label, found, total, part=True))
    return rows


def verdict(steps: list[dict[str, Any]]) -> str:
    """The sentence that a person wants first: what limited the run."""
    shares = {row.name: row.share for row in table(steps) if not row.part}
    if not shares:
        return "No step was finished."
    if shares["wait"] > 0.5:
        return f"Generation limited this run: the learner waited for episodes {share(shares['wait'])} of the time."
    if shares["push"] > 0.25:
        return f"Weight pushes took {share(shares['push'])} of the time; staleness of 1 or more would hide them."
    if shares["update"] > 0.5:
        return f"The learner set the pace: updates took {share(shares['update'])} of the time."
    return (
        f"Balanced: updates took {share(shares['update'])} of the time, waiting for episodes {share(shares['wait'])}."
    )


def _row(name: str, values: list[float], total: float, part: bool = False) -> PhaseRow:
    return PhaseRow(name, sum(values) / len(values), sum(values) / total, max(values), part)
