"""One context as it grows, and an episode's contexts as one ``Trajectory``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from actors.sampler import Sampled
from protocol.trajectory import NO_VERSION, TOKEN_FIELDS, Trajectory


class Row:
    """Kept small: thousands of them wait for servers at the same time.

    token_ids: all; logprobs, versions: of action tokens alone, which are those of ``turns``,
    half-open spans. rewards: by token.
    """

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.logprobs, self.versions = array("f"), array("i")
        self.rewards: dict[int, float] = {}
        self.turns: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    def add_context(self, ids: Sequence[int]) -> None:
        """Tokens that the policy did not write."""
        self.token_ids.extend(ids)

    def add_turn(self, sampled: Sampled) -> None:
        start = len(self)
        self.token_ids.extend(sampled.ids)
        self.logprobs.extend(sampled.logprobs)
        self.versions.extend(sampled.versions)
        self.turns.append((start, len(self)))

    def add_reward(self, reward: float) -> None:
        """On the last action token so far."""
        at = self.turns[-1][1] - 1
        self.rewards[at] = self.rewards.get(at, 0.0) + reward


def assemble(rows: Sequence[Row], terminated: bool, facts: dict[str, Any]) -> Trajectory:
    """An episode of these contexts, one segment each. Raises ``ValueError`` where it breaks an invariant of trajectories."""
    starts = list(accumulate(map(len, rows), initial=0))
    arrays = {name: np.zeros(starts[-1], dtype) for name, dtype in TOKEN_FIELDS.items()}
    turns = [
        (start + first, start + last) for start, row in zip(starts, rows, strict=False) for first, last in row.turns
    ]
    for start, row in zip(starts, rows, strict=False):
        arrays["token_ids"][start : start + len(row)] = row.token_ids
        for at, reward in row.rewards.items():
            arrays["rewards"][start + at] = reward
    for first, last in turns:
        arrays["action_mask"][first:last] = 1
    action = arrays["action_mask"].astype(bool)
    arrays["behaviour_logprobs"][action] = np.concatenate([np.array(row.logprobs, np.float32) for row in rows])
    arrays["versions"][:] = NO_VERSION
    arrays["versions"][action] = np.concatenate([np.array(row.versions, np.int32) for row in rows])
    trajectory = Trajectory(
        **arrays,
        turns=np.array(turns, np.int32).reshape(-1, 2),
        terminated=terminated,
        facts=facts,
        segments=np.array(starts[:-1], np.int32),
    )
    trajectory.validate()
    return trajectory
