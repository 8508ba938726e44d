"""The learner: its timeline, and what the newest step was trained on and came to."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from . import theme, timeline
from .format import DASH, bar, clean, compact, count, finite, score, seconds, share, small
from .model import RECENT, Snapshot, dicts, dig, points
from .plot import sparkline

Facts = list[tuple[str, str]]


def learner_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    """For the overview: most telling lines first; it shows as many as fit."""
    inner = width - 4
    lines = [timeline.strip(s, inner), theme.joined(timeline.legend(timeline.shares(s.history[-RECENT:])), inner)]
    lines += value_lines(s, inner)
    return theme.frame("learner", lines[: height - 2], width, height, _phase(s))


def learner_page(s: Snapshot, width: int, height: int) -> list[Text]:
    values, ages = value_lines(s, width - 4), staleness_lines(s, width - 4)
    figures = min(len(values) + len(ages) + 3, height - 10)
    top = height - figures
    shares = [
        *_shares(f"last {RECENT}", s.history[-RECENT:], width - 4),
        *(_shares("whole run", s.history, width - 4) if top >= 12 else []),
    ]
    body = [*timeline.chart(s, width - 4, top - 2 - len(shares)), *shares]
    below = [*values[: max(1, figures - 3 - len(ages))], *([Text()] if ages else []), *ages]
    return [
        *theme.frame("timeline", body, width, top, _phase(s), "each step to scale"),
        *theme.frame("newest step", below, width, figures),
    ]


def _shares(label: str, steps: list[dict[str, Any]], width: int) -> list[Text]:
    lines = theme.flowed(timeline.legend(timeline.shares(steps)), width - 10)
    return [theme.row((f"{label if i == 0 else '':<10}", theme.DIM), line) for i, line in enumerate(lines)]


def value_lines(s: Snapshot, width: int) -> list[Text]:
    values: dict[str, Facts] = {
        "staleness": [
            ("mean", score(s.last("staleness_mean"))),
            ("max", compact(s.last("staleness_max"))),
            ("bound η", clean(s.run.get("staleness_bound", DASH))),
            ("", sparkline([age for _, age in points(s.history, "staleness_mean")], 10)),
        ],
        "off-policy": [
            ("ratio", score(s.last("ratio_mean"), 3)),
            ("max", small(s.last("ratio_max"))),
            ("ESS", share(s.last("ratio_ess"))),
            ("clip", share(s.last("clip_fraction"))),
        ],
        "mismatch": [
            ("|log π − log μ| mean", small(s.last("logprob_mismatch_mean"))),
            ("max", small(s.last("logprob_mismatch_max"))),
        ],
        "optimizer": [
            ("grad", small(s.last("grad_norm"))),
            ("lr", small(s.last("lr"))),
            ("loss", small(s.last("loss"))),
        ],
        "batch": [
            ("episodes", count(s.last("episodes"))),
            ("tokens", compact(s.last("tokens"))),
            ("sampled", compact(s.last("action_tokens"))),
            ("turns", score(s.last("turns"), 1)),
            ("zero-signal", f"{compact(s.last('zero_signal_groups'))} groups"),
        ],
        "ledger": [
            ("used", count(s.queue.get("consumed"))),
            ("stale", count(s.queue.get("stale_dropped"))),
            ("lost", count(s.queue.get("lost"))),
            ("twice", count(s.queue.get("duplicates"))),
            ("failed", count(s.queue.get("failed"))),
        ],
        "gateway": [
            ("rejected frames", count(s.queue.get("rejected_frames"))),
            ("epoch", count(s.queue.get("epoch"))),
            ("tasks left", count(s.queue.get("pending"))),
        ],
    }
    return [_value_line(name, facts, width) for name, facts in values.items()]


def staleness_lines(s: Snapshot, width: int) -> list[Text]:
    """How old the tokens of the newest step were, in versions: share, effective sample size, clipped."""
    bins = s.last("by_staleness")
    rows = [(clean(age), row) for age, row in bins.items() if dicts([row])] if isinstance(bins, dict) else []
    whole = sum(finite(dig(row, "tokens")) or 0.0 for _, row in rows)
    if not whole:
        return []
    lines = [Text("versions old   tokens          ESS     clip    |log π − log μ|", style=theme.DIM)]
    for age, row in rows[:6]:
        part = (finite(dig(row, "tokens")) or 0.0) / whole
        lines.append(
            theme.row(
                f"{age:>12}   ",
                (bar(part, 8), theme.ACCENT),
                f" {share(part):>5}   {share(dig(row, 'ratio_ess')):>5}   {share(dig(row, 'clip_fraction')):>5}"
                f"   {small(dig(row, 'logprob_mismatch_mean')):>15}",
            )
        )
    return lines


def _phase(s: Snapshot) -> Text:
    return theme.row((s.phase, theme.ACCENT), f" {seconds(s.phase_age)}")


def _value_line(name: str, values: Facts, width: int) -> Text:
    label = f"{name:<11}"
    facts = [theme.row((f"{key} " if key else "", theme.DIM), value) for key, value in values]
    return theme.row((label, theme.DIM), theme.joined(facts, width - len(label)))
