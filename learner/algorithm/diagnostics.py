"""How far the sampler was from the learner, and how old the tokens were: sums that ranks can add up."""

from __future__ import annotations

import torch
from torch import Tensor

from learner.algorithm.losses import bounded_ratio

#: Staleness in policy versions is told apart by these names; the bounds are each name's first age but for 0.
STALENESS_BINS = ("0", "1", "2-3", "4-7", "8+")
_BOUNDS = (1, 2, 4, 8)


def staleness_bins(ages: Tensor) -> Tensor:
    """int64 [N] ages in versions → int64 [N], the index in ``STALENESS_BINS``."""
    return torch.bucketize(ages, torch.tensor(_BOUNDS, device=ages.device), right=True)


def binned_sum(values: Tensor, mask: Tensor, bins: Tensor) -> Tensor:
    """Σ of values [N] where mask [N], one sum a staleness bin: float64 [B]."""
    sums = torch.zeros(len(STALENESS_BINS), dtype=torch.float64, device=values.device)
    return sums.index_add_(0, bins, values.detach().double().masked_fill(~mask, 0.0))


def mismatch(
    learner_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, bins: Tensor, cap: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Sums and maxima over action tokens that say how off-policy they are: (sums, maxima), float64 [B] each.

    learner_logprobs, behaviour_logprobs, mask, bins: [N]. With d = log π − log μ and r = exp d,
    the sums are of 1, |d|, r, r², r > cap, and the estimators of KL(μ ‖ π) on samples of μ,
    k1 = −d and k3 = r − 1 − d (Schulman, "Approximating KL divergence", 2020).
    """
    d = (learner_logprobs - behaviour_logprobs).detach().masked_fill(~mask, 0.0)
    r = bounded_ratio(d)
    terms = {"count": mask, "abs": d.abs(), "ratio": r, "ratio_sq": r.double().square(), "truncated": r > cap,
             "k1": -d, "k3": r - 1.0 - d}  # fmt: skip
    sums = {name: binned_sum(values, mask, bins) for name, values in terms.items()}
    nothing = torch.zeros(len(STALENESS_BINS), dtype=torch.float64, device=d.device)
    peaks = {"abs": d.abs(), "ratio": r.masked_fill(~mask, 0.0)}
    return sums, {name: nothing.scatter_reduce(0, bins, v.double(), "amax") for name, v in peaks.items()}


def effective_sample_size(ratio_sum: float, ratio_sq_sum: float, count: float) -> float:
    """(Σr)² / (n Σr²): 1 where all weights are equal, 1/n where one token has them all."""
    return ratio_sum**2 / (count * ratio_sq_sum) if count and ratio_sq_sum else 0.0
