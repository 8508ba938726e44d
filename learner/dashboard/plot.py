"""Line plots in braille dots with labelled axes, as rich text lines of exact size.

A character cell holds 2 × 4 dots, so a plot of 60 × 10 cells resolves 120 × 40 points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from rich.text import Text

from . import theme
from .format import compact

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points joined by a line (or loose dots), x ascending."""

    points: tuple[Point, ...]
    style: str
    joined: bool = True


@dataclass(frozen=True)
class Mark:
    """One glyph on top of everything else."""

    x: float
    y: float
    glyph: str
    style: str


@dataclass(frozen=True)
class Level:
    """A dashed line across the plot, with its name at the right end."""

    y: float
    label: str
    style: str


@lru_cache(maxsize=8)
def plot(
    width: int,
    height: int,
    series: tuple[Series, ...],
    marks: tuple[Mark, ...] = (),
    levels: tuple[Level, ...] = (),
    floor: float | None = None,
) -> list[Text]:
    """``height`` lines of ``width`` cells, steps to the right. The y axis spans the data, down to ``floor`` where given.

    Cached: the page is drawn twice a second, its data change once a step.
    """
    xs = [x for s in series for x, _ in s.points] + [m.x for m in marks]
    ys = [y for s in series for _, y in s.points] + [m.y for m in marks]
    if not xs:
        return _centred("waiting for the first step", width, height)
    rows = height - (2 if height >= 6 else 1)
    low, high, step = y_axis(min(ys + [lv.y for lv in levels]), max(ys + [lv.y for lv in levels]), rows, floor)
    ticks = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    labels = {_row(t, low, high, rows): _tick(t, step) for t in ticks}
    margin = max(len(text) for text in labels.values()) + 1
    canvas = _Canvas(width - margin - 1, rows, (min(xs), max(max(xs), min(xs) + 1)), (low, high))
    for line in series:
        canvas.draw(line)
    canvas.levels(levels)
    for mark in marks:
        canvas.mark(mark)
    lines = []
    for row, body in enumerate(canvas.lines()):
        edge = "┤" if row in labels else "│"
        lines.append(theme.row((f"{labels.get(row, ''):>{margin - 1}} {edge}", theme.DIM), body))
    return lines + _x_axis(margin, canvas, "step", height - rows)


def y_axis(low: float, high: float, rows: int, floor: float | None = None) -> tuple[float, float, float]:
    """(lowest, highest, step of the ticks): a little more than the data, ticks at 1, 2, 2.5 or 5 · 10ⁿ."""
    low = low if floor is None else min(floor, low)
    high = high if high - low > 1e-9 else low + 1.0
    raw = (high - low) / max(2, min(5, int(rows / 2.5)))
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    room = 0.04 * (high - low)
    return low if floor is not None else low - room, high + room, step


