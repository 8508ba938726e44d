"""What a training step needs of a trajectory, and its form on the way to the other ranks.

Rank 0 alone talks to the actors. It turns finished groups into rows and broadcasts
these; turns and facts stay behind, versions become ages. A segment of an episode is a row:
attention must not cross from one context into another, and each fits into a micro-batch by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import msgpack
import numpy as np

from learner.algorithm.context import response_mask
from protocol.trajectory import Group, Trajectory

#: name → dtype of a row's arrays, in wire order.
ROW_FIELDS: dict[str, np.dtype] = {
    "token_ids": np.dtype("<i4"),
    "action_mask": np.dtype("u1"),
    "behaviour_logprobs": np.dtype("<f4"),
    "advantages": np.dtype("<f4"),
    "loss_mask": np.dtype("u1"),
    "ages": np.dtype("<i4"),
}


@dataclass(slots=True)
class Row:
    """One segment of an episode, nearly always all of it, for the loss. Arrays of shape [T]; dtypes as in ``ROW_FIELDS``.

    action_mask: 1 on tokens that the policy sampled; elsewhere behaviour_logprobs is 0.
    loss_mask: 1 on tokens in the loss; the action mask, unless ``algorithm.masks.loss`` is off.
    ages: the learner's version less that of the token, at least 0; 0 off action tokens.
    """

    token_ids: np.ndarray
    action_mask: np.ndarray
    behaviour_logprobs: np.ndarray
    advantages: np.ndarray
    loss_mask: np.ndarray
    ages: np.ndarray

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def action_tokens(self) -> int:
        return int(self.action_mask.sum())

    @property
    def loss_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def has_signal(self) -> bool:
        """False where every advantage is zero: such a row adds exactly nothing to the gradient."""
        return bool(self.advantages.any())

    @classmethod
    def of(cls, trajectory: Trajectory, advantages: np.ndarray, version: int = 0, mask_tools: bool = True) -> list[Row]:
        """The rows of an episode. version: the learner's. mask_tools: ``algorithm.masks.loss``.

        Raises ``ValueError`` where the advantages do not fit the trajectory.
        """
        if advantages.shape != (len(trajectory),) or not np.isfinite(advantages).all():
            raise ValueError(
                f"advantages of a trajectory of {len(trajectory)} tokens must be {len(trajectory)} finite values, "
                f"got shape {advantages.shape}; see the estimator named by algorithm.advantage.type"
            )
        action = trajectory.action_mask
        loss_mask = action if mask_tools else response_mask(trajectory).astype("u1")
        arrays = (
            trajectory.token_ids,
            action,
            trajectory.behaviour_logprobs,
            np.where(loss_mask, advantages, 0.0).astype(np.float32),
            loss_mask,
            np.where(action, np.maximum(version - trajectory.versions, 0), 0).astype(np.int32),
        )
        return [cls(*parts) for parts in zip(*map(trajectory.by_segment, arrays), strict=True)]


def mini_batches(
    groups: list[Group], advantages: list[list[np.ndarray]], parts: int, version: int = 0, mask_tools: bool = True
) -> list[list[Row]]:
    """Rows of ``groups`` in ``parts`` lists, whole groups each, in the order given.

    advantages: one list a group, one float array [T] a trajectory. The rest as for ``Row.of``.
    With fewer groups than parts the last lists are empty.
    """
    by_group = [
        [row for t, a in zip(group.trajectories, values, strict=True) for row in Row.of(t, a, version, mask_tools)]
        for group, values in zip(groups, advantages, strict=True)
    ]
    bounds = np.linspace(0, len(by_group), parts + 1).round().astype(int)
    return [[row for rows in by_group[lo:hi] for row in rows] for lo, hi in pairwise(bounds)]


def by_trajectory(trajectories: Sequence[Trajectory], by_row: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Per-token values of rows, by their place, as those of the trajectories that they are cut from, by theirs.

    A trajectory of which a row is missing is left out.
    """
    found, rows = {}, count()
    for place, trajectory in enumerate(trajectories):
        parts = [by_row.get(next(rows)) for _ in trajectory.segments]
        if all(part is not None for part in parts):
            found[place] = np.concatenate(parts)
    return found


def encode(batches: list[list[Row]]) -> list[Any]:
    """Rows as nested lists of raw little-endian bytes, ready for msgpack."""
    return [
        [[getattr(row, name).astype(dtype, copy=False).tobytes() for name, dtype in ROW_FIELDS.items()] for row in rows]
        for rows in batches
    ]


def decode(batches: list[Any]) -> list[list[Row]]:
    """Inverse of :func:`encode`; the arrays are read-only views."""
    return [
        [Row(*(np.frombuffer(b, dtype) for b, dtype in zip(blobs, ROW_FIELDS.values(), strict=True))) for blobs in rows]
        for rows in batches
    ]


def pack_message(message: dict[str, Any]) -> bytes:
    return msgpack.packb(message, use_bin_type=True)


def unpack_message(data: bytes) -> dict[str, Any]:
    return msgpack.unpackb(data, raw=False)
