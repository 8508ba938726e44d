"""What the records come to: intervals, smoothing, scores before and after. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from learner.dashboard.format import finite

#: 97.5 % quantile of the normal distribution: two-sided intervals of 95 %.
_Z = 1.959964

#: Points that a curve is thinned to; more than a screen has pixels to tell apart.
CURVE_POINTS = 480

Point = tuple[float, float]


def wilson(score: float, n: int) -> tuple[float, float]:
    """95 % interval of a share ``score`` of ``n`` questions (Wilson 1927): sound at 0 and 1 and for small n.

    (0, 1) where n is 0.
    """
    if n <= 0:
        return 0.0, 1.0
    centre = (score + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(max(0.0, score * (1 - score)) / n + _Z**2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def series(records: Iterable[dict[str, Any]], *path: str) -> list[Point]:
    """(step, value) of every record that has a finite number there."""
    out = []
    for record in records:
        value: Any = record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        step, number = finite(record.get("step")), finite(value)
        if step is not None and number is not None:
            out.append((step, number))
    return out


def smooth(points: Sequence[Point]) -> list[Point]:
    """Centred moving average over a twentieth of the run; the window shrinks at the ends."""
    half = len(points) // 40
    if half == 0:
        return list(points)
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    out = []
    for i, (x, _) in enumerate(points):
        reach = min(half, i, len(points) - 1 - i)
        out.append((x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
    return out


def thin(points: Sequence[Point], limit: int = CURVE_POINTS) -> list[Point]:
    """At most ``limit`` points and the last one: of each stretch its lowest and highest, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(2 * len(points) / limit)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def datasets(evals: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(row.get("dataset")) for row in evals))


def scores(evals: list[dict[str, Any]], dataset: str) -> list[dict[str, Any]]:
    """{step, em, low, high, n, f1} of the evaluations of a data set, in order."""
    out = []
    for row in evals:
        em, n = finite(row.get("em")), int(finite(row.get("n")) or 0)
        if str(row.get("dataset")) == dataset and em is not None:
            low, high = wilson(em, n)
            step = finite(row.get("version")) or 0.0
            out.append({"step": step, "em": em, "low": low, "high": high, "n": n, "f1": finite(row.get("f1"))})
    return out


def weighted(records: Iterable[dict[str, Any]], value: str, weight: str) -> float | None:
    """Mean of ``value`` weighted by ``weight``; None where nothing was measured."""
    total = amount = 0.0
    for record in records:
        x, w = finite(record.get(value)), finite(record.get(weight))
        if x is not None and w:
            total, amount = total + x * w, amount + w
    return total / amount if amount else None


def seconds_of(record: dict[str, Any], phase: str) -> float:
    spent = record.get("seconds")
    return finite(spent.get(phase)) or 0.0 if isinstance(spent, dict) else 0.0
