"""What limits it? The pipeline with its rates and one sentence, and where the learner's time goes."""

from __future__ import annotations

from rich.text import Text

from . import theme
from .format import DASH, bar, clean, compact, count, finite, score, seconds, share, small
from .model import Snapshot, dig, points
from .plot import sparkline

_SEVERITY = {"note": theme.GOOD, "warn": theme.WARN, "bad": theme.BAD}


def pipeline_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    inner = width - 4
    stages = _stages(s, compressed=inner < 110)
    column = inner // len(stages)
    lines = [Text() for _ in range(3)]
    for i, (name, head, first, second) in enumerate(stages):
        limiting = s.bottleneck.stage == name
        style = f"bold {_SEVERITY[s.bottleneck.severity]}" if limiting else theme.BOLD
        title = theme.row((f"{'▲ ' if limiting else ''}{name}", style), " ", head)
        last = i == len(stages) - 1
        title.truncate(column if last else column - 5, overflow="ellipsis")
        arrow = "" if last else "─" * (column - title.cell_len - 3) + "▶"
        lines[0] = theme.row(lines[0], title, (f" {arrow} ", theme.FRAME))
        lines[1].append_text(theme.fit(theme.row(first, "  "), column))
        lines[2].append_text(theme.fit(theme.row((second, theme.DIM), "  "), column))
    note = s.bottleneck
    sentence = theme.row(("● ", _SEVERITY[note.severity]), note.sentence)
    body = [lines[0], lines[1], sentence] if height < 6 else [*lines, sentence]
    return theme.frame("pipeline", body, width, height)


def _stages(s: Snapshot, compressed: bool) -> list[tuple[str, str, str, str]]:
    """(name, beside the name, first line, second line) of actors, servers, queue, learner."""
    current = [row for row in s.servers if row.get("state") == "current"]
    q = s.queue
    kv = max((k for row in current if (k := finite(row.get("kv_usage"))) is not None), default=None)
    ready, leased = compact(q.get("waiting")), compact(q.get("leased"))
    running, waiting = compact(s.total(s.servers, "running")), compact(s.total(s.servers, "waiting"))
    return [
        (
            "actors",
            compact(len(s.actors)),
            f"{compact(s.total(s.actors, 'stats', 'in_flight'))} episodes",
            f"{compact(s.total(s.actors, 'stats', 'tokens_per_s'))} tok/s",
        ),
        (
            "servers",
            f"{len(current)}/{len(s.servers)}" if s.servers else DASH,
            f"{running} run {waiting} wait" if compressed else f"{running} running · {waiting} waiting",
            f"{compact(s.total(s.servers, 'tokens_per_s'))} tok/s · KV {share(kv)}",
        ),
        (
            "queue",
            f"{compact(s.under_way)}/{compact(q.get('capacity'))}",
            f"{leased} out {ready} ready" if compressed else f"{leased} leased · {ready} ready",
            f"{bar(s.queue_fill, 8)} of η + 1" + ("" if compressed else " batches"),
        ),
        (
            "learner",
            s.phase,
            f"{compact(s.recent('tokens_per_s'))} tok/s"
            + ("" if compressed else f" · {seconds(s.recent('seconds', 'step'))}/step"),
            f"busy {share(s.recent('busy'))}",
        ),
    ]


def learner_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    """Most telling lines first; the panel shows as many as fit."""
    inner = width - 4
    lines = [timeline(s, inner), _share_line(s, inner)]
    values = {
        "staleness": [
            ("mean", score(s.last("staleness_mean"))),
            ("max", compact(s.last("staleness_max"))),
            ("bound η", clean(s.run.get("staleness_bound", DASH))),
            ("", sparkline([age for _, age in points(s.history, "staleness_mean")], 10)),
        ],
        "off-policy": [
            ("ratio", score(s.last("ratio_mean"), 3)),
            ("max", small(s.last("ratio_max"))),
            ("ESS", share(s.last("ratio_ess"))),
            ("clip", share(s.last("clip_fraction"))),
        ],
        "mismatch": [
            ("|log π − log μ| mean", small(s.last("logprob_mismatch_mean"))),
            ("max", small(s.last("logprob_mismatch_max"))),
        ],
        "optimizer": [
            ("grad", small(s.last("grad_norm"))),
            ("lr", small(s.last("lr"))),
            ("loss", small(s.last("loss"))),
        ],
        "ledger": [
            ("used", count(s.queue.get("consumed"))),
            ("stale", count(s.queue.get("stale_dropped"))),
            ("lost", count(s.queue.get("lost"))),
            ("dup", count(s.queue.get("duplicates"))),
            ("failed", count(s.queue.get("failed"))),
        ],
        "batch": [
            ("episodes", count(s.last("episodes"))),
            ("tokens", compact(s.last("tokens"))),
            ("sampled", compact(s.last("action_tokens"))),
            ("turns", score(s.last("turns"), 1)),
        ],
        "frames": [
            ("rejected", count(s.queue.get("rejected_frames"))),
            ("epoch", count(s.queue.get("epoch"))),
            ("pending", count(s.queue.get("pending"))),
        ],
    }
    lines += [_value_line(name, facts, inner) for name, facts in values.items()]
    right = theme.row((s.phase, theme.ACCENT), f" {seconds(s.phase_age)}")
    return theme.frame("learner", lines[: height - 2], width, height, right)


def timeline(s: Snapshot, width: int) -> Text:
    """The learner's recent time, one cell a slice: what it did, oldest left, fill and hue by phase."""
    spans = [
        (name, length)
        for record in s.history[-64:]
        for name in ("wait", "update", "push", "eval")
        if (length := finite(dig(record, "seconds", name)))
    ]
    if not spans:
        return Text("no step yet", style=theme.DIM)
    pace = s.recent("seconds", "step") or 1.0
    label = theme.row((f"last {seconds(12 * pace)} ", theme.DIM))
    cells = max(8, width - label.cell_len)
    return theme.row(label, *_cells(spans, cells, 12 * pace / cells))


def _cells(spans: list[tuple[str, float]], cells: int, slice_s: float) -> list[tuple[str, str]]:
    """Each cell shows the phase at its middle, counted back from now."""
    ends, total = [], 0.0
    for name, length in reversed(spans):
        total += length
        ends.append((total, name))
    out, at = [], 0
    for i in range(cells):
        moment = (i + 0.5) * slice_s
        while at < len(ends) and ends[at][0] < moment:
            at += 1
        if at == len(ends):
            break
        style, glyph = theme.PHASES[ends[at][1]]
        out.append((glyph, style))
    return [(" ", "")] * (cells - len(out)) + out[::-1]


def _share_line(s: Snapshot, width: int) -> Text:
    parts = [
        theme.row((theme.PHASES[name][1], theme.PHASES[name][0]), f" {name} ", (share(value), theme.BOLD))
        for name, value in s.time_shares.items()
    ]
    return theme.joined(parts, width)


def _value_line(name: str, values: list[tuple[str, str]], width: int) -> Text:
    label = f"{name:<11}"
    facts = [theme.row((f"{key} " if key else "", theme.DIM), value) for key, value in values]
    return theme.row((label, theme.DIM), theme.joined(facts, width - len(label)))
