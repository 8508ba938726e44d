"""Conclusions in words, from measured facts only: what limits the run, and who in the fleet is sick."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from .format import clean, compact, finite, seconds, share
from .model import Snapshot, dig

#: Shares of the learner's time from which waiting, or pushing, counts as the limit.
_BUSY_WAIT, _BUSY_PUSH = 0.15, 0.25
#: A KV cache as full as this makes requests wait.
_FULL_KV = 0.9
#: An actor or server not heard of for this long is silent, seconds.
SILENT_S = 3.0
#: Out of line: so many times the others' median latency; below this share of their median rate.
_SLOW, _IDLE = 3.0, 0.33
#: Requests that an actor must have made before its latency is judged, and its share of faulty turns that is too much.
_ENOUGH, _FAULTY = 50, 0.1


@dataclass(frozen=True)
class Bottleneck:
    """``stage`` of the pipeline (servers, actors, queue, learner; "" for none) and a sentence.

    severity: note | warn | bad.
    """

    stage: str
    sentence: str
    severity: str = "note"


@dataclass(frozen=True)
class Health:
    """``word`` for a table, "" where nothing is wrong. severity: note | warn | bad."""

    word: str = ""
    severity: str = "note"


def bottleneck(s: Snapshot) -> Bottleneck:
    """Name the stage that limits the run, from the learner's time and the state of the others."""
    if s.phase in ("start", "done", "eval", "export"):
        start = " · ".join(["starting: " + clean(s.run.get("message") or "the learner comes up"), *_server_says(s)])
        done = clean(s.run.get("message") or "the run is over")
        notes = {"start": start, "done": done, "eval": _evaluation(s), "export": "writing the weights"}
        return Bottleneck("", notes[s.phase])
    if told := clean(s.run.get("message") or ""):  # the learner's watchdog knows more than can be seen from here
        return Bottleneck("", told, "bad")
    if not s.actors:
        return Bottleneck("actors", "no actor is connected: start one with run.py --role actor", "bad")
    current = [row for row in s.servers if row.get("state") == "current"]
    if s.servers and not current:
        if any(row.get("state") == "updating" for row in s.servers):
            return Bottleneck("servers", "generation pauses: weights are on their way")
        sick = [f"{clean(row.get('url'))} {health.word}" for row in s.servers if (health := server_health(row, s)).word]
        why = f" ({', '.join(sick[:2])})" if sick else ""
        return Bottleneck("servers", f"generation pauses: no server has the current weights{why}", "bad")
    shares = s.time_shares
    waiting_now = s.phase == "wait" and (s.phase_age or 0.0) > max(5.0, 0.5 * (s.recent("seconds", "step") or 0.0))
    if waiting_now or shares.get("wait", 0.0) >= _BUSY_WAIT:
        stage, why = _starved(s, current)
        spent = f"for {seconds(s.phase_age)} now" if waiting_now else f"{share(shares.get('wait'))} of the time"
        return Bottleneck(stage, f"{why}; the learner waits {spent}", "warn")
    if shares.get("push", 0.0) >= _BUSY_PUSH:
        return Bottleneck("learner", f"pushing weights takes {share(shares['push'])} of the time", "warn")
    if not shares:
        return Bottleneck("", "the first batch is being made")
    ready = compact(s.queue.get("waiting"))
    return Bottleneck(
        "learner", f"the learner sets the pace, busy {share(shares['update'])} of the time: {ready} groups are ready"
    )


def _server_says(s: Snapshot) -> list[str]:
    """The newest line of the log of a server that loads, where it runs beside this view."""
    return [f"its log: {line}"] if (line := clean(s.run.get("server_says") or "")) else []


def _evaluation(s: Snapshot) -> str:
    """What is scored, and how far that is."""
    scoring, progress = clean(s.run.get("scoring") or ""), s.run.get("evaluation")
    what = f"evaluation of {scoring}" if scoring else "evaluation"
    if isinstance(progress, (list, tuple)) and len(progress) == 2:
        what += f": {compact(progress[0])} of {compact(progress[1])} episodes"
    return f"{what}; training waits"


