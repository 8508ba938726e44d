"""Rows → packed micro-batches under a token budget, in equal shares for all ranks.

A micro-batch is one row of concatenated sequences without padding. Every rank gets the
same number of them (ZeRO-3 gathers parameters collectively, so a rank with one forward
fewer would hang the others), and micro-batch k holds about as many tokens on each rank,
since the ranks go through them in step. A sequence is never cut: what is summed over an
episode needs one micro-batch only. Sequences that begin alike stay together where that is
possible, since what they share is computed once in a micro-batch (``sharing``).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from learner.policy.batch import ROW_FIELDS, Row
from learner.policy.sharing import Sharing, common_prefix, share

#: A row stays with the one before it if at least this part of it is computed there.
_WORTH = 0.1
#: Part of a micro-batch that families are cut to fill: parts of whole rows are never quite even.
_FILL = 0.95


@dataclass(slots=True)
class MicroBatch:
    """S sequences in N = ΣT tokens, concatenated.

    rows: int64 [S], which of the packed rows they are; empty in a dummy.
    token_ids, position_ids: int64 [N]; positions start again at 0 in each sequence.
    cu_seqlens: int32 [S + 1], where sequences begin and end.
    sharing: the M tokens that go through the model, and which state belongs to each of the N.
    action_mask, loss_mask: bool [N]. advantages, behaviour_logprobs: float32 [N]. ages: int64 [N].
    """

    rows: np.ndarray
    token_ids: np.ndarray
    position_ids: np.ndarray
    cu_seqlens: np.ndarray
    sharing: Sharing
    action_mask: np.ndarray
    advantages: np.ndarray
    behaviour_logprobs: np.ndarray
    loss_mask: np.ndarray
    ages: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def computed(self) -> int:
        """Tokens that go through the model."""
        return len(self.sharing.keep)

    @property
    def longest(self) -> int:
        return int(np.diff(self.cu_seqlens).max())

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """A per-token array [N] as one array a sequence."""
        return np.split(values, self.cu_seqlens[1:-1])


def pack(rows: list[Row], budget: int, ranks: int = 1) -> list[list[MicroBatch]]:
    """Micro-batches of each rank: ``result[rank][k]``, the same count for every rank.

    No micro-batch exceeds ``budget`` tokens, unless it holds one longer sequence alone.
    Each row is in exactly one; what is missing for equal counts is dummies of one
    token that no mask selects. The result depends on the arguments only, so ranks that
    hold the same rows agree on it without talking.

    Raises ``ValueError`` for a row that is empty or begins with an action token: its
    first token has no predecessor, hence no probability.
    """
    for index, row in enumerate(rows):
        if not len(row) or row.action_mask[0] or row.loss_mask[0]:
            raise ValueError(f"row {index}: a trajectory must begin with a prompt token that the policy did not write")
    lengths = [len(row) for row in rows]
    units = _units(rows, budget, ranks)
    chosen = balanced_bins([sum(lengths[i] for i in unit) for unit in units], budget, ranks)
    bins = [sorted(i for unit in items for i in units[unit]) for items in chosen]
    bins.sort(key=lambda items: sum(lengths[i] for i in items), reverse=True)
    return [[_concatenate(rows, items) for items in bins[rank::ranks]] for rank in range(ranks)]


def _units(rows: Sequence[Row], budget: int, ranks: int) -> list[list[int]]:
    """Places of rows that are to stay together: neighbours that begin alike, as many as fill a micro-batch."""
    families: list[list[int]] = [[0]] if rows else []
    for i, (before, row) in enumerate(pairwise(rows), 1):
        if common_prefix(before.token_ids, row.token_ids) >= _WORTH * len(row):
            families[-1].append(i)
        else:
            families.append([i])
    total = sum(map(len, rows))
    rounds = -(-total // int(max(1, _FILL * budget * ranks)))
    return [part for family in families for part in _parts(rows, family, total / (rounds * ranks), budget)]


def _parts(rows: Sequence[Row], family: list[int], target: float, most: int) -> list[list[int]]:
    """A family in order, cut into parts of about ``target`` tokens, ``most`` at most; a longer row stands alone."""
    whole = sum(len(rows[i]) for i in family)
    even = whole / max(round(whole / target), -(-whole // most))
    parts: list[list[int]] = []
    used = total = 0
    for i in family:
        length = len(rows[i])
        if not parts or used + length > most or total + length / 2 > even * len(parts):
            parts.append([])
            used = 0
        parts[-1].append(i)
        used, total = used + length, total + length
    return parts


def balanced_bins(lengths: list[int], budget: int, multiple: int) -> list[list[int]]:
    """Indices of ``lengths`` in the fewest bins that this greedy rule fits into ``budget``.

    Longest first, each into the bin with the least tokens so far (LPT; Graham 1969),
    which balances bins as first-fit does not; one more round of ``multiple`` bins is
    opened until none overflows. The number of bins is a multiple of ``multiple``, and at
    least one round: surplus bins are empty.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    count = max(1, -(-sum(min(n, budget) for n in lengths) // (budget * multiple))) * multiple
    while True:
        bins: list[list[int]] = [[] for _ in range(count)]
        heap = [(0, b) for b in range(count)]
        for index in order:
            used, b = heapq.heappop(heap)
            if used and used + lengths[index] > budget:
                break
            bins[b].append(index)
            heapq.heappush(heap, (used + lengths[index], b))
        else:
            return [sorted(items) for items in bins]
        count += multiple


def _concatenate(rows: list[Row], items: list[int]) -> MicroBatch:
    chosen = [rows[i] for i in items]
    if not chosen:
        chosen = [Row(**{name: np.zeros(1, dtype) for name, dtype in ROW_FIELDS.items()})]
    lengths = [len(row) for row in chosen]
    return MicroBatch(
        rows=np.array(items, np.int64),
        token_ids=np.concatenate([row.token_ids for row in chosen]).astype(np.int64),
        position_ids=np.concatenate([np.arange(n, dtype=np.int64) for n in lengths]),
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        sharing=share([row.token_ids for row in chosen]),
        action_mask=np.concatenate([row.action_mask for row in chosen]).astype(bool),
        advantages=np.concatenate([row.advantages for row in chosen]).astype(np.float32),
        behaviour_logprobs=np.concatenate([row.behaviour_logprobs for row in chosen]).astype(np.float32),
        loss_mask=np.concatenate([row.loss_mask for row in chosen]).astype(bool),
        ages=np.concatenate([row.ages for row in chosen]).astype(np.int64),
    )
