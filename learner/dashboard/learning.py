"""Is it learning? Reward and exact match over the whole run, with the levels to compare with."""

from __future__ import annotations

from rich.text import Text

from . import theme
from .format import clean, compact, score, share, small
from .model import Snapshot, points, smoothing_window
from .plot import Level, Mark, Series, plot, trailing_mean


def reward_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    raw = points(s.history, "reward")
    window = smoothing_window(len(raw))
    smooth = trailing_mean(raw, window)
    right = Text()
    if smooth:
        gain = smooth[-1][1] - raw[0][1]
        right.append(score(smooth[-1][1]), theme.BOLD)
        right.append(f" {_signed(gain)}", theme.GOOD if gain > 0 else theme.WARN)
    facts = (
        ("entropy", small(s.last("entropy"))),
        ("KL", small(s.last("kl"))),
        ("zero-signal", f"{compact(s.last('zero_signal_groups'))} groups"),
        ("truncated", share(s.last("truncated"))),
    )
    legend = theme.joined([theme.row((f"{name} ", theme.DIM), value) for name, value in facts], width - 4)
    dots = (Series(raw, theme.FRAME, joined=False),) if window > 1 else ()
    note = f"mean of {window} steps" if window > 1 else "every step"
    above = [legend] if height >= 8 else []
    body = above + plot(width - 4, height - 2 - len(above), (*dots, Series(smooth, theme.ACCENT)))
    return theme.frame("reward", body, width, height, right, note)


def em_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    """Training EM as lines, evaluations (greedy, held out) as marks; one hue and marker a data set."""
    series, marks = [], []
    legend = []
    narrow = width < 48
    for i, name in enumerate(s.datasets):
        style, glyph = theme.dataset(i)
        training = points(s.history, "em", name)
        evals = s.eval_points(name)
        series.append(Series(trailing_mean(training, smoothing_window(len(training))) if training else evals, style))
        marks += [Mark(*at, glyph, style) for at in evals]
        now = evals[-1][1] if evals else None
        figure = score(now).lstrip("0") if narrow else score(now)
        legend.append(theme.row((glyph if narrow else f"{glyph} ", style), f"{clean(name)} {figure}"))
    before, now = s.mean_em(first=True), s.mean_em()
    levels = [Level(v, f"{clean(n)} {score(v)}", theme.DIM) for n in s.baselines if (v := s.mean_em(n)) is not None]
    if before is not None:
        levels.append(Level(before, f"warm start {score(before)}", theme.DIM))
    right = Text()
    if before is not None and now is not None:
        right = theme.row((f"{score(before)} → ", theme.DIM), (score(now), theme.BOLD))
        if s.baselines and (level := s.mean_em(s.baselines[0])):
            ratio = now / level
            name = "" if narrow else f" {clean(s.baselines[0])}"
            right.append(f"  {ratio:.1f}×{name}", theme.GOOD if ratio > 1 else theme.WARN)
    body = [
        theme.joined(legend, width - 4),
        *plot(width - 4, height - 3, tuple(series), tuple(marks), tuple(levels), floor=0.0),
    ]
    return theme.frame("exact match", body, width, height, right, "lines: training · marks: held out")


def _signed(value: float) -> str:
    return f"{'▲' if value >= 0 else '▼'}{abs(value):.2f}"
