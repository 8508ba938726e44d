"""Sums and maxima over the micro-batches and ranks of one update, turned into metrics."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from learner.algorithm.corrections import effective_sample_size
from learner.policy.ranks import Ranks


class Stats:
    """Accumulates on the device; reads it only once, in ``metrics``."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = defaultdict(float)
        self._maxima: dict[str, Tensor] = {}

    def add(self, sums: dict[str, Tensor], maxima: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value.detach().double()
        for name, value in maxima.items():
            self._maxima[name] = torch.maximum(self._maxima[name], value) if name in self._maxima else value

    def metrics(self, ranks: Ranks, optimizer_steps: int) -> dict[str, float]:
        """Means over the action tokens that went through the model, on all ranks.

        Empty if nothing was added. Every rank must call it, having added the same names.
        """
        if not self._sums:
            return {}
        totals = ranks.total(torch.stack(list(self._sums.values())).double().cpu()).tolist()
        peaks = ranks.total(torch.stack(list(self._maxima.values())).double().cpu(), dist.ReduceOp.MAX).tolist()
        s, m = dict(zip(self._sums, totals, strict=True)), dict(zip(self._maxima, peaks, strict=True))
        n = s["count"]
        return {
            "loss": s["loss"] / optimizer_steps,
            "entropy": s["entropy"] / n,
            "clip_fraction": s["clipped"] / n,
            "logprob_mismatch_mean": s["abs"] / n,
            "logprob_mismatch_max": m["abs"],
            "kl": s["k1"] / n,
            "kl_k3": s["k3"] / n,
            "ratio_mean": s["ratio"] / n,
            "ratio_max": m["ratio"],
            "ratio_ess": effective_sample_size(s["ratio"], s["ratio_sq"], n),
            "truncated_fraction": s["truncated"] / n,
        }
