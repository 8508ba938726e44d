"""What the agent's tools do: calls, latency, and faults with what they mean."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from . import theme
from .format import bar, clean, compact, count, finite, seconds, share
from .model import Snapshot, dig
from .tables import Cell, Column, table

#: Kind of a fault → (whose it is, what it means). The counters' prefix tells tool, request and episode apart.
FAULTS = {
    "tool.malformed": (
        "policy",
        "a sampled call that is not JSON or not closed; sampling at temperature 1 writes some",
    ),
    "tool.unknown_tool": ("policy", "a call of a tool that there is not"),
    "tool.bad_arguments": ("policy", "arguments that do not fit the tool's schema"),
    "tool.error": ("tool", "the tool raised an error"),
    "tool.timeout": ("tool", "no answer within the tool's time limit"),
    "tool.too_long": ("tool", "output over the limit, cut"),
    "tool.not_text": ("tool", "output that is not text"),
    "episode.environment": ("environment", "the environment raised or hung; the episode was tried again"),
    "episode.reward": ("environment", "a reward that is missing or not finite; the episode was tried again"),
    "episode.sampling": ("server", "no server gave a turn in time; the episode was tried again"),
    "episode.tokens": ("environment", "a prompt over model.max_tokens, or tokens that do not add up"),
}
_OTHERS = {
    "request": ("server", "requests to a server that failed and were sent again"),
    "tool": ("tool", "calls that went wrong"),
    "episode": ("environment", "episodes that were tried again"),
}
_WHOSE = {"policy": theme.ACCENT, "tool": theme.WARN, "environment": theme.WARN, "server": theme.BAD}

#: Cells of a fault's line before its meaning.
_HEAD = 68

_TOOL = [
    Column("TOOL"),
    Column("CALLS"),
    Column("FAULTS"),
    Column("SHARE", 3, 5),
    Column("P50", 2),
    Column("P99", 1),
]


def tool_columns() -> list[Column]:
    return _TOOL


def tool_row(row: dict[str, Any]) -> list[Cell]:
    calls, faults = finite(row.get("calls")) or 0.0, finite(row.get("faults")) or 0.0
    return [
        # Calls that name no tool, or cannot be read, are counted together.
        "unreadable" if row.get("name") == "(none)" else str(row.get("name")),
        count(calls),
        (count(faults), theme.WARN if faults else ""),
        share(faults / calls) if calls else share(0),
        seconds(row.get("p50")),
        seconds(row.get("p99")),
    ]


def meaning(kind: str) -> tuple[str, str]:
    """(whose fault, what it means) of a counter such as ``tool.timeout``."""
    return FAULTS.get(kind) or _OTHERS.get(kind.partition(".")[0], ("environment", "counted by the actors"))


def tools_page(s: Snapshot, width: int, height: int, query: str, scroll: int) -> tuple[list[Text], int]:
    """(lines, how far can be scrolled): the faults, which are the longer list. query: words that a row must have."""
    words = query.lower().split()
    rows = [row for row in s.tools if all(word in str(row["name"]).lower() for word in words)]
    top = min(max(1, len(rows)), max(2, height // 3)) + 3
    body = table(_TOOL, [tool_row(row) for row in rows[: top - 3]], width - 4)
    if not rows:
        body.append(Text("no tool call yet" if not query else "no tool passes the filter", style=theme.DIM))
    hidden = len(rows) - (top - 3)
    calls = sum(row["calls"] for row in s.tools)
    right = Text(f"{count(calls)} calls since the actors started", style=theme.DIM)
    faults, limit = theme.scrolled(_fault_lines(s, width - 4, words), scroll, height - top - 2)
    total = Text(
        f"{count(sum(s.faults.values()))} in {count(s.total(s.actors, 'stats', 'turns'))} turns", style=theme.DIM
    )
    return [
        *theme.frame("tools", body, width, top, right, f"{hidden} more" if hidden > 0 else ""),
        *theme.frame("faults", faults, width, height - top, total, "whose they are, and what they mean"),
    ], limit


def _fault_lines(s: Snapshot, inner: int, words: list[str]) -> list[Text]:
    turns = s.total(s.actors, "stats", "turns") or 0.0
    most = max(s.faults.values(), default=1)
    found = [(kind, n, *meaning(kind)) for kind, n in s.faults.items()]
    found = [row for row in found if all(word in f"{row[0]} {row[2]} {row[3]}".lower() for word in words)]
    beside = all(_HEAD + len(row[3]) <= inner for row in found)
    body: list[Text] = []
    for kind, n, whose, means in found:
        head = theme.row(
            f"{kind:<22.22} ",
            (f"{compact(n):>6} ", theme.BOLD),
            (bar(n / most, 8), theme.WARN),
            f" {share(n / turns if turns else None):>5} of turns  ",
            (f"{whose:<12}", _WHOSE[whose]),
        )
        body += [theme.row(head, (means, theme.DIM))] if beside else [head, theme.row("  ", (means, theme.DIM))]
        if per_actor := _by_actor(s, kind):
            body.append(theme.row("  ", (per_actor, theme.WARN)))
    return body or [Text("no fault yet" if not s.faults else "no fault passes the filter", style=theme.DIM)]


def _by_actor(s: Snapshot, kind: str) -> str:
    """Where one actor has most of a fault that others could have as well."""
    found = sorted(
        ((int(finite(dig(row, "stats", "faults", kind)) or 0), clean(row.get("id"))) for row in s.actors), reverse=True
    )
    total = sum(n for n, _ in found)
    if len(found) > 1 and total >= 5 and found[0][0] > 0.8 * total:
        return f"{found[0][0]} of {total} on {found[0][1]}"
    return ""
