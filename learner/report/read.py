"""A run folder as the report needs it. Nothing in the folder is changed; whatever is missing is empty."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from learner.run.folder import RunFolder, RunFolderError

#: How long to wait for a learner that is writing its ledger at this moment.
_BUSY_S = 5.0


@dataclass(frozen=True)
class Run:
    """name: short and unique among the runs of a report. steps, evals: records of metrics.jsonl.

    summary: None while the run is not over. audit, staleness: from the ledger itself, see
    ``read_ledger``.
    """

    name: str
    path: Path
    config: dict[str, Any]
    steps: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    baselines: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, int] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)


def read_run(path: Path, name: str | None = None) -> Run:
    """Raises ``RunFolderError`` with what to do: no run in ``path``, or a file that cannot be read."""
    if not (path / "config.yaml").is_file():
        raise RunFolderError(f"{path} holds no run (no config.yaml): give the folder that run.dir named")
    folder = RunFolder(path)
    try:
        records = folder.read_metrics()
        scores = [{**r["eval"], "step": r.get("step")} for r in records if isinstance(r.get("eval"), dict)]
        summary = folder.summary()
        audit, staleness = read_ledger(path / "ledger.sqlite")
        return Run(
            name=name or path.resolve().name,
            path=path,
            config=yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {},
            steps=_steps(records),
            evals=[row for row in scores if not row.get("baseline")],
            # Baselines are scored before the first record of the run; only its summary knows them.
            baselines=(summary or {}).get("baselines") or [row for row in scores if row.get("baseline")],
            summary=summary,
            environment=_json(path / "environment.json"),
            episodes=folder.read_episodes(),
            audit=audit,
            staleness=staleness,
        )
    except (OSError, ValueError, yaml.YAMLError, sqlite3.Error) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None


def read_ledger(path: Path) -> tuple[dict[str, int], dict[int, int]]:
    """(audit, groups consumed by staleness) of a ledger, which may be in use.

    Staleness of a group: the version that it was trained at less the oldest version among its tokens.
    Counts the rows anew, so a mistake of the learner's own counting would show. Both
    are empty where there is no ledger.
    """
    if not path.is_file():
        return {}, {}
    uri = f"file:{path.resolve().as_posix().replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as db:
        states = dict(db.execute("SELECT state, count(*) FROM units GROUP BY state"))
        (frontier,) = db.execute("SELECT coalesce(max(seq) + 1, 0) FROM units").fetchone()
        counters = dict(db.execute("SELECT name, n FROM counters"))
        ages = "SELECT max(step - 1 - oldest, 0) AS age, count(*) FROM units WHERE state = 'consumed' AND oldest >= 0 GROUP BY age"
        staleness = dict(db.execute(ages))
    audit = {"issued": frontier} | {
        name: states.get(name, 0) for name in ("consumed", "delivered", "pending", "failed")
    }
    return audit | counters | {"lost": frontier - sum(states.values())}, staleness


def _steps(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record a step, in order. Where a step is there twice (a resumed run of an earlier release), the newer one."""
    return [r for _, r in sorted({r["step"]: r for r in records if "eval" not in r and "step" in r}.items())]


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
