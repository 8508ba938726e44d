"""The first page, for any window: is it learning, what limits it, who works, and what the agent does."""

from __future__ import annotations

from rich.text import Text

from . import theme, timeline
from .diagnosis import fleet_sentence
from .episode import episode_panel
from .fleet import fleet_panel, lines_wanted
from .format import clean, compact, score
from .learner_page import learner_panel
from .learning import em_panel, reward_panel
from .model import RECENT, Snapshot
from .pipeline import pipeline_panel

#: From this height on, fleet and learner have panels of their own; below, one line each.
_TALL = 27


def overview_page(s: Snapshot, width: int, height: int) -> list[Text]:
    tall = height >= _TALL
    pipeline = pipeline_panel(s, width, tall, [] if tall else [_learner_line(s, width - 4), _fleet_line(s, width - 4)])
    plots = max(8, min(18, round(height * (0.3 if height < 40 else 0.34))))
    middle = max(8, min(round(height * 0.29), max(11, lines_wanted(s)))) if tall else 0
    half = width // 2
    members = theme.beside(fleet_panel(s, half, middle), learner_panel(s, width - half, middle)) if tall else []
    return [
        *theme.beside(reward_panel(s, half, plots), em_panel(s, width - half, plots)),
        *pipeline,
        *members,
        *episode_panel(s, width, height - plots - len(pipeline) - middle),
    ]


def _learner_line(s: Snapshot, width: int) -> Text:
    stale = theme.row(
        ("stale ", theme.DIM),
        f"{score(s.last('staleness_mean'), 1)} of η {clean(s.run.get('staleness_bound', '–'))}  ",
    )
    parts = timeline.legend(timeline.shares(s.history[-RECENT:]))
    return theme.row(stale, theme.joined(parts, width - stale.cell_len))


def _fleet_line(s: Snapshot, width: int) -> Text:
    sentence, severity = fleet_sentence(s)
    faults = [Text(f"{kind} {compact(n)}", style=theme.DIM) for kind, n in s.faults.items()]
    text = theme.row((sentence, theme.SEVERITY[severity]), "  ")
    return theme.row(text, theme.joined(faults, width - text.cell_len))
