"""One number a token for whole episodes, by a forward pass in packed micro-batches over all ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from learner.policy.batch import Row
from learner.policy.packing import MicroBatch, pack
from learner.policy.ranks import Ranks


@torch.no_grad()
def score_rows(rows: list[Row], budget: int, ranks: Ranks, forward: Callable[[MicroBatch], Tensor]) -> list[np.ndarray]:
    """float32 [T] of each row, on every rank. forward: a micro-batch → float32 [N]. All ranks call it together."""
    bounds = np.cumsum([0, *map(len, rows)])
    flat = np.zeros(bounds[-1], np.float32)
    for micro in pack(rows, budget, ranks.size)[ranks.rank]:
        values = forward(micro).cpu().numpy()
        for row, part in zip(micro.rows, micro.split(values), strict=False):  # a dummy has no rows
            flat[bounds[row] : bounds[row + 1]] = part
    return np.split(ranks.total(torch.from_numpy(flat)).numpy(), bounds[1:-1])
