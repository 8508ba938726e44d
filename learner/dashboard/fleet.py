"""Who does the work: actors and servers, one row each, and who of them is sick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.text import Text

from . import theme
from .diagnosis import Health, actor_health, fleet_sentence, server_health
from .format import DASH, clean, compact, count, finite, seconds, share
from .model import Snapshot, dig
from .pipeline import pipeline_panel
from .tables import Cell, Column, table
from .tools import tool_columns, tool_row

Row = dict[str, Any]

#: From this height on, the pipeline is shown above the rows.
_TALL = 30

#: Of rows that share a line the largest value counts; other numbers are added.
_LARGEST = {
    "age_s",
    "silent_s",
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
    Column("HEALTH", 0, 7, words=True),
    Column("DONE", 4),
    Column("NOW", 3),
    Column("LEASES", 7),
    Column("TURNS", 9),
    Column("TOK/S", 1),
    Column("P50", 6),
    Column("P99", 2),
    Column("FAULTS", 3),
    Column("VERSION", 8),
    Column("MEMORY", 10),
    Column("HEARD", 5),
]
_SERVER = [
    Column("SERVER"),
    Column("HEALTH", 0, 7, words=True),
    Column("STATE", 1, 8, words=True),
    Column("VERSION", 5),
    Column("RUN", 2),
    Column("WAIT", 2),
    Column("TOK/S", 3),
    Column("P50", 7),
    Column("P99", 4),
    Column("KV", 4),
    Column("PREFIX", 8),
    Column("PUSH", 6),
    Column("HEARD", 9),
]


def fleet_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    """For the overview: as many rows as fit, the rest added up in one."""
    inner, room = width - 4, height - 2
    sections = [
        (_ACTOR, s.actors, lambda row: actor_row(row, s), "no actor yet"),
        (_SERVER, s.servers, lambda row: server_row(row, s), "no server yet"),
    ]
    if room >= 6:
        sections.append((tool_columns(), s.tools, tool_row, "no tool call yet"))
    parts = allot([max(1, len(rows)) for _, rows, _, _ in sections], room - len(sections))
    body: list[Text] = []
    for (columns, rows, cells, empty), lines in zip(sections, parts, strict=True):
        shown, rest = (rows, []) if len(rows) <= lines else (rows[: lines - 1], rows[lines - 1 :])
        together = [_together(rest, cells, "more" if shown else "in all")] if rest else []
        body += table(columns, [cells(row) for row in shown] + together, inner)
        if not rows:
            body.append(Text(empty, style=theme.DIM))
    return theme.frame("fleet", body, width, height, _verdict(s, inner - 12))


def fleet_page(s: Snapshot, width: int, height: int, query: str, scroll: int) -> tuple[list[Text], int]:
    """(lines, how far can be scrolled): all columns that fit; the sick first, then by name.

    query: words that a row must have, all of them.
    """
    picture = pipeline_panel(s, width, True, []) if height >= _TALL else []
    height -= len(picture)
    servers = min(max(1, len(s.servers)), max(1, height // 3)) + 3
    actors = _listed(s.actors, lambda row: actor_row(row, s), lambda row: actor_health(row, s), query)
    hosts = _listed(s.servers, lambda row: server_row(row, s), lambda row: server_health(row, s), query)
    top, limit = _section("actors", _ACTOR, actors, width, height - servers, scroll, _verdict(s, width - 30))
    below, _ = _section("servers", _SERVER, hosts, width, servers, 0, Text())
    return [*picture, *top, *below], limit


def lines_wanted(s: Snapshot) -> int:
    """Lines of the panel that shows every row, frame included."""
    return 5 + max(1, len(s.actors)) + max(1, len(s.servers)) + max(1, len(s.tools))


def allot(wanted: list[int], room: int) -> list[int]:
    """Lines for each section: at least one, then evenly to those that want more."""
    given = [1] * len(wanted)
    while sum(given) < room and any(g < w for g, w in zip(given, wanted, strict=True)):
        given[min((i for i, w in enumerate(wanted) if given[i] < w), key=lambda i: given[i])] += 1
    return given


def actor_row(row: Row, s: Snapshot) -> list[Cell]:
    health = actor_health(row, s)
    faults = dig(row, "stats", "faults")
    broken = sum(int(finite(n) or 0) for n in faults.values()) if isinstance(faults, dict) else None
    memory, version = finite(dig(row, "stats", "rss_mb")), finite(dig(row, "stats", "version"))
    return [
        clean(row.get("id") or DASH),
        _health_cell(health),
        compact(dig(row, "stats", "episodes")),
        compact(dig(row, "stats", "in_flight")),
        _leases(row),
        compact(dig(row, "stats", "turns")),
        compact(dig(row, "stats", "tokens_per_s")),
        seconds(dig(row, "stats", "latency_p50")),
        seconds(dig(row, "stats", "latency_p99")),
        (count(broken), theme.WARN if broken else ""),
        DASH if version is None or version < 0 else f"v{compact(version)}",
        DASH if memory is None else f"{memory:.0f} MB",
        (_ago(row.get("age_s")), theme.BAD if health.word.startswith("silent") else theme.DIM),
    ]


def server_row(row: Row, s: Snapshot) -> list[Cell]:
    state = clean(row.get("state") or DASH)
    waiting = finite(row.get("waiting"))
    seen = s.servers_seen.get(clean(row.get("url")), {})
    return [
        clean(row.get("url") or DASH).removeprefix("http://"),
        _health_cell(server_health(row, s)),
        (state, _STATE.get(state, "")),
        f"v{compact(row.get('version'))}" if finite(row.get("version")) is not None else DASH,
        compact(row.get("running")),
        (compact(waiting), theme.WARN if waiting else ""),
        compact(row.get("tokens_per_s")),
        seconds(seen.get("p50")),
        seconds(seen.get("p99")),
        share(row.get("kv_usage")),
        share(row.get("prefix_hit_rate")),
        seconds(row.get("last_push_s")),
        (_ago(row.get("silent_s")), theme.DIM),
    ]


def _leases(row: Row) -> str:
    """Groups held of those that it can hold; episodes of an evaluation apart: they are no groups."""
    held, evaluating = finite(row.get("held")), finite(row.get("evaluating")) or 0.0
    groups = None if held is None else held - evaluating
    if evaluating and not groups:
        return f"{compact(evaluating)} eval"
    return f"{compact(groups)}/{compact(row.get('capacity'))}" + (f" +{compact(evaluating)} eval" if evaluating else "")


def _health_cell(health: Health) -> Cell:
    return (health.word or "well", theme.SEVERITY[health.severity])


def _ago(age: Any) -> str:
    """Times since the last word are read often and matter from seconds on."""
    number = finite(age)
    return DASH if number is None else "now" if number < 1 else f"{seconds(number)} ago"


def _verdict(s: Snapshot, room: int) -> Text:
    sentence, severity = fleet_sentence(s)
    text = Text(sentence, style=theme.SEVERITY[severity])
    text.truncate(max(0, room), overflow="ellipsis")
    return text


def _listed(
    rows: list[Row], cells: Callable[[Row], list[Cell]], health: Callable[[Row], Health], query: str
) -> list[list[Cell]]:
    rank = {"bad": 0, "warn": 1, "note": 2}
    out = [cells(row) for row in sorted(rows, key=lambda row: rank[health(row).severity])]
    words = query.lower().split()
    plain = [" ".join(cell[0] if isinstance(cell, tuple) else cell for cell in line).lower() for line in out]
    return [line for line, text in zip(out, plain, strict=True) if all(word in text for word in words)]


def _section(
    title: str, columns: list[Column], rows: list[list[Cell]], width: int, height: int, scroll: int, right: Text
) -> tuple[list[Text], int]:
    head, *lines = table(columns, rows, width - 4)
    shown, limit = theme.scrolled(lines, scroll, height - 3)
    first = min(scroll, limit)
    note = f"{first + 1} to {first + len(shown)} of {len(rows)}" if limit else str(len(rows))
    body = [head, *(shown or [Text(f"no {title} here", style=theme.DIM)])]
    return theme.frame(title, body, width, height, right, note), limit


def _together(rows: list[Row], cells: Callable[[Row], list[Cell]], word: str) -> list[Cell]:
    """One row for those that have no line of their own: figures that add up are added, of others the largest."""
    return cells({**merge(rows), **dict.fromkeys(("id", "url", "name"), f"{len(rows)} {word}")})


def merge(rows: list[Row]) -> Row:
    """Key by key: numbers are summed (ages, versions, shares and latencies: the largest), texts kept where equal."""
    out: Row = {}
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
