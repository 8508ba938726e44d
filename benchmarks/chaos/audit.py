"""What a run's folder says about it afterwards, read without the code that wrote it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def audit(folder: Path, steps: int, groups: int) -> dict[str, int]:
    """{lost, duplicates, copies, failed}: tasks that no step was trained on, and tasks trained on more than once.

    Every step has to have consumed ``groups`` units, each unit one step, and no unit before
    the last consumed one may be neither used, failed nor still to be issued. copies: groups
    that came a second time, were known as such and thrown away; failed: tasks given up after three attempts.
    """
    with closing(sqlite3.connect(f"file:{folder / 'ledger.sqlite'}?mode=ro", uri=True, timeout=10.0)) as db:
        by_step = dict(db.execute("SELECT step, count(*) FROM units WHERE state = 'consumed' GROUP BY step"))
        rows, distinct, frontier = db.execute(
            "SELECT count(*), count(DISTINCT seq), max(seq) + 1 FROM units"
        ).fetchone()
        (failed,) = db.execute("SELECT count(*) FROM units WHERE state = 'failed'").fetchone()
        (copies,) = db.execute("SELECT n FROM counters WHERE name = 'duplicates'").fetchone()
    used = [by_step.get(step, 0) for step in range(1, steps + 1)]
    beyond = sum(count for step, count in by_step.items() if not 1 <= step <= steps)
    trained = [record["step"] for record in _records(folder) if "eval" not in record]
    return {
        "lost": sum(max(0, groups - count) for count in used) + (frontier or 0) - rows,
        "duplicates": sum(max(0, count - groups) for count in used)
        + beyond
        + rows
        - distinct
        + len(trained)
        - len(set(trained)),
        "copies": copies,
        "failed": failed,
    }


def final_em(folder: Path) -> float | None:
    """Mean exact match over the data sets that were trained on, by the last evaluation; None without one."""
    path = folder / "summary.json"
    if not path.exists():
        return None
    summary = json.loads(path.read_text())
    last = {row["dataset"]: row["em"] for row in summary["eval"] if row["dataset"] in summary["train_datasets"]}
    return round(sum(last.values()) / len(last), 4) if last else None


def completed(folder: Path, steps: int) -> bool:
    """Whether the run says of itself that it is over, with all its steps and a record of each."""
    path = folder / "summary.json"
    trained = {record["step"] for record in _records(folder) if "eval" not in record}
    return path.exists() and json.loads(path.read_text())["steps"] == steps and trained == set(range(1, steps + 1))


def _records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
