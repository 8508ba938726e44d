"""The dashboard where there is no terminal: one log line a step, an evaluation or an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .diagnosis import bottleneck
from .format import clean, clock, compact, count, finite, score, seconds, small
from .model import Snapshot, dig
from .tools import meaning

#: Counters of the queue that are worth a line whenever they grow.
_COUNTED = {
    "stale_dropped": "groups dropped as too stale (their tasks are issued again)",
    "lost": "tasks lost",
    "duplicates": "groups delivered twice (counted once)",
    "failed": "groups failed (their tasks are issued again)",
    "rejected_frames": "messages rejected",
}


def plain_lines(prev_snapshot: dict[str, Any] | None, snapshot: dict[str, Any]) -> list[str]:
    """What happened between two snapshots (``None``: everything so far), oldest first."""
    old, new = Snapshot(prev_snapshot), Snapshot(snapshot)
    lines = _events(old, new) + _evals(old, new) + _steps(old, new)
    if new.phase == "done" and old.phase != "done":
        lines.append(f"done: {clean(new.run.get('message') or 'the run is over')}")
    return [f"[{clock(new.elapsed)}] {line}" for line in lines]


def progress_line(snapshot: dict[str, Any]) -> str:
    """What takes so long that nothing has happened for a while, and how far it is."""
    s = Snapshot(snapshot)
    if s.phase in ("start", "eval", "done"):
        return f"[{clock(s.elapsed)}] {bottleneck(s).sentence}"
    step = f"step {count((finite(s.run.get('step')) or 0) + 1)}/{count(s.run.get('steps'))}"
    return f"[{clock(s.elapsed)}] {step}: {s.phase} for {seconds(s.phase_age)} · {bottleneck(s).sentence}"


def _steps(old: Snapshot, new: Snapshot) -> list[str]:
    seen = {finite(record.get("step")) for record in old.history}
    return [step_line(record, new) for record in new.history if finite(record.get("step")) not in seen]


def step_line(record: dict[str, Any], s: Snapshot) -> str:
    em = record.get("em")
    scores = " ".join(f"{clean(name)} {score(value)}" for name, value in em.items()) if isinstance(em, dict) else ""
    parts = [
        f"step {count(record.get('step'))}/{count(s.run.get('steps'))}",
        f"reward {score(record.get('reward'))}",
        f"em {scores or score(None)}",
        f"staleness {score(record.get('staleness_mean'))} max {compact(record.get('staleness_max'))}",
        f"entropy {small(record.get('entropy'))}",
        f"grad {small(record.get('grad_norm'))}",
        f"{compact(record.get('tokens_per_s'))} tok/s",
        f"{seconds(dig(record, 'seconds', 'step'))} (wait {seconds(dig(record, 'seconds', 'wait'))}, "
        f"push {seconds(dig(record, 'seconds', 'push'))})",
    ]
    return " · ".join(parts)


def _evals(old: Snapshot, new: Snapshot) -> list[str]:
    def keys(s: Snapshot) -> dict[tuple[str, str], list[dict[str, Any]]]:
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in s.evals:
            groups.setdefault((str(row.get("baseline") or ""), str(row.get("version"))), []).append(row)
        return groups

    before = keys(old)
    lines = []
    for (baseline, version), rows in keys(new).items():
        if fresh := [row for row in rows if row not in before.get((baseline, version), [])]:
            scores = ", ".join(
                f"{clean(row.get('dataset'))} em {score(row.get('em'))} f1 {score(row.get('f1'))} (n {count(row.get('n'))})"
                for row in fresh
            )
            lines.append(f"eval {clean(baseline) if baseline else f'version {version}'}: {scores}")
    return lines


def _events(old: Snapshot, new: Snapshot) -> list[str]:
    lines = []
    message = clean(new.run.get("message") or "")
    if message and _words(message) != _words(clean(old.run.get("message") or "")) and new.phase != "done":
        lines.append(message)
    lines += _changes(
        old.actors, new.actors, "id", lambda row: f"{clean(row.get('host'))} pid {clean(row.get('pid'))}", "actor"
    )
    lines += _changes(old.servers, new.servers, "url", lambda row: clean(row.get("state")), "server")
    for row in new.servers:
        was = next((r for r in old.servers if r.get("url") == row.get("url")), row)
        # "updating" comes and goes with every push: not worth a line.
        states = {clean(row.get("state")), clean(was.get("state"))}
        if len(states) > 1 and states & {"excluded", "unreachable"}:
            lines.append(f"server {clean(row.get('url'))} is {clean(row.get('state'))}")
    for key, text in _COUNTED.items():
        if (grown := int((new.total([new.queue], key) or 0) - (old.total([old.queue], key) or 0))) > 0:
            lines.append(f"{grown} {text}")
    for kind, n in new.faults.items():
        if kind not in old.faults:
            lines.append(f"first fault of its kind: {kind} ({n}): {meaning(kind)[1]}")
    limit = bottleneck(new)
    if limit.severity == "bad" and limit.sentence != message and limit != bottleneck(old):
        lines.append(f"warning: {limit.sentence}")
    return lines


def _words(message: str) -> str:
    """A message that only counts on is not worth another line."""
    return "".join(c for c in message if not c.isdigit())


def _changes(
    old: list[dict[str, Any]],
    new: list[dict[str, Any]],
    key: str,
    detail: Callable[[dict[str, Any]], str],
    kind: str,
) -> list[str]:
    before, after = {str(row.get(key)) for row in old}, {str(row.get(key)): row for row in new}
    joined = [f"{kind} {clean(name)} joined ({detail(row)})" for name, row in after.items() if name not in before]
    return joined + [f"{kind} {clean(name)} left" for name in sorted(before - after.keys())]
