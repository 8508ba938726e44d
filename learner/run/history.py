"""The records of a run's steps, in bounded memory however long the run."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

#: Records kept: so many of the newest steps, and so many spread evenly over all before them.
NEWEST, SPREAD = 500, 500


class History:
    """Oldest first; each record has an integer ``step``, and steps come in ascending order.

    Of the steps before the newest ``NEWEST``, those divisible by a stride are kept; it doubles
    when there are more than ``SPREAD``: a curve over the whole run keeps its shape.
    """

    def __init__(self) -> None:
        self._spread: list[Record] = []
        self._newest: list[Record] = []
        self._stride = 1

    def __len__(self) -> int:
        return len(self._spread) + len(self._newest)

    @property
    def last_step(self) -> int:
        """0 while there is none."""
        return (self._newest or self._spread or [{"step": 0}])[-1]["step"]

    def append(self, record: Record) -> None:
        """A step that is there already, or after it, means that the learner went back: those are forgotten."""
        self.cut(record["step"] - 1)
        self._newest.append(record)
        if len(self._newest) > NEWEST:
            self._retire(self._newest.pop(0))

    def cut(self, step: int) -> None:
        """Forget what comes after ``step``."""
        while self._newest and self._newest[-1]["step"] > step:
            self._newest.pop()
        if not self._newest:
            self._spread = [record for record in self._spread if record["step"] <= step]

    def since(self, step: int) -> list[Record]:
        """Records of ``step`` and later."""
        return [record for record in (*self._spread, *self._newest) if record["step"] >= step]

    def _retire(self, record: Record) -> None:
        if record["step"] % self._stride == 0:
            self._spread.append(record)
        if len(self._spread) > SPREAD:
            self._stride *= 2
            self._spread = [kept for kept in self._spread if kept["step"] % self._stride == 0]
