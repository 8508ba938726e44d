"""What the snapshot says: tolerant access to its parts, and the conclusions drawn from them.

Any key may be missing, late or of the wrong type (start-up, another version of the
learner); nothing in here raises for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .format import clean, compact, finite, seconds, share

#: Steps that "now" means in rates and shares.
RECENT = 8

_BUSY_WAIT = 0.15
_BUSY_PUSH = 0.25


@dataclass(frozen=True)
class Bottleneck:
    """``stage`` of the pipeline (actors, servers, queue, learner; "" for none) and a sentence."""

    stage: str
    sentence: str
    severity: str = "note"


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
        """Shares of the recent steps' wall-clock time: wait, update, push, eval."""
        spent = {name: self.recent("seconds", name) or 0.0 for name in ("update", "wait", "push", "eval")}
        total = sum(spent.values())
        return {name: value / total for name, value in spent.items()} if total > 0 else {}

    def total(self, rows: Iterable[dict[str, Any]], *path: str) -> float | None:
        values = [v for row in rows if (v := finite(dig(row, *path))) is not None]
        return sum(values) if values else None

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
        merged: dict[str, dict[str, float]] = {}
        for actor in self.actors:
            for name, row in _dict(dig(actor, "stats", "tools")).items():
                into = merged.setdefault(clean(name), {"calls": 0.0, "faults": 0.0, "weighted": 0.0, "p99": 0.0})
                calls = finite(dig(row, "calls")) or 0.0
                into["calls"] += calls
                into["faults"] += finite(dig(row, "faults")) or 0.0
                into["weighted"] += calls * (finite(dig(row, "p50")) or 0.0)
                into["p99"] = max(into["p99"], finite(dig(row, "p99")) or 0.0)
        return [
            {"name": name, "p50": row["weighted"] / row["calls"] if row["calls"] else None, **row}
            for name, row in sorted(merged.items(), key=lambda item: -item[1]["calls"])
        ]

    @cached_property
    def faults(self) -> dict[str, int]:
        """Faults by kind over all actors, the most frequent first."""
        kinds: dict[str, int] = {}
        for actor in self.actors:
            for kind, n in _dict(dig(actor, "stats", "faults")).items():
                kinds[clean(kind)] = kinds.get(clean(kind), 0) + int(finite(n) or 0)
        return dict(sorted(((k, n) for k, n in kinds.items() if n), key=lambda item: -item[1]))

    @cached_property
    def bottleneck(self) -> Bottleneck:
        return bottleneck(self)


def bottleneck(s: Snapshot) -> Bottleneck:
    """Name the stage that limits the run, from the learner's time and the state of the others."""
    if s.phase in ("start", "done", "eval"):
        start = f"starting: {clean(s.run.get('message') or 'the learner comes up')}"
        notes = {"start": start, "done": "the run is over", "eval": "evaluation: training waits"}
        return Bottleneck("", notes[s.phase])
    if not s.actors:
        return Bottleneck("actors", "no actor is connected: start one with run.py --role actor", "bad")
    current = [row for row in s.servers if row.get("state") == "current"]
    if s.servers and not current:
        updating = any(row.get("state") == "updating" for row in s.servers)
        note = "weights are on their way" if updating else "no server has the current weights"
        return Bottleneck("servers", f"generation pauses: {note}", "note" if updating else "bad")
    shares = s.time_shares
    waiting_now = s.phase == "wait" and (s.phase_age or 0.0) > max(5.0, 0.5 * (s.recent("seconds", "step") or 0.0))
    if waiting_now or shares.get("wait", 0.0) >= _BUSY_WAIT:
        stage, why = _starved(s, current)
        spent = seconds(s.phase_age) if waiting_now else share(shares.get("wait"))
        return Bottleneck(stage, f"the learner waits for episodes: {why} ({spent})", "warn")
    if shares.get("push", 0.0) >= _BUSY_PUSH:
        return Bottleneck("learner", f"pushing weights takes {share(shares['push'])} of the time", "warn")
    if not shares:
        return Bottleneck("", "the first batch is being made")
    ready = compact(s.queue.get("waiting"))
    return Bottleneck(
        "learner", f"the learner sets the pace: {ready} groups are ready ({share(shares['update'])} busy)"
    )


def _starved(s: Snapshot, servers: list[dict[str, Any]]) -> tuple[str, str]:
    """Why too few episodes arrive: (stage, reason)."""
    running, waiting = s.total(servers, "running"), s.total(servers, "waiting") or 0.0
    flight = s.total(s.actors, "stats", "in_flight")
    kv = max((finite(row.get("kv_usage")) or 0.0 for row in servers), default=0.0)
    if waiting > 0 or kv > 0.95:
        detail = f", {compact(waiting)} waiting" if waiting else f", KV cache {share(kv)} full"
        return "servers", f"server saturated, {compact(running)} running{detail}"
    if running is not None and flight and running < 0.5 * flight:
        worst = max(s.tools, key=lambda row: row["p99"], default=None)
        detail = f" ({worst['name']} p99 {seconds(worst['p99'])})" if worst else ""
        return "actors", f"{compact(flight - running)} of {compact(flight)} episodes are in tool calls{detail}"
    if s.queue_fill is not None and s.queue_fill >= 1:
        return "servers", f"server saturated, {compact(running)} running; the staleness bound admits no more work"
    capacity, held = s.total(s.actors, "capacity"), s.total(s.actors, "held")
    if capacity and held is not None and held >= capacity:
        return "actors", f"every actor is full ({compact(held)} leases): start more, or raise actor.leases"
    return "servers", f"{compact(running)} running, none waiting"


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
