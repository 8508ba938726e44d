"""Tables of exact width: the least important columns go first where there is no room."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from . import theme


@dataclass(frozen=True)
class Column:
    """``keep`` 0 is never dropped; higher ones go first. The first column of a table is left-aligned, as are ``words``."""

    title: str
    keep: int = 0
    min_width: int = 4
    words: bool = False


Cell = str | tuple[str, str]


def table(columns: list[Column], rows: list[list[Cell]], width: int) -> list[Text]:
    """A header line and one line a row, each at most ``width`` cells."""
    widths = [
        max(column.min_width, cell_len(column.title), *(cell_len(_plain(row[i])) for row in rows), 0)
        for i, column in enumerate(columns)
    ]
    widths[0] = min(widths[0], max(12, width // 3))
    shown = list(range(len(columns)))
    while len(shown) > 1 and sum(widths[i] + 2 for i in shown) - 2 > width:
        last = max(shown, key=lambda i: (columns[i].keep, i))
        if columns[last].keep == 0:
            break
        shown.remove(last)
    gap = 2 + min(3, (width - sum(widths[i] + 2 for i in shown) + 2) // max(1, len(shown) - 1))
    header: list[Cell] = [(columns[i].title, theme.DIM) for i in shown]
    cells = [header, *([row[i] for i in shown] for row in rows)]
    left = {i for i in shown if i == 0 or columns[i].words}
    return [_line(line, shown, widths, gap, left) for line in cells]


def _line(cells: list[Cell], shown: list[int], widths: list[int], gap: int, left: set[int]) -> Text:
    line = Text()
    for at, (i, cell) in enumerate(zip(shown, cells, strict=True)):
        text = Text(_plain(cell), style=cell[1] if isinstance(cell, tuple) else "")
        text.truncate(widths[i], overflow="ellipsis")
        pad = " " * (widths[i] - text.cell_len)
        line = theme.row(line, " " * gap if at else "", "" if i in left else pad, text, pad if i in left else "")
    return line


def _plain(cell: Cell) -> str:
    return cell[0] if isinstance(cell, tuple) else cell
