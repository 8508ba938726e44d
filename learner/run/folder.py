"""The run folder: everything that a run leaves behind. A kill at any moment spoils nothing.

config.yaml      the resolved configuration (config-<n>.yaml: those of earlier parts of the run)
metrics.jsonl    a record a step and a record an evaluation, flushed as they are written
tensorboard/     the same for TensorBoard (``log.trackers``; ``tracking-id``: the run's name at other services)
trajectories/    sampled episodes to read
episodes.jsonl   sampled episodes with their tokens, for the report and the browser
snapshots.jsonl  what the dashboard showed, every few seconds (``learner.run.snapshots``)
environment.json machine, revision and packages of the newest part of the run
logs/            one file a process
checkpoints/, export/
summary.json     written last: its presence says that the run is over
"""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from configs.load import dump_config
from configs.schema import Config
from learner.run.durable import replace_text
from learner.run.environment import environment
from learner.run.resume import misfit, standing
from learner.run.tracking import Tracker, TrackerMissing, open_trackers

#: Files that only a run which got going leaves.
_TRACES = {"ledger.sqlite", "metrics.jsonl", "summary.json"}


class RunFolderError(RuntimeError):
    """The folder cannot be used; the text says what to do."""


class RunFolder:
    """Made by ``open``. One process writes metrics, trajectories and summary; others may add logs.

    notes: lines for the person who started the run.
    """

    def __init__(self, path: Path, trackers: Sequence[Tracker] = ()):
        """For reading, or by ``open``. trackers: what else takes the records of ``log``."""
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.export = path / "export"
        self.logs = path / "logs"
        self.trajectories = path / "trajectories"
        self.notes: list[str] = []
        self._trackers = trackers
        self._metrics_path = path / "metrics.jsonl"
        self._episodes_path = path / "episodes.jsonl"
        self._metrics: IO[str] | None = None
        self._lock: IO[str] | None = None

    @classmethod
    def open(cls, config: Config, move_aside: bool = False) -> RunFolder:
        """The folder ``run.dir``, held by this process until ``close``.

        A child of the process that holds it (``--role local`` and its learner) gets the
        folder as it is. Otherwise a run that is there already is gone on with where
        ``run.resume`` says so, renamed to ``<dir>-<n>`` with ``move_aside``, and else
        refused. Raises ``RunFolderError``: another run, one in use, none to resume, other files.
        """
        try:
            return cls._open(config, Path(config.run.dir), move_aside)
        except TrackerMissing as error:
            raise RunFolderError(str(error)) from None
        except OSError as error:
            raise RunFolderError(f"run.dir: {config.run.dir} cannot be used: {error.strerror or error}") from None

    @classmethod
    def _open(cls, config: Config, path: Path, move_aside: bool) -> RunFolder:
        folder = cls(path, open_trackers(config, path))
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"run.dir: {path} is not a folder; give another one")
        found = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        if found - {".lock"} and "config.yaml" not in found:
            raise RunFolderError(f"run.dir: {path} holds files that are not a run's; give another one")
        if config.run.resume and "config.yaml" not in found:
            raise RunFolderError(f"there is no run to resume in {path}: drop --resume, or correct run.dir")
        path.mkdir(parents=True, exist_ok=True)
        if not folder._take():
            return folder
        # A run that failed before it did anything is no loss: its folder is used again.
        if found & _TRACES and not config.run.resume:
            try:
                folder._make_way(move_aside)
            finally:
                folder._release()
            path.mkdir()
            folder._take()
        if config.run.resume:
            folder._go_on(config)
        for part in (folder.checkpoints, folder.logs, folder.trajectories):
            part.mkdir(exist_ok=True)
        folder._write_config(dump_config(config))
        replace_text(path / "environment.json", json.dumps(environment(), indent=2) + "\n")
        return folder

    def close(self) -> None:
        if self._metrics:
            self._metrics.close()
            self._metrics = None
        for tracker in self._trackers:
            tracker.close()
        self._release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── metrics ──────────────────────────────────────────────────────────────

    def log(self, record: dict[str, Any]) -> None:
        """Add the record of a step, or of an evaluation: {"step", "eval": {"dataset", "em", …}}.

        NaN and infinity become null: JSON has no word for them.
        """
        if self._metrics is None:
            _cut_torn_line(self._metrics_path)
            self._metrics = self._metrics_path.open("a", encoding="utf-8")
        record = _plain(record)
        self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
        self._metrics.flush()
        for tracker in self._trackers:
            tracker.add(record)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All records, without a last line that a kill tore.

        Raises ``RunFolderError`` naming the line where one before it cannot be read.
        """
        return _read_lines(self._metrics_path)

    def truncate_metrics(self, step: int) -> None:
        """Forget all records and episodes after ``step``: a learner that resumes there writes them again."""
        if self._metrics:
            self._metrics.close()
            self._metrics = None
        kept = [record for record in self.read_metrics() if (record.get("step") or 0) <= step]
        replace_text(self._metrics_path, "".join(json.dumps(record) + "\n" for record in kept))
        for tracker in self._trackers:
            tracker.rewind(step)
        if self._episodes_path.exists():
            lines = (json.dumps(record) + "\n" for record in self.read_episodes() if record["step"] <= step)
            replace_text(self._episodes_path, "".join(lines))

    # ── episodes ─────────────────────────────────────────────────────────────

    def log_episodes(self, records: list[dict[str, Any]]) -> None:
        """Add sampled episodes (``learner.run.episodes``), one line each."""
        _cut_torn_line(self._episodes_path)
        with self._episodes_path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(_plain(record), allow_nan=False) + "\n" for record in records)

    def read_episodes(self) -> list[dict[str, Any]]:
        """All of them, without a last line that a kill tore. Raises ``RunFolderError`` as ``read_metrics`` does."""
        return _read_lines(self._episodes_path)

    # ── single files ─────────────────────────────────────────────────────────

    def write_trajectories(self, step: int, texts: list[str], kind: str = "step") -> Path:
        """Keep rendered episodes: ``trajectories/step-000010.md``."""
        path = self.trajectories / f"{kind}-{step:06d}.md"
        replace_text(path, f"# {kind.capitalize()} {step}\n\n" + "\n".join(texts))
        return path

    def log_path(self, process: str) -> Path:
        """The log file of a process, e.g. ``actor-0``."""
        return self.logs / f"{process}.log"

    def write_summary(self, summary: dict[str, Any]) -> None:
        replace_text(self.path / "summary.json", json.dumps(_plain(summary), indent=2, allow_nan=False) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that is over, None while there is none."""
        path = self.path / "summary.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    # ── opening ──────────────────────────────────────────────────────────────

    def _go_on(self, config: Config) -> None:
        if problem := misfit(self.path, config):
            self._release()
            raise RunFolderError(problem)
        self.notes.append(standing(self.path, config))

    def _make_way(self, move_aside: bool) -> None:
        finished = self.summary() is not None
        if not move_aside:
            raise RunFolderError(
                f"{self.path} holds {'a finished' if finished else 'an unfinished'} run: "
                "give another run.dir, or go on with it by --resume (or run.resume=true)"
            )
        aside = _free_name(self.path)
        self.path.rename(aside)
        hint = "" if finished else f"; to go on with it: --resume run.dir={aside}"
        self.notes.append(f"the earlier run in {self.path} is now in {aside}{hint}")

    def _write_config(self, text: str) -> None:
        path = self.path / "config.yaml"
        if path.exists() and path.read_text(encoding="utf-8") != text:
            kept = _free_name(path)
            shutil.copyfile(path, kept)
            self.notes.append(f"the configuration is not that of the run so far, which is kept as {kept}")
        replace_text(path, text)
        (self.path / "summary.json").unlink(missing_ok=True)

    def _take(self) -> bool:
        """Hold the folder. False where an ancestor of this process does; the kernel frees it with its holder."""
        path = self.path / ".lock"
        lock = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            if holder in [str(parent.pid) for parent in psutil.Process().parents()]:
                return False
            raise RunFolderError(
                f"{self.path} is in use by process {holder or '?'}: end that run, or give another run.dir"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock
        return True

    def _release(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None


def _cut_torn_line(path: Path) -> None:
    """So that the next record does not run into it. Reads the end of the file only."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = whole = file.seek(0, os.SEEK_END)
        while whole > 0:
            start = max(0, whole - 65536)
            file.seek(start)
            if (found := file.read(whole - start).rfind(b"\n")) >= 0:
                whole = start + found + 1
                break
            whole = start
    if whole < size:
        os.truncate(path, whole)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes() if path.exists() else b""
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise RunFolderError(f"{path}:{number} is not JSON ({error}): mend or delete that line") from None
    return records


def _free_name(path: Path) -> Path:
    """``name-1``, ``name-2``, … (before a file's suffix): the first that is free."""
    stem, suffix = (path.name, "") if path.is_dir() else (path.stem, path.suffix)
    names = (path.with_name(f"{stem}-{number}{suffix}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _plain(value: Any) -> Any:
    """JSON values: numpy scalars and paths converted, NaN and infinity as None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
