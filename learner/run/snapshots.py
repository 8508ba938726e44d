"""``snapshots.jsonl``: what a dashboard showed, every few seconds, so that a run can be watched again.

One line a picture: the learner's snapshot without its history (that is ``metrics.jsonl``) and
without the sections that are as they were in the line before.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from learner.run.durable import replace_text

log = logging.getLogger("rollway.learner")

Frame = dict[str, Any]

#: In the folder of a run.
FILE = "snapshots.jsonl"

#: Bytes that the file may have; then every second picture goes, and they are taken half as often.
LIMIT_BYTES = 32 * 2**20

#: In a frame, instead of the history: its newest step.
LAST_STEP = "last_step"


class SnapshotLog:
    """Adds to ``snapshots.jsonl`` of a run, also of one that is gone on with."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES):
        self._path, self._limit = path, limit_bytes
        self._before: Frame = {}
        self._torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")

    @property
    def last_step(self) -> int:
        """The newest step that was written."""
        return self._before.get(LAST_STEP, 0)

    def add(self, snapshot: dict[str, Any]) -> bool:
        """Write one picture; its ``history`` need not have steps up to ``last_step`` again.

        True where the file had become too long and was thinned.
        """
        frame = {name: section for name, section in snapshot.items() if name != "history"}
        frame[LAST_STEP] = max([self.last_step, *(record["step"] for record in snapshot["history"])])
        with self._path.open("a", encoding="utf-8") as file:
            # A line that a kill tore stays by itself.
            file.write(("\n" if self._torn else "") + _line(frame, self._before))
            full = file.tell() > self._limit
        self._torn, self._before = False, frame
        if full:
            replace_text(self._path, "".join(_lines(list(read_snapshots(self._path))[::2])))
            self._before = {}
        return full


def read_snapshots(path: Path) -> Iterator[Frame]:
    """The pictures, each with all its sections. Torn lines are left out; a missing file has no pictures."""
    if not path.exists():
        return
    frame: Frame = {}
    with path.open("rb") as file:
        for line in file:
            try:
                frame = {**frame, **json.loads(line)}
            except (ValueError, TypeError):
                continue
            yield frame


class Recorder:
    """Writes a picture every ``every_s`` seconds from a thread of its own, and a last one when stopped.

    snapshot: as ``Gateway.snapshot``, called with the step from which the history is wanted.
    """

    def __init__(self, snapshot: Callable[[int], dict[str, Any]], path: Path, every_s: float):
        self._snapshot, self._log, self._every_s = snapshot, SnapshotLog(path), every_s
        self._over = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._take()
        self._take()

    def _take(self) -> None:
        try:
            if self._log.add(self._snapshot(self._log.last_step + 1)):
                self._every_s *= 2
                log.info("%s was full and is thinned; from now on a picture every %g s", FILE, self._every_s)
            self._failed = False
        except OSError as error:
            if not self._failed:  # once, not every few seconds
                log.error("no pictures for the replay of the dashboard: %s; training goes on", error)
            self._failed = True


def _lines(frames: Iterable[Frame]) -> Iterator[str]:
    before: Frame = {}
    for frame in frames:
        yield _line(frame, before)
        before = frame


def _line(frame: Frame, before: Frame) -> str:
    news = {name: section for name, section in frame.items() if name not in before or before[name] != section}
    return json.dumps(news, ensure_ascii=False, separators=(",", ":")) + "\n"