def trailing_mean(points: Sequence[Point], window: int) -> tuple[Point, ...]:
    """Each y replaced by the mean of the last ``window`` ones (fewer at the start)."""
    ys = [y for _, y in points]
    # Summed anew each time: what a running sum leaves of values that have gone makes a −0 of zeros.
    return tuple(
        (x, math.fsum(ys[max(0, i + 1 - window) : i + 1]) / min(i + 1, window)) for i, (x, _) in enumerate(points)
    )


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as ▁ to █."""
    tail = list(values)[-width:]
    if not tail:
        return ""
    low, span = min(tail), max(tail) - min(tail)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (v - low) / span) if span > 1e-12 else 0] for v in tail)


class _Canvas:
    def __init__(self, width: int, rows: int, x: tuple[float, float], y: tuple[float, float]):
        self.width, self.rows, self.x, self.y = max(width, 2), rows, x, y
        self.bits = [[0] * self.width for _ in range(rows)]
        self.styles = [[""] * self.width for _ in range(rows)]
        self.glyphs: dict[tuple[int, int], tuple[str, str]] = {}

    def column(self, x: float) -> int:
        return round((x - self.x[0]) / (self.x[1] - self.x[0]) * (2 * self.width - 1))

    def line(self, y: float) -> int:
        return round((self.y[1] - y) / (self.y[1] - self.y[0]) * (4 * self.rows - 1))

    def _dot(self, column: int, line: int, style: str) -> None:
        row, cell = line // 4, column // 2
        self.bits[row][cell] |= _DOTS[column % 2][line % 4]
        self.styles[row][cell] = style

    def draw(self, series: Series) -> None:
        """Points that share a dot column are averaged first, so a long run stays cheap and legible."""
        columns: dict[int, list[float]] = {}
        for x, y in series.points:
            columns.setdefault(self.column(x), []).append(y)
        before: tuple[int, int] | None = None
        for column in sorted(columns):
            here = (column, self.line(sum(columns[column]) / len(columns[column])))
            for point in _between(before, here) if series.joined and before else [here]:
                self._dot(*point, series.style)
            before = here

    def mark(self, mark: Mark) -> None:
        self.glyphs[self.line(mark.y) // 4, self.column(mark.x) // 2] = (mark.glyph, mark.style)

    def levels(self, levels: Sequence[Level]) -> None:
        by_row: dict[int, list[Level]] = {}
        for level in levels:
            by_row.setdefault(self.line(level.y) // 4, []).append(level)
        for row, here in by_row.items():
            for cell in range(self.width):
                if not self.bits[row][cell]:
                    self.glyphs[row, cell] = ("╌", here[0].style)
            self._label(row, " · ".join(level.label for level in sorted(here, key=lambda lv: -lv.y)), here[0].style)

    def _label(self, row: int, text: str, style: str) -> None:
        """As far right as the curves leave room, in the level's row or one beside it; else left out."""
        text = f" {text} "
        for at in (row, row + 1, row - 1):
            for start in range(self.width - len(text), -1, -1) if 0 <= at < self.rows else ():
                if not any(self.bits[at][start : start + len(text)]):
                    self.glyphs.update({(at, start + i): (glyph, style) for i, glyph in enumerate(text)})
                    return

    def lines(self) -> list[Text]:
        out = []
        for row in range(self.rows):
            cells = [
                self.glyphs.get((row, i)) or (chr(_BRAILLE | bits) if bits else " ", self.styles[row][i])
                for i, bits in enumerate(self.bits[row])
            ]
            runs = groupby(cells, key=lambda cell: cell[1])
            out.append(theme.row(*(("".join(glyph for glyph, _ in run), style) for style, run in runs)))
        return out


def _between(a: tuple[int, int], b: tuple[int, int]) -> list[tuple[int, int]]:
    """Dots of a straight line from just after ``a`` to ``b``."""
    steps = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    return [
        (a[0] + round((b[0] - a[0]) * i / steps), a[1] + round((b[1] - a[1]) * i / steps)) for i in range(1, steps + 1)
    ]


def _row(y: float, low: float, high: float, rows: int) -> int:
    return round((high - y) / (high - low) * (4 * rows - 1)) // 4


def _tick(value: float, step: float) -> str:
    if step >= 1000:
        return compact(value)
    decimals = next((d for d in range(4) if abs(step * 10**d - round(step * 10**d)) < 1e-6), 4)
    return f"{value:.{decimals}f}".replace("-", "−")


def _x_axis(margin: int, canvas: _Canvas, name: str, rows: int) -> list[Text]:
    low, high = canvas.x
    wanted = max(1, min(6, canvas.width // 8))
    step = max(1, next(s for p in range(9) for s in (10**p, 2 * 10**p, 5 * 10**p) if s * wanted >= high - low))
    first = math.ceil(low / step) * step
    axis, labels = ["─"] * canvas.width, [" "] * canvas.width
    end = canvas.width - len(name) - 1
    for tick in range(first, int(high) + 1, step):
        cell, text = canvas.column(tick) // 2, str(tick)
        start = max(0, min(cell - len(text) // 2, canvas.width - len(text)))
        if start + len(text) <= end and all(c == " " for c in labels[max(0, start - 1) : start + len(text) + 1]):
            axis[cell] = "┴"
            labels[start : start + len(text)] = text
    labels[end + 1 :] = name
    lines = [Text(" " * margin + "╰" + "".join(axis), style=theme.DIM)] if rows == 2 else []
    return [*lines, Text(" " * (margin + 1) + "".join(labels), style=theme.DIM)]


def _centred(message: str, width: int, height: int) -> list[Text]:
    lines = [Text(" " * width) for _ in range(height)]
    lines[height // 2] = Text(f"{message:^{width}}"[:width], style=theme.DIM)
    return lines
