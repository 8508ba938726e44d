"""What an evaluation leaves: a JSON file with every outcome, and a table for a person."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from configs.schema import Config
from learner.dashboard import theme
from learner.dashboard.format import clean, count, score
from learner.evaluation.scores import Outcome, by_task, difference, summarise
from learner.run.durable import replace_text

#: Columns of the table, as far as an environment has them; one that has none of them shows what it has.
_SHOWN = {"em": "EM", "f1": "F1", "sub_em": "sub-EM"}
_DEFAULT_FOLDER = Path("runs/evaluations")


class ReportError(ValueError):
    """A file of an evaluation cannot be read or written; says which and what to do."""


def make(config: Config, outcomes: Sequence[Outcome], began: float) -> dict[str, Any]:
    """The report as plain values. began: Unix time. scores: as ``scores.summarise``; outcomes: one an episode."""
    ev = config.eval
    return {
        "model": ev.endpoint_model if ev.endpoint else config.model.path,
        "endpoint": ev.endpoint,
        "environment": config.env.path,
        "samples": ev.samples,
        "temperature": ev.temperature,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": time.time() - began,
        "scores": summarise(outcomes, ev.samples),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def compare(report: dict[str, Any], other: dict[str, Any], path: Path) -> None:
    """Add to ``report`` its EM − the other's, by data set: ``difference``. Raises ``ReportError`` where they share no task."""
    mine, theirs = (by_task([Outcome(**row) for row in found["outcomes"]], "em") for found in (report, other))
    datasets = dict.fromkeys(row["dataset"] for row in report["scores"])
    found = {name: difference(mine, theirs, name) for name in datasets}
    if not any(found.values()):
        raise ReportError(f"eval.against: {path} has no task of this evaluation; score the same data sets")
    report["difference"] = {
        "against": str(path),
        "model": other["model"],
        "em": {name: asdict(gap) for name, gap in found.items() if gap},
        "tasks": {name: sum(task in theirs for task in mine if task[0] == name) for name in datasets},
    }


def output_path(config: Config) -> Path:
    """Where the report goes; its folder is made now, since a folder that cannot be is better known before than after."""
    path = config.eval.output or _DEFAULT_FOLDER / time.strftime("%Y%m%d-%H%M%S.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"eval.output: {path.parent} cannot be made: {error.strerror}") from None
    if path.is_dir():
        raise ReportError(f"eval.output: {path} is a folder; name a file")
    return path


def write(report: dict[str, Any], path: Path) -> None:
    replace_text(path, json.dumps(report, indent=1, allow_nan=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    """A report that ``write`` wrote. Raises ``ReportError``."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        [Outcome(**row) for row in report["outcomes"]]
        return report | {"model": str(report["model"])}
    except OSError as error:
        raise ReportError(f"eval.against: {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ReportError(f"eval.against: {path} is not the file of an evaluation") from None


def table(report: dict[str, Any]) -> Group:
    """Scores by data set and kind, with their intervals; pass@k and the difference from another where there are."""
    rows, notes = report["scores"], []
    names = {name for row in rows for name in row["metrics"]}
    shown = {name: title for name, title in _SHOWN.items() if name in names} or {name: name for name in sorted(names)}
    ks = [k for k in rows[0]["pass"] if int(k) > 1] if rows else []
    average = f" avg@{report['samples']}" if report["samples"] > 1 else ""
    gaps = report.get("difference", {"em": {}})["em"]
    out = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=theme.DIM)
    out.add_column("data set", no_wrap=True)
    titles = [title + average for title in shown.values()] + [f"pass@{k}" for k in ks]
    for title in [*titles, *(["EM − other's"] if gaps else []), "turns", "tasks"]:
        out.add_column(clean(title), justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row["metrics"].get(name)) for name in shown] + [_cell(row["pass"][k]) for k in ks]
        if gaps:
            cells.append(_cell(gaps.get(row["dataset"])) if row["kind"] is None else Text())
        label = clean(row["dataset"]) if row["kind"] is None else f"  {clean(row['kind'])}"
        out.add_row(label, *cells, score(row["turns"], 1), count(row["tasks"]))
    methods = {found["method"] for row in rows for found in [*row["metrics"].values(), *row["pass"].values()]}
    notes.append(f"[95 % interval over tasks: {' or '.join(sorted(methods, reverse=True))}]")
    if gaps:
        notes.append(
            f"other: {clean(report['difference']['model'])}, paired by task ({report['difference']['against']})"
        )
    if failed := sum(row["failed"] for row in rows if row["kind"] is None):
        notes.append(f"{failed} episodes failed and count as not answered; the messages above say why")
    return Group(out, *(Text(note, style=theme.DIM) for note in notes))


def _cell(found: dict[str, Any] | None) -> Text:
    if found is None:
        return Text("–")
    return Text.assemble(
        score(found["mean"], 3), (f" [{score(found['low'], 3)}, {score(found['high'], 3)}]", theme.DIM)
    )
