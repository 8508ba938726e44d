"""Going on with a run: where it stands, and what has to stay as it was."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import yaml

from configs.schema import Config
from learner.gateway.recorded import RecordedGroups
from learner.run import checkpoints

#: What the checkpoint and the order of the data depend on. Of ``env.args`` only the tasks count; the ledger compares them.
FIXED = (
    "run.seed", "env.path", "env.train", "model.path", "model.dtype", "learner.ranks", "learner.zero_stage", "critic",
)  # fmt: skip


def misfit(folder: Path, config: Config) -> str | None:
    """Why the run in ``folder`` cannot be gone on with under ``config``, in one line; None where it can."""
    before = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    now = config.model_dump(mode="json")
    changed = [name for name in FIXED if _value(before, name) != _value(now, name)]
    if not changed:
        return None
    differences = ", ".join(f"{name} was {_value(before, name)} and is {_value(now, name)} now" for name in changed)
    return (
        f"the run in {folder} cannot go on so: {differences}. {', '.join(FIXED[:-1])} and whether there is a critic "
        "stay as they were, all else may change; --resume without --config takes everything from the folder"
    )


def standing(folder: Path, config: Config) -> str:
    """From where the run in ``folder`` goes on, in one line."""
    pointer = folder / "checkpoints" / checkpoints.LATEST
    name = pointer.read_text(encoding="utf-8").strip() if pointer.exists() else None
    version = (checkpoints.step_of(name) if name else None) or 0
    try:
        with RecordedGroups(folder / "ledger.sqlite") as recorded:
            usable = recorded.usable(version)
    except (FileNotFoundError, sqlite3.DatabaseError):  # what is wrong with a ledger is the learner's to say
        usable = 0
    start = f"goes on from version {version} of {config.run.steps} ({name or 'no checkpoint yet: from the start'})"
    end = "" if version < config.run.steps else "; to train further, give a larger run.steps"
    return f"{start} with {usable} finished groups that wait to be used{end}"


def check_ledger(folder: Path, version: int) -> None:
    """Raise ``ValueError`` where the ledger knows less than the checkpoint of ``version``: it would train twice on tasks."""
    with RecordedGroups(folder / "ledger.sqlite") as recorded:
        last = recorded.last_step()
    if last < version:
        raise ValueError(
            f"{folder}: the ledger ends at step {last} and the checkpoint is of version {version}, so they do not belong "
            f"together: put the run's own ledger.sqlite back, or point {checkpoints.LATEST} to a checkpoint of step {last} or before"
        )


def _value(data: dict[str, Any], name: str) -> Any:
    if name == "critic":
        return "there" if data.get("critic") else "not there"
    section, field = name.split(".")
    return data.get(section, {}).get(field)
