"""The list of episodes: one line each, on the page and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from learner.browse.filters import fault_names
from learner.dashboard import theme
from learner.dashboard.format import DASH, clean, compact, finite, score
from learner.run.parts import parts

Episode = dict[str, Any]

#: Name → (key of the order, newest or largest first).
ORDERS: dict[str, tuple[Any, bool]] = {
    "newest": (lambda e: finite(e.get("step")) or 0.0, True),
    "lowest reward": (lambda e: finite(e.get("reward")) or 0.0, False),
    "highest reward": (lambda e: finite(e.get("reward")) or 0.0, True),
    "longest": (lambda e: finite(e.get("tokens")) or 0.0, True),
}

HEADINGS = f"{'step':>5} {'data set':<8} {'reward':>6} {'turns':>5} {'tokens':>6} {'version':<8} {'fault':<10} question"


def question(episode: Episode) -> str:
    for segment in episode.get("segments") or []:
        for kind, text in parts(segment):
            if kind == "question":
                return clean(text)
    return clean(episode.get("task_id", ""))


def versions(episode: Episode) -> str:
    found = episode.get("versions")
    if not found:
        return DASH
    return f"v{found[0]}" if found[0] == found[1] else f"v{found[0]}–{found[1]}"


def line(episode: Episode) -> Text:
    reward = finite(episode.get("reward"))
    tone = theme.GOOD if (reward or 0.0) > 0.5 else theme.WARN
    fault = ", ".join(dict.fromkeys(fault_names(episode)))
    step = f"{'e' if episode.get('kind') == 'eval' else ''}{episode.get('step')}"
    return theme.row(
        (f"{step:>5} ", theme.DIM),
        f"{clean(episode.get('dataset', '')):<8.8} ",
        (f"{score(reward):>6} ", tone),
        f"{compact(episode.get('turns')):>5} {compact(episode.get('tokens')):>6} ",
        (f"{versions(episode):<8.8} ", theme.ACCENT),
        (f"{clean(fault) or DASH:<10.10} ", theme.BAD if fault else theme.DIM),
        question(episode),
    )


def plain(episodes: Iterable[Episode]) -> Iterable[str]:
    """Lines for a pipe: headings, then one whole line an episode, task last."""
    yield f"{HEADINGS} · task"
    for episode in episodes:
        yield f"{line(episode).plain} · {clean(episode.get('task_id', ''))}"
