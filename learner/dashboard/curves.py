"""Curves over the whole run, each with its axes: is it learning, and is it healthy?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from . import theme
from .format import clean, compact, finite, score, share, small
from .learning import em_panel, reward_panel
from .model import Snapshot, points, smoothing_window
from .plot import Level, Series, plot, trailing_mean

Panel = Callable[[Snapshot, int, int], list[Text]]
_LOWEST, _WIDEST = 7, 64


@dataclass(frozen=True)
class Curve:
    """title, the field's path in a step's record, how its newest value reads, and from where the y axis starts.

    spikes: another field, shown as loose dots (a maximum beside its mean).
    """

    title: str
    path: tuple[str, ...]
    shown: Callable[[object], str]
    floor: float | None = None
    note: str = ""
    spikes: str = ""


_CURVES = (
    Curve("entropy", ("entropy",), small, 0.0, "nats a token"),
    Curve("KL", ("kl",), small, None, "sampler against learner, k1"),
    Curve("staleness", ("staleness_mean",), score, 0.0, "mean; dots: oldest token", "staleness_max"),
    Curve("throughput", ("tokens_per_s",), compact, 0.0, "tokens trained on, a second"),
    Curve("sample size", ("ratio_ess",), share, None, "effective, of the importance ratios"),
    Curve("clipped", ("clip_fraction",), share, 0.0, "share of tokens"),
    Curve("gradient", ("grad_norm",), small, 0.0, "norm before clipping"),
    Curve("turns", ("turns",), score, 0.0, "an episode"),
    Curve("cut", ("truncated",), share, 0.0, "episodes that a limit ended"),
    Curve("zero signal", ("zero_signal_groups",), compact, 0.0, "groups of equal rewards"),
    Curve("faulty calls", ("tool_faults",), compact, 0.0, "a step"),
    Curve("mismatch", ("logprob_mismatch_mean",), small, 0.0, "|log π − log μ|"),
    Curve("learner busy", ("busy",), share, 0.0, "share of the step"),
    Curve("loss", ("loss",), small),
)


def panels() -> list[Panel]:
    """All of them, the most telling first."""
    return [reward_panel, em_panel, *(_panel(curve) for curve in _CURVES)]


def grid(width: int, height: int) -> tuple[int, int]:
    """(columns, rows) of panels for a window."""
    return max(1, min(4, round(width / _WIDEST + 0.49))), max(1, height // max(_LOWEST, min(12, height // 4)))


def curves_page(s: Snapshot, width: int, height: int, scroll: int) -> tuple[list[Text], int]:
    """(lines, how far can be scrolled), by rows of panels."""
    columns, rows = grid(width, height)
    limit = max(0, -(-len(panels()) // columns) - rows)
    shown = panels()[min(scroll, limit) * columns :][: columns * rows]
    lines: list[Text] = []
    for row in range(rows):
        members = shown[row * columns : (row + 1) * columns]
        high = height * (row + 1) // rows - height * row // rows
        widths = [width * (i + 1) // columns - width * i // columns for i in range(columns)]
        blocks = [panel(s, w, high) for panel, w in zip(members, widths, strict=False)]
        blocks += [[Text(" " * w) for _ in range(high)] for w in widths[len(members) :]]
        lines += theme.beside(*blocks)
    return lines, limit


def _panel(curve: Curve) -> Panel:
    def panel(s: Snapshot, width: int, height: int) -> list[Text]:
        raw = points(s.history, *curve.path)
        window = smoothing_window(len(raw))
        dots = points(s.history, curve.spikes) if curve.spikes else raw if window > 1 else ()
        smooth = trailing_mean(raw, window)
        levels = []
        if curve.title == "staleness" and (bound := finite(s.run.get("staleness_bound"))) is not None:
            levels = [Level(bound, f"bound η {clean(s.run['staleness_bound'])}", theme.DIM)]
        right = Text(curve.shown(smooth[-1][1]), style=theme.BOLD) if smooth else Text()
        body = plot(
            width - 4,
            height - 2,
            (Series(dots, theme.FRAME, joined=False), Series(smooth, theme.ACCENT)),
            (),
            tuple(levels),
            floor=curve.floor,
        )
        return theme.frame(curve.title, body, width, height, right, curve.note)

    return panel
