"""Sums and maxima over the micro-batches and ranks of one update, turned into metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learner.algorithm.diagnostics import STALENESS_BINS, effective_sample_size
from learner.policy.ranks import Ranks


class Stats:
    """Accumulates on the device; reads it only once, in ``metrics``.

    A sum or maximum is a scalar or one value a staleness bin, [B].
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = defaultdict(float)
        self._maxima: dict[str, Tensor] = {}

    def add(self, sums: dict[str, Tensor], maxima: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value.detach().double()
        for name, value in maxima.items():
            self._maxima[name] = torch.maximum(self._maxima[name], value) if name in self._maxima else value

    def metrics(self, ranks: Ranks, optimizer_steps: int) -> dict[str, Any]:
        """Means over the tokens that went through the model, on all ranks, and by staleness.

        Empty if nothing was added. Every rank must call it, having added the same names.
        """
        if not self._sums:
            return {}
        s = _reduce(self._sums, lambda flat: ranks.total(flat))
        m = _reduce(self._maxima, lambda flat: ranks.total(flat, dist.ReduceOp.MAX))
        whole = {name: float(value.sum()) for name, value in s.items()}
        peaks = {name: float(value.max()) for name, value in m.items()}
        n, in_loss = max(1.0, whole["count"]), max(1.0, whole["in_loss"])
        metrics = {
            "loss": whole["loss"] / optimizer_steps,
            "entropy": whole["entropy"] / in_loss,
            "clip_fraction": whole["clipped"] / n,
            "masked_fraction": whole["masked"] / n,
            "logprob_mismatch_mean": whole["abs"] / n,
            "logprob_mismatch_max": peaks["abs"],
            "kl": whole["k1"] / n,
            "kl_k3": whole["k3"] / n,
            **_ratios(whole, peaks),
            "truncated_fraction": whole["truncated"] / n,
            "by_staleness": {
                name: _bin({key: float(v[b]) for key, v in s.items() if v.ndim}, {k: float(v[b]) for k, v in m.items()})
                for b, name in enumerate(STALENESS_BINS)
                if s["count"][b]
            },
        }
        if "reference_kl" in whole:
            metrics["reference_kl"] = whole["reference_kl"] / in_loss
        return metrics


def _bin(s: dict[str, float], m: dict[str, float]) -> dict[str, float]:
    n = s["count"]
    fractions = {"clip_fraction": s["clipped"] / n, "masked_fraction": s["masked"] / n}
    return {"tokens": n, "logprob_mismatch_mean": s["abs"] / n, "kl_k3": s["k3"] / n, **_ratios(s, m), **fractions}


def _ratios(s: dict[str, float], m: dict[str, float]) -> dict[str, float]:
    return {
        "ratio_mean": s["ratio"] / max(1.0, s["count"]),
        "ratio_max": m["ratio"],
        "ratio_ess": effective_sample_size(s["ratio"], s["ratio_sq"], s["count"]),
    }


def _reduce(values: dict[str, Any], reduce: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """All values in one collective, read from the device at once."""
    flat = reduce(torch.cat([value.double().reshape(-1) for value in values.values()]).cpu())
    parts = flat.split([value.numel() for value in values.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(values.items(), parts, strict=True)}
