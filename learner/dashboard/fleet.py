"""Who does the work: actors, servers and tools, one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.text import Text

from . import theme
from .format import DASH, clean, compact, count, finite, seconds, share
from .model import Snapshot, dig
from .tables import Cell, Column, table

#: An actor not heard of for this long is shown as silent, seconds.
SILENT_S = 3.0

_LARGEST = {
    "age_s",
    "version",
    "kv_usage",
    "prefix_hit_rate",
    "last_push_s",
    "latency_p50",
    "latency_p99",
    "p50",
    "p99",
}
_STATE = {
    "current": theme.GOOD,
    "updating": theme.ACCENT,
    "starting": theme.WARN,
    "excluded": theme.BAD,
    "unreachable": theme.BAD,
}
_ACTOR = [
    Column("ACTOR"),
    Column("EPISODES", 0),
    Column("LEASES", 4),
    Column("TURNS", 6),
    Column("TOK/S", 1),
    Column("P50", 5),
    Column("P99", 2),
    Column("FAULTS", 3),
    Column("MEM", 7),
    Column("SEEN", 4),
]
_SERVER = [
    Column("SERVER"),
    Column("STATE", 0, 8),
    Column("VERSION", 2),
    Column("RUN", 1),
    Column("WAIT", 1),
    Column("TOK/S", 3),
    Column("KV", 4),
    Column("PREFIX", 5),
    Column("PUSH", 4),
]
_TOOL = [Column("TOOL"), Column("CALLS"), Column("FAULTS"), Column("P50", 2), Column("P99", 1)]


def fleet_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    inner, room = width - 4, height - 2
    sections = [
        (_ACTOR, s.actors, actor_row, "no actor yet"),
        (_SERVER, s.servers, server_row, "no server yet"),
    ]
    if room >= 6:
        sections.append((_TOOL, s.tools, tool_row, "no tool call yet"))
    shares = allot([max(1, len(rows)) for _, rows, _, _ in sections], room - len(sections))
    body: list[Text] = []
    for (columns, rows, cells, empty), lines in zip(sections, shares, strict=True):
        shown, rest = (rows, []) if len(rows) <= lines else (rows[: lines - 1], rows[lines - 1 :])
        body += table(
            columns,
            [cells(row) for row in shown] + ([_together(rest, cells, "more" if shown else "in all")] if rest else []),
            inner,
        )
        if not rows:
            body.append(Text(empty, style=theme.DIM))
    right = Text()
    if s.faults:
        kinds = [Text(f"{kind} {n}", style=theme.WARN) for kind, n in s.faults.items()]
        right = theme.joined([Text("faults", style=theme.DIM), *kinds], inner - 12)
    return theme.frame("fleet", body, width, height, right)


def lines_wanted(s: Snapshot) -> int:
    """Lines that show every row, frame included."""
    return 5 + max(1, len(s.actors)) + max(1, len(s.servers)) + max(1, len(s.tools))


def allot(wanted: list[int], room: int) -> list[int]:
    """Lines for each section: at least one, then evenly to those that want more."""
    given = [1] * len(wanted)
    while sum(given) < room and any(g < w for g, w in zip(given, wanted, strict=True)):
        given[min((i for i, w in enumerate(wanted) if given[i] < w), key=lambda i: given[i])] += 1
    return given


def actor_row(row: dict[str, Any]) -> list[Cell]:
    age, faults = finite(row.get("age_s")), dig(row, "stats", "faults")
    broken = sum(int(finite(n) or 0) for n in faults.values()) if isinstance(faults, dict) else None
    memory = finite(dig(row, "stats", "rss_mb"))
    return [
        clean(row.get("id") or DASH),
        compact(dig(row, "stats", "in_flight")),
        f"{compact(row.get('held'))}/{compact(row.get('capacity'))}",
        compact(dig(row, "stats", "turns")),
        compact(dig(row, "stats", "tokens_per_s")),
        seconds(dig(row, "stats", "latency_p50")),
        seconds(dig(row, "stats", "latency_p99")),
        (count(broken), theme.WARN if broken else ""),
        DASH if memory is None else f"{memory:.0f} MB",
        (seconds(age), theme.BAD if age is not None and age > SILENT_S else theme.DIM),
    ]


def server_row(row: dict[str, Any]) -> list[Cell]:
    state = clean(row.get("state") or DASH)
    waiting = finite(row.get("waiting"))
    return [
        clean(row.get("url") or DASH).removeprefix("http://"),
        (state, _STATE.get(state, "")),
        compact(row.get("version")),
        compact(row.get("running")),
        (compact(waiting), theme.WARN if waiting else ""),
        compact(row.get("tokens_per_s")),
        share(row.get("kv_usage")),
        share(row.get("prefix_hit_rate")),
        seconds(row.get("last_push_s")),
    ]


def tool_row(row: dict[str, Any]) -> list[Cell]:
    faults = row["faults"]
    return [
        row["name"],
        count(row["calls"]),
        (count(faults), theme.WARN if faults else ""),
        seconds(row["p50"]),
        seconds(row["p99"]),
    ]


def _together(rows: list[dict[str, Any]], cells: Callable[[dict[str, Any]], list[Cell]], word: str) -> list[Cell]:
    """One row for those that have no line of their own: figures that add up are added, of others the largest."""
    return cells({**merge(rows), **dict.fromkeys(("id", "url", "name"), f"{len(rows)} {word}")})


def merge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Key by key: numbers are summed (ages, versions, shares and latencies: the largest), texts kept where equal."""
    out: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row[key] for row in rows if key in row]
        numbers = [n for v in values if (n := finite(v)) is not None]
        if numbers:
            out[key] = max(numbers) if key in _LARGEST else sum(numbers)
        elif all(isinstance(v, dict) for v in values):
            out[key] = merge(values)
        elif len(set(map(str, values))) == 1:
            out[key] = values[0]
    return out
