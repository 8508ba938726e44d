"""Runs → one HTML file. It loads nothing: no network, no file beside it, and its policy forbids both."""

from __future__ import annotations

import base64
import hashlib
import time
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from learner.dashboard.format import clock, compact, count, score, seconds, share
from learner.report import charts, stories, tables, timeline
from learner.report.read import Run

_HERE = Path(__file__).parent


def render(runs: list[Run]) -> str:
    """HTML of one run, or of several with their curves over each other. Raises ``ValueError`` for none.

    Everything from a run is escaped, and the page's own content security policy lets no
    other script run than ``chart.js``.
    """
    if not runs:
        raise ValueError("a report needs a run")
    style, script = _asset("style.css"), _asset("chart.js")
    learning, health = charts.learning(runs), charts.health(runs)
    lines = [timeline_chart for run in runs[:1] if len(runs) == 1 and (timeline_chart := charts.timeline(run))]
    baselines = tables.baseline_names(runs)
    key_rows, other_rows = tables.config_rows(runs)
    return (
        _templates()
        .get_template("report.html.j2")
        .render(
            runs=runs,
            several=len(runs) > 1,
            title=" and ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
            written=time.strftime("%Y-%m-%d %H:%M"),
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
            data=[*learning, *health, *lines],
            learning=learning,
            health=health,
            timeline=lines,
            baselines=baselines,
            scores=tables.score_rows(runs, baselines),
            stories={run.name: _stories(run) for run in runs},
            config_rows=key_rows,
            config_rest=other_rows,
            tables=tables,
            phases=timeline,
            tools=stories.tools,
        )
    )


def _stories(run: Run) -> dict[str, list[stories.Story]]:
    return {
        "Successes": stories.examples(run.episodes, success=True),
        "Failures": stories.examples(run.episodes, success=False),
    }


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {"clock": clock, "compact": compact, "count": count, "score": score}
    environment.filters |= filters | {"seconds": seconds, "share": share}
    return environment


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As a content security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
