"""The pipeline as a picture: who hands what to whom, how fast, how much waits, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from . import theme
from .diagnosis import bottleneck
from .format import DASH, compact, finite, seconds, share
from .model import Snapshot


@dataclass(frozen=True)
class Stage:
    """name: as ``Bottleneck.stage`` has it. figure: beside the name. detail: in the line below."""

    name: str
    figure: str
    detail: str


@dataclass(frozen=True)
class Arrow:
    """From a stage to the next one: how much passes, and how much waits or is on its way."""

    rate: str
    queue: str


def pipeline_panel(s: Snapshot, width: int, full: bool, below: list[Text]) -> list[Text]:
    """full: with what is in each stage. below: further lines under the sentence."""
    note = bottleneck(s)
    sentence = theme.row(("● ", theme.SEVERITY[note.severity]), note.sentence)
    body = [*_picture(s, width - 4, full), sentence, *below]
    return theme.frame("pipeline", body, width, len(body) + 2)


def _stages(s: Snapshot) -> list[Stage]:
    current = [row for row in s.servers if row.get("state") == "current"]
    kv = max((k for row in current if (k := finite(row.get("kv_usage"))) is not None), default=None)
    q = s.queue
    return [
        Stage("weights", f"v{compact(s.run.get('version'))}", ""),
        Stage("servers", f"{len(current)}/{len(s.servers)}", f"KV {share(kv)}"),
        Stage("actors", compact(len(s.actors)), f"{compact(s.total(s.actors, 'stats', 'in_flight'))} episodes"),
        Stage("queue", f"{compact(s.under_way)}/{compact(q.get('capacity'))}", f"{compact(q.get('leased'))} leased"),
        Stage("learner", s.phase, f"busy {share(s.recent('busy'))}"),
    ]


def _arrows(s: Snapshot, wide: bool) -> list[Arrow]:
    """The rates are of different things in different places, so each has its unit."""
    running, waiting = compact(s.total(s.servers, "running")), compact(s.total(s.servers, "waiting"))
    unit = "episodes/s" if wide else "ep/s"
    made = s.total(s.actors, "stats", "episodes_per_s")
    pushes = [p for row in s.servers if (p := finite(row.get("last_push_s"))) is not None]
    return [
        Arrow(f"{seconds(max(pushes, default=None))} a push" if wide else f"{seconds(max(pushes, default=None))}", ""),
        Arrow(
            f"{compact(s.total(s.servers, 'tokens_per_s'))} tok/s",
            f"{running} run · {waiting} wait" if wide else f"{running} run {waiting} wait",
        ),
        Arrow(f"{_rate(made)} {unit}", f"{compact(s.queue.get('waiting'))} ready"),
        Arrow(f"{_rate(s.trained_per_s)} {unit}", f"{compact(s.queue.get('taken'))} taken"),
    ]


def _picture(s: Snapshot, width: int, full: bool) -> list[Text]:
    stages, arrows, limit = _stages(s), _arrows(s, width >= 100), bottleneck(s)
    titles = [_title(stage, limit.stage == stage.name, theme.SEVERITY[limit.severity]) for stage in stages]
    room = width - sum(title.cell_len for title in titles) - 2 * len(arrows)
    lengths = [room // len(arrows) + (i < room % len(arrows)) for i in range(len(arrows))]
    line, starts, middles = Text(), [], []
    for i, title in enumerate(titles):
        starts.append(line.cell_len)
        line = theme.row(line, title)
        if i < len(arrows):
            middles.append(line.cell_len + 1 + lengths[i] // 2)
            line = theme.row(line, (f" {'─' * (max(2, lengths[i]) - 1)}▶ ", theme.FRAME))
    rates = _labels([(middle, arrow.rate) for middle, arrow in zip(middles, arrows, strict=True)], width, theme.BOLD)
    queues = _labels([(middle, arrow.queue) for middle, arrow in zip(middles, arrows, strict=True)], width, "")
    below = [(start + titles[i].cell_len // 2, stages[i].detail) for i, start in enumerate(starts)]
    details = [_labels(below, width, theme.DIM)] if full else []
    return [rates, line, queues, *details]


def _title(stage: Stage, limiting: bool, style: str) -> Text:
    mark = ("▲ ", style) if limiting else ""
    return theme.row(mark, (stage.name, f"bold {style}" if limiting else theme.BOLD), f" {stage.figure}")


def _labels(placed: list[tuple[int, str]], width: int, style: str) -> Text:
    """Texts centred at their columns, moved where they would touch or leave the line."""
    line = Text()
    for i, (middle, text) in enumerate(placed):
        if not text:
            continue
        rest = sum(len(later) + 1 for _, later in placed[i + 1 :] if later)
        start = max(line.cell_len + bool(line.plain), min(middle - len(text) // 2, width - rest - len(text)))
        line = theme.row(line, " " * (start - line.cell_len), (text, style))
    return line


def _rate(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"
