"""Colours and the frame. Few hues, each with one meaning; glyphs carry it where there is no colour."""

from __future__ import annotations

from itertools import accumulate

from rich.cells import cell_len
from rich.text import Span, Text

DIM = "#7a8594"
FRAME = "#4b5563"
TITLE = "bold #5fb3d4"
BOLD = "bold"
GOOD = "#7fb069"
WARN = "#e0a84a"
BAD = "bold #e06c6c"
ACCENT = "#5fb3d4"

#: One hue and one marker for each data set, in order of appearance.
DATASETS = (("#6cb6ff", "●"), ("#c792ea", "◆"), ("#4fd1b5", "▲"), ("#e0a84a", "■"), ("#e06c6c", "▼"))

#: What the learner spends its time on: style and fill, in the order of a step.
PHASES = {
    "wait": ("#8b95a3", "░"),
    "forward": ("#6cb6ff", "▒"),
    "backward": ("#5fb3d4", "█"),
    "step": ("#e0a84a", "▚"),
    "other": ("#7a8594", "╌"),
    "push": ("#c792ea", "▓"),
    "eval": ("#4fd1b5", "·"),
}

#: One hue a policy version, in turn: a turn that two versions sampled shows.
VERSIONS = ("#5fb3d4", "#c792ea", "#7fb069", "#e0a84a", "#4fd1b5")

SEVERITY = {"note": GOOD, "warn": WARN, "bad": BAD}


def dataset(index: int) -> tuple[str, str]:
    """(style, marker) of the ``index``-th data set."""
    return DATASETS[index % len(DATASETS)]


def version(number: int) -> str:
    """Style of what policy version ``number`` sampled."""
    return VERSIONS[number % len(VERSIONS)]


Part = Text | str | tuple[str, str]


def row(*parts: Part) -> Text:
    """``Text.assemble`` at a fraction of its cost: a page has hundreds of parts and is drawn twice a second."""
    plain, spans, at = [], [], 0
    for part in parts:
        if isinstance(part, Text):
            text = part.plain
            if part.style:
                spans.append(Span(at, at + len(text), part.style))
            spans += [Span(at + s.start, at + s.end, s.style) for s in part.spans]
        else:
            text, style = part if isinstance(part, tuple) else (part, "")
            if style:
                spans.append(Span(at, at + len(text), style))
        plain.append(text)
        at += len(text)
    return Text("".join(plain), spans=spans, no_wrap=True, end="")


def fit(line: Text, width: int) -> Text:
    """Exactly ``width`` cells: cut with an ellipsis or padded."""
    line.truncate(max(width, 0), overflow="ellipsis", pad=True)
    return line


def joined(parts: list[Text], width: int) -> Text:
    """The parts side by side; closer together where that lets more of them fit, and only whole ones."""
    wide, tight = _fitting(parts, 2, width), _fitting(parts, 1, width)
    return Text("  " if len(wide) == len(tight) else " ").join(max(wide, tight, key=len))


def flowed(parts: list[Text], width: int) -> list[Text]:
    """The parts in as many lines as they need."""
    lines = []
    while parts:
        line = joined(parts, width)
        taken = max(1, len(max(_fitting(parts, 2, width), _fitting(parts, 1, width), key=len)))
        lines.append(line if line.plain else parts[0])
        parts = parts[taken:]
    return lines


def _fitting(parts: list[Text], gap: int, width: int) -> list[Text]:
    ends = accumulate(part.cell_len + gap for part in parts)
    return [part for part, end in zip(parts, ends, strict=True) if end - gap <= width]


def frame(
    title: str, body: list[Text], width: int, height: int, right: Text | None = None, note: str = ""
) -> list[Text]:
    """A rounded box of exactly ``width`` × ``height`` cells with ``title`` and ``right`` in its upper edge.

    ``note`` follows the title where there is room for the whole of it.
    """
    inner = width - 4
    right = right or Text()
    right.truncate(max(0, inner - len(title) - 4), overflow="ellipsis")
    if note and len(title) + cell_len(note) + right.cell_len + 5 > inner:
        note = ""
    top = row(("╭ ", FRAME), (title, TITLE), (f" {note} " if note else " ", DIM))
    tail = row(" ", right, (" ─╮", FRAME)) if right.cell_len else row(("─╮", FRAME))
    top.append("─" * (width - top.cell_len - tail.cell_len), style=FRAME).append_text(tail)
    lines = [top]
    for i in range(height - 2):
        content = fit(body[i] if i < len(body) else Text(), inner)
        lines.append(row(("│ ", FRAME), content, (" │", FRAME)))
    lines.append(row(("╰" + "─" * (width - 2) + "╯", FRAME)))
    return lines


def scrolled(lines: list[Text], scroll: int, room: int) -> tuple[list[Text], int]:
    """(the ``room`` lines from ``scroll`` on, or the last ones; how far can be scrolled)."""
    limit = max(0, len(lines) - room)
    first = min(scroll, limit)
    return lines[first : first + room], limit


def beside(*blocks: list[Text]) -> list[Text]:
    """Blocks of equal height, left to right."""
    return [row(*lines) for lines in zip(*blocks, strict=True)]
