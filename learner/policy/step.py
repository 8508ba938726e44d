"""One optimizer step as planned: what goes through the model, and what the loss is divided by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learner.algorithm.reduction import Totals
from learner.policy.batch import Row
from learner.policy.packing import MicroBatch, pack


@dataclass(slots=True)
class Step:
    """micro: this rank's micro-batches. rows: places in the whole batch of the rows that were packed.

    forward_tokens: that go through the model, on all ranks.

    totals counts all rows of the mini-batch on all ranks, also those that were
    left out because they carry no signal: leaving them out must not change the gradient.
    """

    micro: list[MicroBatch]
    rows: list[int]
    totals: Totals
    forward_tokens: int

    def by_row(self, micro: MicroBatch, values: np.ndarray) -> dict[int, np.ndarray]:
        """A per-token array [N] of one of ``micro`` as place in the batch → array [T]."""
        parts = zip(micro.rows, micro.split(values), strict=False)  # a dummy has no rows
        return {self.rows[row]: part for row, part in parts}


def plan(
    rows: list[Row], budget: int, rank: int, ranks: int, max_tokens: int, keep_silent: bool, first: int = 0
) -> Step:
    """The step of one mini-batch, for one of ``ranks``; the same arguments on all of them.

    budget: tokens of a micro-batch. max_tokens: ``model.max_tokens``. Rows without signal
    add nothing to the policy loss: they are left out, unless ``keep_silent``, for KL or entropy.
    first: place of the mini-batch's first row in the batch.
    """
    live = [index for index, row in enumerate(rows) if keep_silent or row.has_signal]
    tokens = [row.loss_tokens for row in rows]
    totals = Totals(tokens=sum(tokens), episodes=sum(n > 0 for n in tokens), max_tokens=max_tokens)
    shares = pack([rows[index] for index in live], budget, ranks)
    computed = sum(micro.computed for share in shares for micro in share if len(micro.rows))
    return Step(shares[rank], [first + index for index in live], totals, computed)
