"""What a run's ledger still knows of its batches, read only: the run may be over, killed, or going on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgpack

from protocol.codec import decode
from protocol.trajectory import Group

_WAIT_S = 5.0


class RecordedGroups:
    """``with RecordedGroups(path)``: the groups kept in that ledger. Raises ``FileNotFoundError`` where there is none."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there: no group was ever finished in that run")
        # Without a write-ahead log beside it nobody writes: then not even lock files are made, so an archive can be read.
        closed = not path.with_name(f"{path.name}-wal").exists()
        options = "mode=ro&immutable=1" if closed else "mode=ro"
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=_WAIT_S)

    def __enter__(self) -> RecordedGroups:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def steps(self) -> list[int]:
        """Steps whose groups are all kept, in order."""
        query = (
            "SELECT step FROM units LEFT JOIN payloads USING (seq) WHERE step IS NOT NULL "
            "GROUP BY step HAVING count(*) = count(frames) ORDER BY step"
        )
        return [step for (step,) in self._db.execute(query)]

    def last_step(self) -> int:
        """The newest step that consumed anything; 0 if none has."""
        return self._db.execute("SELECT coalesce(max(step), 0) FROM units").fetchone()[0]

    def units(self, step: int) -> list[int]:
        """seq of each unit that ``step`` consumed, whether its group is kept or not."""
        return [seq for (seq,) in self._db.execute("SELECT seq FROM units WHERE step = ? ORDER BY seq", (step,))]

    def groups(self, step: int) -> list[Group]:
        """The groups that ``step`` consumed, lowest seq first: the order of a batch."""
        query = "SELECT frames FROM payloads JOIN units USING (seq) WHERE step = ? ORDER BY seq"
        return [decode(msgpack.unpackb(frames))[1] for (frames,) in self._db.execute(query, (step,))]

    def usable(self, version: int) -> int:
        """Groups that a run going on from ``version`` finds finished: unused ones, and those of steps undone by it."""
        query = "SELECT count(*) FROM units JOIN payloads USING (seq) WHERE state = 'delivered' OR step > ?"
        return self._db.execute(query, (version,)).fetchone()[0]
