"""TensorBoard scalars by TensorBoard's own writer: no torch, nothing loaded before the first record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class ScalarLog:
    """One event file in ``path`` for each part of a run."""

    def __init__(self, path: Path):
        self._path = path
        self._writer: Any = None

    def add(self, record: dict[str, Any]) -> None:
        """The numbers of a step's record as ``train/…``, of an evaluation's as ``eval/<data set>/…``."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in tags(record)]
        self._write(step=int(record.get("step") or 0), summary=Summary(value=scalars))

    def rewind(self, step: int) -> None:
        """TensorBoard hides what earlier parts of the run wrote after ``step``."""
        if self._path.is_dir():
            from tensorboard.compat.proto.event_pb2 import SessionLog

            self._write(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._path.mkdir(parents=True, exist_ok=True)
            self._writer = EventFileWriter(str(self._path))
        self._writer.add_event(Event(wall_time=time.time(), **event))
        self._writer.flush()


def tags(record: dict[str, Any]) -> list[tuple[str, float]]:
    """(tag, value) of every number in a record; nested keys are joined by slashes."""
    scores = record.get("eval")
    if not isinstance(scores, dict):
        return _flat(record, "train")
    name = "/".join(str(part) for part in (scores.get("baseline"), scores.get("dataset")) if part)
    return _flat({key: value for key, value in scores.items() if key != "version"}, f"eval/{name}")


def _flat(values: dict[str, Any], prefix: str) -> list[tuple[str, float]]:
    out: list[tuple[str, float]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            out += _flat(value, f"{prefix}/{key}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            out.append((f"{prefix}/{key}", float(value)))
    return out
