"""The one page, for any window: which panel goes where and how large."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from . import theme
from .episode import episode_panel
from .fleet import fleet_panel, lines_wanted
from .flow import learner_panel, pipeline_panel
from .format import bar, clean, clock, compact, share
from .learning import em_panel, reward_panel
from .model import Snapshot

MIN_WIDTH, MIN_HEIGHT = 72, 20

_HELP = (
    ("p  ?", "hold the picture, this help"),
    ("", ""),
    ("reward", "dots: single steps; line: mean of the last ones"),
    ("exact match", "lines: training episodes; marks: held out, greedy"),
    ("", "dashes: means over the data sets trained on"),
    ("pipeline", "▲ marks the stage that limits the run, with the reason"),
    ("queue", "groups leased, ready or in training, of (η + 1) batches"),
    ("staleness", "learner's version when used − version that sampled"),
    ("off-policy", "π_prox/μ: mean, max, effective sample size, clipped"),
    ("mismatch", "log π of the learner against log μ of the sampler"),
    ("zero-signal", "groups of equal rewards: they teach nothing"),
    ("ledger", "groups used, too stale, lost, delivered twice, failed"),
)


class Page:
    """Renders to exactly the size of the console.

    note: a warning for the last line, before the run's own message. leave: what the key q does.
    """

    def __init__(self, snapshot: dict[str, Any] | None, note: str = "", help_open: bool = False, leave: str = "leave"):
        self.snapshot, self.note, self.help_open, self.leave = Snapshot(snapshot), note, help_open, leave

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        for i, line in enumerate(self.lines(width, height)):
            yield from line.render(console, end="\n" if i < height - 1 else "")

    def lines(self, width: int, height: int) -> list[Text]:
        """``height`` lines of ``width`` cells."""
        if self.help_open:
            body = [theme.row((f"{key:<13}", theme.ACCENT), text) for key, text in (("q", self.leave), *_HELP)]
            body = theme.frame("help", body, width, height - 2)
        elif width < MIN_WIDTH or height < MIN_HEIGHT:
            notes = (self.snapshot.bottleneck.sentence, "the full page needs 80×24 or more")
            body = [theme.fit(theme.row(note), width) for note in notes]
        else:
            body = self._panels(width, height - 2)
        body = body[: height - 2] + [Text(end="") for _ in range(height - 2 - len(body))]
        return [theme.fit(self._header(width), width), *body, theme.fit(self._footer(), width)]

    def _panels(self, width: int, height: int) -> list[Text]:
        s = self.snapshot
        pipeline = 6 if height >= 26 else 5
        plots = max(7, min(18, round(height * (0.29 if height < 40 else 0.34))))
        middle = max(6, min(round(height * 0.29), max(11, lines_wanted(s))))
        episode = height - pipeline - plots - middle
        half = width // 2
        return [
            *theme.beside(reward_panel(s, half, plots), em_panel(s, width - half, plots)),
            *pipeline_panel(s, width, pipeline),
            *theme.beside(fleet_panel(s, half, middle), learner_panel(s, width - half, middle)),
            *episode_panel(s, width, episode),
        ]

    def _header(self, width: int) -> Text:
        s, run = self.snapshot, self.snapshot.run
        step, steps = run.get("step"), run.get("steps")
        done = step / steps if isinstance(step, (int, float)) and isinstance(steps, (int, float)) and steps else None
        line = theme.row(
            (" ROLLWAY ", f"reverse {theme.TITLE}"),
            " ",
            (clean(run.get("id") or "–"), theme.BOLD),
            (f"  {bar(done, max(6, width // 10))} ", theme.ACCENT),
            (f"step {compact(step)}/{compact(steps)} ", theme.BOLD),
            (f" {share(done)}  {clock(s.elapsed)} elapsed  {clock(s.eta)} left", theme.DIM),
        )
        facts = f"{clean(run.get('model') or '–').rsplit('/', 1)[-1]} · version {compact(run.get('version'))} "
        gap = width - line.cell_len - len(facts)
        return theme.row(line, " " * gap, (facts, theme.DIM)) if gap > 1 else line

    def _footer(self) -> Text:
        keys = theme.row(
            (" q ", theme.ACCENT), (f"{self.leave}  ", theme.DIM), ("p ", theme.ACCENT), ("pause  ", theme.DIM),
            ("? ", theme.ACCENT), ("help   ", theme.DIM),
        )  # fmt: skip
        note = self.note or clean(self.snapshot.run.get("message") or "")
        return theme.row(keys, (note, theme.WARN if self.note else theme.DIM))
