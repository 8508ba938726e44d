"""Off-policy correction: how far the sampler μ was from the learner, and the weights that mend it."""

from __future__ import annotations

import torch
from torch import Tensor

from configs.schema import CorrectionConfig
from learner.algorithm.losses import bounded_ratio, masked_sum


def importance_weights(proximal_logprobs: Tensor, behaviour_logprobs: Tensor, config: CorrectionConfig) -> Tensor:
    """Token weights [N] of the loss, constants to the gradient.

    ``tis``: min(π_prox/μ, cap), truncated importance sampling (Ionides 2008; for RL
    with a separate sampler Yao et al. 2025). ``none``: 1.
    """
    if config.type == "none":
        return torch.ones_like(behaviour_logprobs)
    return bounded_ratio((proximal_logprobs - behaviour_logprobs).detach()).clamp(max=config.cap)


def mismatch(
    learner_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, cap: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Sums and maxima over action tokens that say how off-policy they are: (sums, maxima).

    learner_logprobs, behaviour_logprobs, mask: [N]. With d = log π − log μ and r = exp d,
    the sums are of |d|, r, r², r > cap, and the estimators of KL(μ ‖ π) on samples of μ,
    k1 = −d and k3 = r − 1 − d (Schulman, "Approximating KL divergence", 2020).
    """
    d = (learner_logprobs - behaviour_logprobs).detach().masked_fill(~mask, 0.0)
    r = bounded_ratio(d)
    sums = {
        "abs": d.abs().sum(),
        "ratio": masked_sum(r, mask),
        "ratio_sq": masked_sum(r.double().square(), mask),
        "truncated": masked_sum((r > cap).float(), mask),
        "k1": -d.sum(),
        "k3": masked_sum(r - 1.0 - d, mask),
    }
    return sums, {"abs": d.abs().max(), "ratio": r.masked_fill(~mask, 0.0).max()}


def effective_sample_size(ratio_sum: float, ratio_sq_sum: float, count: float) -> float:
    """(Σr)² / (n Σr²): 1 where all weights are equal, 1/n where one token has them all."""
    return ratio_sum**2 / (count * ratio_sq_sum) if count and ratio_sq_sum else 0.0
