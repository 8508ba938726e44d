"""The learner's disk: a real SQLite file, what a crash leaves of it, and the checkpoints."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Crash(BaseException):
    """The process is dead from here on; no handler for mere errors may mend it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """version: of the policy. trained: seqs of the units that made each version, from 1 on.

    The weights of the simulation are the list of what they were trained on.
    """

    version: int = 0
    trained: tuple[tuple[int, ...], ...] = ()


class Disk:
    """``ledger``: path of the ledger as it is now; ``checkpoints``: the newest last."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng, self._generation = folder, rng, 0
        self.checkpoints = [Checkpoint()]
        self.ledger = folder / "ledger0"
        self._synced: tuple[bytes, int] = (b"", 0)  # head and length of the log at the last fsync

    def save(self, checkpoint: Checkpoint) -> None:
        self.checkpoints = [*self.checkpoints[-1:], checkpoint]

    def load(self, damaged: bool) -> Checkpoint:
        """The newest; the one before where that cannot be read, which is then as good as gone."""
        if damaged and len(self.checkpoints) > 1:
            self.checkpoints.pop()
        return self.checkpoints[-1]

    def synced(self) -> None:
        log = self._log(self.ledger)
        if log.exists():
            with log.open("rb") as file:
                self._synced = (file.read(32), log.stat().st_size)

    def crash(self, connection: sqlite3.Connection, power_cut: bool) -> None:
        """Keep what the operating system has; after a power cut, the log's unsynced tail only in part.

        The connection still has its transaction open: SQLite has to recover from the files alone.
        """
        old, self._generation = self.ledger, self._generation + 1
        self.ledger = self._folder / f"ledger{self._generation}"
        log = self._log(old).read_bytes()
        head, length = self._synced
        if power_cut and log[:32] == head and length <= len(log):
            log = log[: self._rng.randint(length, len(log))]
        self.ledger.write_bytes(old.read_bytes())
        self._log(self.ledger).write_bytes(log)
        connection.close()
        old.unlink()

    @staticmethod
    def _log(path: Path) -> Path:
        return path.with_name(path.name + "-wal")


class CrashingConnection:
    """A connection to SQLite that may find the process dead before any statement."""

    def __init__(self, connection: sqlite3.Connection, disk: Disk, step: Callable[[], None]) -> None:
        self.real, self._disk, self._step = connection, disk, step
        self.statements = 0
        self._full = False
        self._aside = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is read meanwhile belongs to the checks, not to the process."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        if self._aside:
            return self.real.execute(sql, parameters)
        self._step()
        self.statements += 1
        cursor = self.real.execute(sql, parameters)
        if sql.startswith("PRAGMA synchronous"):
            self._full = sql.endswith("FULL")
        elif sql == "COMMIT" and self._full:
            self._disk.synced()
        return cursor

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> sqlite3.Cursor:
        self._step()
        self.statements += 1
        return self.real.executemany(sql, rows)
