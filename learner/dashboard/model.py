"""What the snapshot says: tolerant access to its parts, and the conclusions drawn from them.

Any key may be missing, late or of the wrong type (start-up, another version of the
learner); nothing in here raises for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from .format import clean, finite

#: Steps that "now" means in rates and shares.
RECENT = 8


class Snapshot:
    """One status of the learner, read-only."""

    def __init__(self, raw: dict[str, Any] | None):
        raw = raw if isinstance(raw, dict) else {}
        self.run: dict[str, Any] = _dict(raw.get("run"))
        self.history = dicts(raw.get("history"))
        self.evals = [row for row in dicts(raw.get("evals")) if isinstance(row.get("dataset"), str)]
        self.queue: dict[str, Any] = _dict(raw.get("queue"))
        self.actors = dicts(raw.get("actors"))
        self.servers = dicts(raw.get("servers"))
        self.latest: dict[str, Any] = _dict(raw.get("latest"))

    @property
    def phase(self) -> str:
        return clean(self.run.get("phase") or "start")

    @cached_property
    def now(self) -> float:
        """The learner's clock where it is sent, else ours."""
        now = finite(self.run.get("now"))
        return time.time() if now is None else now

    @cached_property
    def phase_age(self) -> float | None:
        since = finite(self.run.get("phase_since"))
        return None if since is None else max(0.0, self.now - since)

    @cached_property
    def elapsed(self) -> float | None:
        start = finite(self.run.get("started_at"))
        return None if start is None else max(0.0, self.now - start)

    @cached_property
    def eta(self) -> float | None:
        """Seconds left, from the recent steps."""
        step, steps = finite(self.run.get("step")), finite(self.run.get("steps"))
        pace = self.recent("seconds", "step")
        return None if step is None or steps is None or pace is None else max(0.0, steps - step) * pace

    def recent(self, *path: str) -> float | None:
        """Mean of a field over the last ``RECENT`` steps that have it."""
        values = [v for _, v in points(self.history[-RECENT:], *path)]
        return sum(values) / len(values) if values else None

    def last(self, *path: str) -> Any:
        """A field of the newest step."""
        return dig(self.history[-1], *path) if self.history else None

    @cached_property
    def trained(self) -> list[str]:
        """Data sets that are trained on (in domain), in order of appearance."""
        return unique(name for record in self.history for name in _dict(record.get("em")))

    @cached_property
    def datasets(self) -> list[str]:
        """All data sets, those trained on first."""
        return unique([*self.trained, *(e["dataset"] for e in self.evals)])

    @cached_property
    def baselines(self) -> list[str]:
        return unique(str(e["baseline"]) for e in self.evals if e.get("baseline"))

    def eval_points(self, dataset: str, baseline: str | None = None) -> tuple[tuple[float, float], ...]:
        """(version, EM) of the evaluations of one data set, by version."""
        found = {}
        for e in self.evals:
            version, em = finite(e.get("version")) or 0.0, finite(e.get("em"))
            if e["dataset"] == dataset and (e.get("baseline") or None) == baseline and em is not None:
                found[version] = em
        return tuple(sorted(found.items()))

    def mean_em(self, baseline: str | None = None, first: bool = False) -> float | None:
        """EM averaged over the data sets that are trained on: the newest evaluation, or the first."""
        names = self.trained or self.datasets
        found = [pts[0 if first else -1][1] for name in names if (pts := self.eval_points(name, baseline))]
        return sum(found) / len(found) if found and len(found) == len(names) else None

    @cached_property
    def time_shares(self) -> dict[str, float]:
        """Shares of the recent steps' wall-clock time: update, wait, push."""
        spent = {name: self.recent("seconds", name) or 0.0 for name in ("update", "wait", "push")}
        total = sum(spent.values())
        return {name: value / total for name, value in spent.items()} if total > 0 else {}

    def total(self, rows: Iterable[dict[str, Any]], *path: str) -> float | None:
        values = [v for row in rows if (v := finite(dig(row, *path))) is not None]
        return sum(values) if values else None

    @cached_property
    def trained_per_s(self) -> float | None:
        """Episodes a second that the recent steps trained on."""
        episodes, pace = self.recent("episodes"), self.recent("seconds", "step")
        return episodes / pace if episodes is not None and pace else None

    @cached_property
    def under_way(self) -> float:
        """Groups leased, ready and in training."""
        return sum(finite(self.queue.get(key)) or 0.0 for key in ("leased", "waiting", "taken"))

    @cached_property
    def queue_fill(self) -> float | None:
        """Share of what the staleness bound admits that is under way."""
        capacity = finite(self.queue.get("capacity"))
        return self.under_way / capacity if capacity else None

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """One row a tool over all actors: calls and faults summed, p50 weighted by calls, worst p99."""
        return self._over_actors("tools", "calls")

    @cached_property
    def servers_seen(self) -> dict[str, dict[str, Any]]:
        """What the actors measured of each server, by URL: requests, p50, p99 in seconds."""
        return {row["name"]: row for row in self._over_actors("servers", "requests")}

    def _over_actors(self, section: str, counted: str) -> list[dict[str, Any]]:
        """Rows of ``stats[section]`` added over the actors, the busiest first."""
        merged: dict[str, dict[str, float]] = {}
        for actor in self.actors:
            for name, row in _dict(dig(actor, "stats", section)).items():
                into = merged.setdefault(clean(name), {counted: 0.0, "faults": 0.0, "weighted": 0.0, "p99": 0.0})
                n = finite(dig(row, counted)) or 0.0
                into[counted] += n
                into["faults"] += finite(dig(row, "faults")) or 0.0
                into["weighted"] += n * (finite(dig(row, "p50")) or 0.0)
                into["p99"] = max(into["p99"], finite(dig(row, "p99")) or 0.0)
        return [
            {"name": name, "p50": row["weighted"] / row[counted] if row[counted] else None, **row}
            for name, row in sorted(merged.items(), key=lambda item: -item[1][counted])
        ]

    @cached_property
    def faults(self) -> dict[str, int]:
        """Faults by kind over all actors, the most frequent first."""
        kinds: dict[str, int] = {}
        for actor in self.actors:
            for kind, n in _dict(dig(actor, "stats", "faults")).items():
                kinds[clean(kind)] = kinds.get(clean(kind), 0) + int(finite(n) or 0)
        return dict(sorted(((k, n) for k, n in kinds.items() if n), key=lambda item: -item[1]))


def points(records: Iterable[dict[str, Any]], *path: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of the records that have the field as a finite number."""
    out = []
    for record in records:
        step, value = finite(record.get("step")), finite(dig(record, *path))
        if step is not None and value is not None:
            out.append((step, value))
    return tuple(out)


def dig(row: Any, *path: str) -> Any:
    for key in path:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def smoothing_window(steps: int) -> int:
    """Steps that the smooth curve averages: a twentieth of the run so far."""
    return max(1, math.ceil(steps / 20))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def dicts(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, (list, tuple)) else []
