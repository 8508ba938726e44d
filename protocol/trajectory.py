"""The unit of training data: one whole multi-turn episode as flat arrays.

A multi-turn episode is one row, not one row a turn. What was sampled is stored
as it was sampled: nothing in here is ever decoded and encoded again.

An agent that rewrites its history goes on from another context. The episode then has several
*segments*, one after another: what was sampled in one of them saw the tokens of that one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

Finite = Annotated[float, Field(allow_inf_nan=False)]

#: name → dtype of the per-token arrays, in wire order.
TOKEN_FIELDS: dict[str, np.dtype] = {
    "token_ids": np.dtype("<i4"),
    "action_mask": np.dtype("u1"),
    "behaviour_logprobs": np.dtype("<f4"),
    "versions": np.dtype("<i4"),
    "rewards": np.dtype("<f4"),
}

#: Version written on tokens that no policy sampled.
NO_VERSION = -1


class ToolCall(BaseModel):
    """What must hold of an entry of ``Facts.tool_calls``."""

    model_config = ConfigDict(extra="allow", strict=True)

    turn: int
    name: str
    latency_s: Finite
    fault: str | None


class Facts(BaseModel):
    """What must hold of ``Trajectory.facts``, which logs and counters read; more entries are welcome."""

    model_config = ConfigDict(extra="allow", strict=True)

    task_id: str
    dataset: str
    seed: int = 0
    finish: str | None = None
    outcome_reward: Finite | None = None
    process_reward: Finite | None = None
    metrics: dict[str, Finite] = {}
    tool_calls: list[ToolCall] = []


_FACTS = TypeAdapter(list[Facts])


@dataclass(slots=True)
class Trajectory:
    """One episode. All per-token arrays have shape [T].

    token_ids: int32, prompt + everything sampled + everything the environment added.
    action_mask: uint8, 1 where the policy sampled the token.
    behaviour_logprobs: float32, log μ(token) under the distribution that was
        sampled from (temperature and top-p included); 0 on other tokens.
    versions: int32, policy version that sampled the token; ``NO_VERSION`` elsewhere.
    rewards: float32, process rewards on the last action token of the turn that
        earned them, the outcome reward on the last action token of the episode.
    turns: int32 [K, 2], half-open token spans of the K turns that the policy wrote.
    segments: int32 [S], where each context begins: 0, and more where an agent rewrote its
        history. Each begins with tokens that the policy did not write.
    terminated: True when the environment ended the episode; False when a limit
        cut it (a critic bootstraps the latter).
    facts: plain msgpack values: ``task_id``, ``dataset``, ``seed``, ``finish``
        (``done`` | ``max_turns`` | ``length``), ``outcome_reward``,
        ``process_reward``, ``metrics`` {em, f1, ...}, ``tool_calls``
        [{turn, name, latency_s, fault}].
    """

    token_ids: np.ndarray
    action_mask: np.ndarray
    behaviour_logprobs: np.ndarray
    versions: np.ndarray
    rewards: np.ndarray
    turns: np.ndarray
    terminated: bool = True
    facts: dict[str, Any] = field(default_factory=dict)
    segments: np.ndarray = field(default_factory=lambda: np.zeros(1, "<i4"))

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def oldest_version(self) -> int:
        """Lowest policy version among the action tokens, ``NO_VERSION`` if there are none."""
        sampled = self.versions[self.action_mask.astype(bool)]
        return int(sampled.min()) if sampled.size else NO_VERSION

    @property
    def longest_context(self) -> int:
        """Tokens of the longest segment."""
        return int(np.diff(self.segments, append=len(self)).max())

    def by_segment(self, values: np.ndarray) -> list[np.ndarray]:
        """Views of ``values`` [..., T], one a segment."""
        return np.split(values, self.segments[1:], axis=-1)

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum(dtype=np.float64))

    def check_shapes(self) -> None:
        """Raise ``ValueError`` where a per-token array has another type or length than it should."""
        for name, dtype in TOKEN_FIELDS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != (len(self),):
                raise ValueError(f"trajectory.{name}: want {dtype} [{len(self)}], got {array.dtype} {array.shape}")
        if self.turns.ndim != 2 or self.turns.shape[1] != 2:
            raise ValueError(f"trajectory.turns: want shape [K, 2], got {self.turns.shape}")

    def validate(self) -> None:
        """Raise ``ValueError`` naming the field that breaks the invariants above."""
        self.check_shapes()
        arrays = {name: getattr(self, name) for name in TOKEN_FIELDS}
        check_episodes(arrays, self.turns, np.array([len(self)]), np.array([len(self.turns)]), [self.facts])
        if self.segments[0] != 0:
            raise ValueError("trajectory.segments: the first one begins at 0")
        check_segments(self.segments[1:].tolist(), self.action_mask, self.turns)


def check_episodes(
    arrays: dict[str, np.ndarray],
    turns: np.ndarray,
    lengths: np.ndarray,
    turn_counts: np.ndarray,
    facts: list[dict[str, Any]],
) -> None:
    """Raise ``ValueError`` naming the field where episodes break the invariants of ``Trajectory``.

    They lie one after another: arrays [Σ lengths] by name, turns [Σ turn_counts, 2] with spans
    that count from the start of their own episode; types and shapes are known to be right. One
    pass over all of them, because a group is looked at where it is sent, received and read back.
    """
    if arrays["token_ids"].min(initial=0) < 0:
        raise ValueError("trajectory.token_ids: a negative id")
    try:
        _FACTS.validate_python(facts)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"trajectory.facts.{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}") from None
    starts, ends = turns[:, 0], turns[:, 1]
    if (starts < 0).any() or (starts > ends).any() or (ends > np.repeat(lengths, turn_counts)).any():
        raise ValueError("trajectory.turns: a span outside the tokens of its episode")
    mask, rewards, logprobs = arrays["action_mask"], arrays["rewards"], arrays["behaviour_logprobs"]
    if mask.max(initial=0) > 1:
        raise ValueError("trajectory.action_mask: only 0 and 1 are allowed")
    action = mask.view(bool)
    if not np.isfinite(rewards).all():
        raise ValueError("trajectory.rewards: not finite")
    if ((rewards != 0) & ~action).any():
        raise ValueError("trajectory.rewards: a reward lies on a token that the policy did not write")
    if not np.isfinite(logprobs).all() or logprobs.max(initial=0.0) > 1e-4:
        raise ValueError("trajectory.behaviour_logprobs: not a log-probability")
    if ((arrays["versions"] < 0) & action).any():
        raise ValueError("trajectory.versions: an action token without a version")


def check_segments(later: list[int], action_mask: np.ndarray, turns: np.ndarray) -> None:
    """Raise ``ValueError`` unless an episode can be cut before each token of ``later``.

    later: where the segments after the first begin. The rest is the episode's own.
    """
    if not later:
        return
    if not all(a < b for a, b in pairwise([0, *later, len(action_mask)])):
        raise ValueError("trajectory.segments: not in order, or outside the tokens of the episode")
    if action_mask[later].any():
        raise ValueError("trajectory.segments: one begins with a token that the policy wrote")
    if any(((turns[:, 0] < start) & (start < turns[:, 1])).any() for start in later):
        raise ValueError("trajectory.segments: one begins within a turn")


@dataclass(slots=True)
class Group:
    """G finished episodes of one task, under the lease that they were made for.

    frames: what it was decoded from, to be written down as it came; None for one made here.
    """

    lease_id: str
    task_id: str
    trajectories: list[Trajectory]
    frames: Sequence[bytes | memoryview] | None = field(default=None, repr=False, compare=False)

    @property
    def oldest_version(self) -> int:
        """Lowest policy version in the group; ``NO_VERSION`` if the policy wrote nothing in it."""
        oldest = (t.oldest_version for t in self.trajectories)
        return min((version for version in oldest if version != NO_VERSION), default=NO_VERSION)
