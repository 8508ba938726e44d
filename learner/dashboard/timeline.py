"""Where the learner's time goes: the parts of each step, drawn to scale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from . import theme
from .format import compact, finite, seconds, share
from .model import Snapshot, dig

Record = dict[str, Any]


def spans(record: Record, before: Record | None = None) -> dict[str, float]:
    """Seconds of one step by phase, in the order of ``theme.PHASES``.

    forward holds the pass for the proximal policy too; other is what the update does beside the engine
    (advantages, packing). eval: from the end of the step ``before`` to the start of this one, spent on
    evaluations and checkpoints.
    """
    parts = {
        "forward": _field(record, "forward_s") + _field(record, "proximal_s"),
        "backward": _field(record, "backward_s"),
        "step": _field(record, "optimizer_s"),
    }
    gap = 0.0
    ended, began = finite(dig(before, "time_s")), finite(record.get("time_s"))
    if ended is not None and began is not None:
        gap = began - ended - _field(record, "seconds", "step")
    return {
        "wait": _field(record, "seconds", "wait"),
        **parts,
        "other": max(0.0, _field(record, "seconds", "update") - sum(parts.values())),
        "push": _field(record, "seconds", "push"),
        "eval": gap if gap > 0.1 else 0.0,  # below, it is the writing of records
    }


def shares(steps: list[Record]) -> dict[str, float]:
    """Share of each phase in the time of all these steps; empty where none was measured."""
    each = [spans(record, before) for before, record in zip([None, *steps], steps, strict=False)]
    total = {name: sum(row[name] for row in each) for name in theme.PHASES}
    whole = sum(total.values())
    return {name: value / whole for name, value in total.items()} if whole > 0 else {}


def strip(s: Snapshot, width: int) -> Text:
    """The recent time in one line, one cell a slice: what the learner did, oldest left, fill and hue by phase."""
    steps = s.history[-64:]
    pace = s.recent("seconds", "step")
    if not pace:
        return Text("no step yet", style=theme.DIM)
    label = Text(f"last {seconds(12 * pace)} ", style=theme.DIM)
    cells = max(8, width - label.cell_len)
    flat = [
        (name, length)
        for before, record in zip([None, *steps], steps, strict=False)
        for name, length in spans(record, before).items()
        if length > 0
    ]
    return theme.row(label, *_cells(flat, cells, 12 * pace / cells))


def chart(s: Snapshot, width: int, height: int) -> list[Text]:
    """One bar a step, the newest last, all to one scale."""
    steps = s.history[-(height + 1) :]
    befores = [None, *steps]
    rows = [(record, spans(record, before)) for before, record in zip(befores, steps, strict=False)][-height:]
    longest = max((sum(parts.values()) for _, parts in rows), default=0.0)
    if not longest:
        return [Text("no step yet", style=theme.DIM)]
    room = width - 21
    lines = []
    for record, parts in rows:
        whole = sum(parts.values())
        flat = [(name, length) for name, length in parts.items() if length > 0]
        bar = _cells(flat, max(1, round(room * whole / longest)), longest / room) if whole else []
        head = f"step {compact(record.get('step')):>6} {seconds(whole):>7} "
        lines.append(theme.row((head, theme.DIM), *bar))
    return lines


def legend(values: dict[str, float]) -> list[Text]:
    """Fill, name and share of each phase that took time."""
    return [
        theme.row((theme.PHASES[name][1], theme.PHASES[name][0]), f" {name} ", (share(value), theme.BOLD))
        for name, value in values.items()
        if value > 0
    ]


def _cells(flat: Iterable[tuple[str, float]], cells: int, slice_s: float) -> list[tuple[str, str]]:
    """Each cell shows the phase at its middle, counted back from the end; runs of one phase in one piece."""
    ends, total = [], 0.0
    for name, length in reversed(list(flat)):
        total += length
        ends.append((total, name))
    names: list[str] = []
    at = 0
    for i in range(cells):
        while at < len(ends) and ends[at][0] < (i + 0.5) * slice_s:
            at += 1
        if at == len(ends):
            break
        names.append(ends[at][1])
    return [(" " * (cells - len(names)), ""), *((theme.PHASES[n][1], theme.PHASES[n][0]) for n in reversed(names))]


def _field(record: Record, *path: str) -> float:
    return finite(dig(record, *path)) or 0.0
