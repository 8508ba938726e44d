"""Bounded staleness as plain accounting: how much may be under way, and what is too old.

With B groups a step and bound η, leased + waiting + taken groups stay within (η + 1)·B, so
that what is issued now can be consumed within η versions. Tokens may still come late, so
age is checked again where a group is consumed.
"""

from __future__ import annotations

from protocol.trajectory import NO_VERSION


class StalenessGate:
    """Groups are known by the seq of their unit.

    ``waiting``: seq → oldest version of the finished groups; ``taken``: those in training.
    """

    def __init__(self, groups: int, staleness: int) -> None:
        self.capacity = (staleness + 1) * groups
        self.version = 0
        self.waiting: dict[int, int] = {}
        self.taken: list[int] = []
        self._staleness = staleness
        self._committed: dict[int, int] = {}  # step → groups

    @property
    def floor(self) -> int:
        """Oldest version that a token may have to be trained on now or later."""
        return max(0, self.version - self._staleness)

    @property
    def committed(self) -> int:
        """Groups used up by an update whose version is not open yet."""
        return sum(self._committed.values())

    def stale(self, oldest: int) -> bool:
        """Too old for any update from now on. ``NO_VERSION``: nothing was sampled, nothing is old."""
        return oldest != NO_VERSION and oldest < self.floor

    def room(self, leased: int) -> int:
        """How many more groups may be leased."""
        return self.capacity - leased - len(self.waiting) - len(self.taken) - self.committed

    def set_version(self, version: int) -> None:
        self.version = version
        self._committed = {step: groups for step, groups in self._committed.items() if step > version}

    def drop_stale(self) -> list[int]:
        """Waiting groups that are too old by now; they wait no more."""
        old = [seq for seq, oldest in self.waiting.items() if self.stale(oldest)]
        for seq in old:
            del self.waiting[seq]
        return old

    def take(self, count: int) -> list[int] | None:
        """waiting → taken for the ``count`` lowest seqs, in that order; None if there are fewer."""
        if len(self.waiting) < count:
            return None
        seqs = sorted(self.waiting)[:count]
        for seq in seqs:
            del self.waiting[seq]
        self.taken += seqs
        return seqs

    def commit(self, step: int) -> None:
        """The taken groups made version ``step``. Their places stay occupied until that version
        is set, or lock-step would issue work to the weights before it."""
        if step > self.version:
            self._committed[step] = self._committed.get(step, 0) + len(self.taken)
        self.taken = []

    def reset(self, version: int, waiting: dict[int, int]) -> None:
        """Go on from a checkpoint."""
        self.version, self.waiting, self.taken, self._committed = version, waiting, [], {}
