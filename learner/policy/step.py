"""One optimizer step as planned: what goes through the model, and what the loss is divided by."""

from __future__ import annotations

from dataclasses import dataclass

from learner.algorithm.reduction import Totals
from learner.policy.batch import Row
from learner.policy.packing import MicroBatch, pack


@dataclass(slots=True)
class Step:
    """micro: this rank's micro-batches. forward_tokens: of all ranks.

    totals counts all rows of the mini-batch on all ranks, also those that were
    left out because they carry no signal: leaving them out must not change the gradient.
    """

    micro: list[MicroBatch]
    totals: Totals
    forward_tokens: int


def plan(rows: list[Row], budget: int, rank: int, ranks: int, max_tokens: int, keep_silent: bool) -> Step:
    """The step of one mini-batch, for one of ``ranks``; the same arguments on all of them.

    budget: tokens of a micro-batch. max_tokens: ``model.max_tokens``. Rows without signal
    add nothing to the policy loss: they are left out, unless ``keep_silent``, for KL or entropy.
    """
    live = [row for row in rows if keep_silent or row.has_signal]
    tokens = [row.loss_tokens for row in rows]
    totals = Totals(tokens=sum(tokens), episodes=sum(n > 0 for n in tokens), max_tokens=max_tokens)
    return Step(pack(live, budget, ranks)[rank], totals, sum(map(len, live)))