def _starved(s: Snapshot, servers: list[dict[str, Any]]) -> tuple[str, str]:
    """Why too few episodes arrive: (stage, reason)."""
    running, waiting = s.total(servers, "running"), s.total(servers, "waiting") or 0.0
    flight = s.total(s.actors, "stats", "in_flight")
    kv = max((finite(row.get("kv_usage")) or 0.0 for row in servers), default=0.0)
    load = f"{compact(running)} requests run" + (f", {compact(waiting)} queue" if waiting else "")
    if kv >= _FULL_KV:
        return "servers", f"actors wait for the server: KV cache {share(kv)}, {load}"
    if waiting > 0:
        return "servers", f"actors wait for the server: {load}"
    if running is not None and flight and running < 0.5 * flight:
        worst = max(s.tools, key=lambda row: row["p99"], default=None)
        detail = f" ({worst['name']} p99 {seconds(worst['p99'])})" if worst else ""
        return "actors", f"{compact(flight - running)} of {compact(flight)} episodes are in tools or the actor{detail}"
    where = f"actors wait for the server: it has {compact(running)} of {compact(flight)} episodes"
    if s.queue_fill is not None and s.queue_fill >= 1:
        return "servers", f"{where}; the staleness bound admits no more"
    capacity, held = s.total(s.actors, "capacity"), s.total(s.actors, "held")
    if capacity and held is not None and (held := held - (s.total(s.actors, "evaluating") or 0.0)) >= capacity:
        return "servers", f"{where}; all {compact(held)} leases are out"
    return "servers", where


def actor_health(row: dict[str, Any], s: Snapshot) -> Health:
    """The gravest thing that is wrong with an actor, compared with the others where there are any."""
    age = finite(row.get("age_s"))
    if age is not None and age > SILENT_S:
        return Health(f"silent {seconds(age)}", "bad")
    others = [other for other in s.actors if other is not row]
    p99 = finite(dig(row, "stats", "latency_p99"))
    theirs = _median(others, "latency_p99")
    turns = finite(dig(row, "stats", "turns")) or 0.0
    if p99 and theirs and p99 > _SLOW * theirs and turns >= _ENOUGH:
        return Health(f"slow: p99 {p99 / theirs:.0f}× the others'", "warn")
    faults = _count(dig(row, "stats", "faults"))
    if turns >= _ENOUGH and faults > _FAULTY * turns:
        return Health(f"faults in {share(faults / turns)} of turns", "warn")
    rate, usual = finite(dig(row, "stats", "tokens_per_s")), _median(others, "tokens_per_s")
    if rate is not None and usual and rate < _IDLE * usual and row.get("held"):
        return Health(f"{share(rate / usual)} of the others' rate", "warn")
    behind = _behind(dig(row, "stats", "version"), s)
    if behind > max(1.0, finite(s.run.get("staleness_bound")) or 0.0) and row.get("held"):
        return Health(f"{compact(behind)} versions behind", "warn")
    return Health()


def server_health(row: dict[str, Any], s: Snapshot) -> Health:
    """Not for what it is worth: a server with a long queue is busy, not sick."""
    state = clean(row.get("state") or "")
    if state in ("unreachable", "excluded") or row.get("error"):
        return Health(clean(row.get("error") or state), "bad")
    if (kv := finite(row.get("kv_usage"))) is not None and kv >= _FULL_KV:
        return Health(f"KV cache {share(kv)}", "warn")
    if state == "current" and (behind := _behind(row.get("version"), s)) > 1:
        return Health(f"{compact(behind)} versions behind", "warn")
    return Health()


def fleet_sentence(s: Snapshot) -> tuple[str, str]:
    """(who is sick and why, severity), in one line."""
    found = [(clean(row.get("id")), health) for row in s.actors if (health := actor_health(row, s)).word]
    found += [(clean(row.get("url")), health) for row in s.servers if (health := server_health(row, s)).word]
    found.sort(key=lambda item: item[1].severity != "bad")
    if not found:
        return f"{_number(len(s.actors), 'actor')} and {_number(len(s.servers), 'server')}, all well", "note"
    rest = f"; and {len(found) - 2} more" if len(found) > 2 else ""
    return "; ".join(f"{name}: {health.word}" for name, health in found[:2]) + rest, found[0][1].severity


def _behind(version: Any, s: Snapshot) -> float:
    own, newest = finite(version), finite(s.run.get("version"))
    return newest - own if own is not None and newest is not None and own >= 0 else 0.0


def _median(rows: list[dict[str, Any]], field: str) -> float | None:
    values = [v for row in rows if (v := finite(dig(row, "stats", field))) is not None]
    return median(values) if values else None


def _count(faults: Any) -> float:
    return sum(finite(n) or 0.0 for n in faults.values()) if isinstance(faults, dict) else 0.0


def _number(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
