"""Episodes worth reading: successes and failures, turn by turn, and what their tools did."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from learner.dashboard.format import finite, score
from learner.run.parts import parts
from learner.run.transcript import visible

#: Longest text of one part; a page of tool output tells a reader nothing more.
_PART_CHARS = 1500

_FINISH = {"done": "answered", "max_turns": "cut: no turns left", "length": "cut: no tokens left"}


@dataclass(frozen=True)
class Line:
    """``who`` said it (with the version), what kind of part it is, the text, the reward earned with it."""

    who: str
    kind: str
    text: str
    reward: float | None = None


@dataclass(frozen=True)
class Story:
    question: str
    facts: str
    lines: list[Line]
    faults: list[str]


@dataclass(frozen=True)
class ToolRow:
    name: str
    calls: int
    faults: int
    kinds: str
    p50_s: float | None
    p99_s: float | None


def succeeded(episode: dict[str, Any]) -> bool:
    """By exact match where the environment reports it, else by a reward above one half."""
    em = finite((episode.get("metrics") or {}).get("em"))
    return em >= 1 if em is not None else (finite(episode.get("reward")) or 0.0) > 0.5


def examples(episodes: list[dict[str, Any]], success: bool, count: int = 4) -> list[Story]:
    """The newest ones, one of each data set before a second of any; a task is shown once.

    Failures that had a fault come before those that had none: they tell more.
    """
    ranked = sorted(
        (e for e in episodes if succeeded(e) == success),
        key=lambda e: (not success and bool(faults(e)), finite(e.get("step")) or 0.0),
        reverse=True,
    )
    by_dataset: dict[str, list[dict[str, Any]]] = defaultdict(list)
    seen: set[str] = set()
    for episode in ranked:
        if (task := str(episode.get("task_id"))) not in seen:
            seen.add(task)
            by_dataset[str(episode.get("dataset"))].append(episode)
    turns = [rows[i] for i in range(count) for rows in by_dataset.values() if i < len(rows)]
    return [story(episode) for episode in turns[:count]]


def story(episode: dict[str, Any]) -> Story:
    question, lines = "", []
    for segment in episode.get("segments") or []:
        earned = finite(segment.get("reward")) or None
        for kind, text in parts(segment):
            if kind == "question" and not question:
                question = visible(text)
                continue
            who = _policy(segment.get("versions")) if segment.get("role") == "policy" else "environment"
            lines.append(Line(who if not lines or lines[-1].who != who else "", kind, visible(shorten(text))))
        if earned is not None and lines:
            last = lines[-1]
            lines[-1] = Line(last.who, last.kind, last.text, earned)
    return Story(question or str(episode.get("task_id", "")), facts(episode), lines, faults(episode))


def facts(episode: dict[str, Any]) -> str:
    """One line: data set, step, reward, how it ended, its size."""
    finish = str(episode.get("finish"))
    split = "evaluation" if episode.get("kind") == "eval" else "training"
    found = [
        str(episode.get("dataset", "")),
        f"{split}, step {episode.get('step')}",
        f"reward {score(episode.get('reward'))}",
        _FINISH.get(finish, finish),
        f"{episode.get('turns')} turns, {episode.get('tokens')} tokens",
    ]
    return " · ".join(visible(part) for part in found if part)


def faults(episode: dict[str, Any]) -> list[str]:
    return [f"{c.get('name')}: {c['fault']}" for c in episode.get("tool_calls") or [] if c.get("fault")]


def tools(episodes: list[dict[str, Any]]) -> list[ToolRow]:
    """Calls by tool over the recorded episodes, the most frequent first."""
    latencies: dict[str, list[float]] = defaultdict(list)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    calls: Counter[str] = Counter()
    for episode in episodes:
        for call in episode.get("tool_calls") or []:
            name = str(call.get("name", "?"))
            calls[name] += 1
            if (latency := finite(call.get("latency_s"))) is not None:
                latencies[name].append(latency)
            if call.get("fault"):
                kinds[name][str(call["fault"])] += 1
    return [
        ToolRow(
            name,
            n,
            kinds[name].total(),
            ", ".join(f"{kind} {k}" for kind, k in kinds[name].most_common()),
            _quantile(latencies[name], 0.5),
            _quantile(latencies[name], 0.99),
        )
        for name, n in calls.most_common()
    ]


def shorten(text: str) -> str:
    return text if len(text) <= _PART_CHARS else f"{text[:_PART_CHARS]} … ({len(text) - _PART_CHARS:,} characters more)"


def _policy(versions: list[int] | None) -> str:
    if not versions:
        return "policy"
    return f"policy v{versions[0]}" if versions[0] == versions[1] else f"policy v{versions[0]}–{versions[1]}"


def _quantile(values: list[float], q: float) -> float | None:
    ordered = sorted(values)
    return ordered[round(q * (len(ordered) - 1))] if ordered else None
