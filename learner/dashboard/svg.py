"""A picture of the dashboard as SVG, for documents.

Words and symbols are pinned to their cells, so boxes and braille stay aligned whatever
monospace font the reader has; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import io
import re
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

_BACKGROUND, _FOREGROUND = "#0d1117", "#c9d1d9"
_ANSI = TerminalTheme((13, 17, 23), (201, 209, 217), [(110, 118, 129)] * 8)
_FONT = "'DejaVu Sans Mono', Menlo, 'SF Mono', Consolas, monospace"
#: Pixels: font size, and the cell that box-drawing glyphs of that size fill.
_SIZE, _CELL, _LINE, _PAD = 16, 9.63, 18.6, 14

#: Placed whole: words, braille, and repetitions of one glyph; every other glyph by itself.
_PIECES = re.compile(r"[!-~]+|[\u2801-\u28ff]+|(\S)\1*")


def render_svg(lines: list[Text], path: str | Path, colour: bool = True) -> None:
    """Write a picture of these lines, all of the same width, to ``path``; without ``colour`` as with NO_COLOR."""
    width, height = max((line.cell_len for line in lines), default=1), len(lines)
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=not colour,
    )
    rows = [console.render_lines(line, console.options, pad=False)[0] for line in lines]
    if not colour:
        rows = [list(Segment.remove_color(row)) for row in rows]
    glyphs = [_row(row, y) for y, row in enumerate(rows)]
    w, h = width * _CELL + 2 * _PAD, height * _LINE + 2 * _PAD
    Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0f} {h:.0f}" font-family="{_FONT}" '
        f'font-size="{_SIZE}">\n<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>\n'
        + "\n".join(glyphs)
        + "\n</svg>\n",
        encoding="utf-8",
    )


def _row(row: list[Any], y: int) -> str:
    cells, column = [], 0
    for segment in row:
        for glyph in segment.text:
            cells.append((segment.style or Style.null(), column, glyph))
            column += cell_len(glyph)
    return "".join(_run(style, list(run), y) for style, run in groupby(cells, key=lambda cell: cell[0]))


def _run(style: Style, run: list[tuple[Style, int, str]], y: int) -> str:
    """One run of equal style: its background where it has one, then its visible glyphs."""
    fore = style.color.get_truecolor(_ANSI).hex if style.color else _FOREGROUND
    back = style.bgcolor.get_truecolor(_ANSI).hex if style.bgcolor else None
    if style.reverse:
        fore, back = back or _BACKGROUND, fore
    top, out = _PAD + y * _LINE, ""
    if back:
        left, span = _PAD + run[0][1] * _CELL, (run[-1][1] - run[0][1] + 1) * _CELL
        out = f'<rect x="{left:.1f}" y="{top:.1f}" width="{span:.1f}" height="{_LINE}" fill="{back}"/>'
    look = (
        f'fill="{fore}"'
        + (' font-weight="bold"' if style.bold else "")
        + (' font-style="italic"' if style.italic else "")
    )
    pieces = "".join(
        _piece(found.group(), _PAD + run[found.start()][1] * _CELL, top + 0.79 * _LINE)
        for found in _PIECES.finditer("".join(glyph for _, _, glyph in run))
    )
    return f"{out}<g {look}>{pieces}</g>\n" if pieces else out


def _piece(text: str, x: float, y: float) -> str:
    stretch = f' textLength="{cell_len(text) * _CELL:.1f}"' if len(text) > 1 else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{stretch}>{escape(text)}</text>'
