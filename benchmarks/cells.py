"""Cells: real runs of ``run.py``, one a method and seed, that can be stopped and gone on with.

A cell is done when its run folder has a summary of the whole run under the very same configuration. A
cell that was cut short goes on from its last checkpoint; one of another configuration is run anew, and
``run.py`` moves the old folder aside.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.load import ConfigError, load_config
from configs.schema import Config
from learner.servers.processes import Child, terminate

RUN = [sys.executable, str(Path(__file__).parents[1] / "run.py")]
#: Time that a run gets to finish its step, save and end all of its processes.
GRACE_S = 40.0
#: What says where a run ran and what it kept to look at, not what it did.
_NOT_COMPARED = {
    "run": {"dir", "resume"},
    "server": {"host", "port", "urls"},
    "gateway": {"host", "port"},
    "metrics": True,
    "log": True,
}


class CellFailed(RuntimeError):
    """The run came to no result; the text says why and where its log is."""


@dataclass(frozen=True)
class Cell:
    """One run. ``overrides`` are those of ``run.py``, ``config`` is what they resolve to."""

    method: str
    seed: int
    folder: Path
    overrides: tuple[str, ...]
    config: Config

    @classmethod
    def of(cls, method: str, seed: int, root: Path, overrides: Iterable[str]) -> Cell:
        """Raises ``ConfigError`` where the overrides do not make a configuration."""
        folder = root / f"{method}-seed{seed}"
        words = (*overrides, f"run.seed={seed}", f"run.dir={folder}")
        try:
            return cls(method, seed, folder, words, load_config(overrides=words))
        except ConfigError as error:
            raise ConfigError(f"{method}: {error}") from None

    @property
    def name(self) -> str:
        return f"{self.method}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """What the run prints; its processes have logs of their own in the run folder."""
        return self.folder.parent / "logs" / f"{self.folder.name}.log"

    @property
    def episodes(self) -> int:
        """Those that a whole run trains on."""
        return self.episodes_at(self.config.run.steps)

    def episodes_at(self, version: int) -> int:
        """Episodes trained on up to a policy version."""
        return version * self.config.learner.groups * self.config.learner.group_size


def begun(cell: Cell) -> bool:
    """The folder holds a run of this configuration, whole or not."""
    try:
        found = load_config(cell.folder / "config.yaml")
    except ConfigError:  # no run, or one of an older schema
        return False
    return _compared(found) == _compared(cell.config)


def finished(cell: Cell) -> dict[str, Any] | None:
    """``summary.json`` of a whole run of this configuration; None otherwise, also where it was stopped on the way."""
    if not begun(cell):
        return None
    try:
        summary = json.loads((cell.folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = set(cell.config.env.eval) <= set(scores(summary, cell.config.run.steps))
    return summary if whole else None


def scores(summary: dict[str, Any], version: int) -> dict[str, float]:
    """Exact match by data set in the evaluation of a policy version; empty if there was none."""
    return {row["dataset"]: row["em"] for row in summary["eval"] if row["version"] == version}


def run_cell(cell: Cell, limit_s: float) -> dict[str, Any]:
    """Run, or go on with, a cell; its summary. Raises ``CellFailed``. Whatever happens, no process is left."""
    resume = ["run.resume=true"] if begun(cell) else []
    child = Child(cell.name, [*RUN, *cell.overrides, *resume], {}, cell.log)
    child.start()
    try:
        child.process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise CellFailed(
            f"not over after {limit_s / 60:g} minutes, stopped; the same command goes on with it"
        ) from None
    finally:
        terminate([child], GRACE_S)
    summary = finished(cell)
    if child.exit_code != 0 or summary is None:
        raise CellFailed(f"{child.last_words() or 'no word'} (exit code {child.exit_code}, log {cell.log})")
    return summary


def play(
    cells: list[Cell], limit_s: float, say: Callable[[str], None] = lambda text: print(text, flush=True)
) -> Iterator[tuple[Cell, str]]:
    """Run what is not done yet, one after the other; after each (cell, "" or why it failed). A failure stops nothing."""
    left = [cell for cell in cells if finished(cell) is None]
    say(f"{len(cells)} cells, {len(cells) - len(left)} done already")
    for number, cell in enumerate(left, 1):
        verb = "going on with" if begun(cell) else "running"
        say(f"[{number}/{len(left)}] {verb} {cell.name}: {cell.folder}")
        began, problem = time.monotonic(), ""
        try:
            found = scores(run_cell(cell, limit_s), cell.config.run.steps)
        except CellFailed as error:
            problem = str(error)
            say(f"    FAILED: {problem}")
        else:
            em = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            say(f"    {(time.monotonic() - began) / 60:.1f} minutes, exact match: {em}")
        yield cell, problem


def _compared(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude=_NOT_COMPARED)
