"""KL to a reference as a term of the loss."""

from __future__ import annotations

from torch import Tensor

from learner.algorithm.losses import MAX_LOG_RATIO


def kl_loss(logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """The estimate of KL(π_θ ‖ π_ref) at each sampled token, [N]. logprobs carries the gradient.

    With d = log π_θ − log π_ref: k1 = d, k2 = d²/2, k3 = exp(−d) − 1 + d (Schulman,
    "Approximating KL divergence", 2020; k3 is GRPO's, Shao et al. 2024, eq. 4). As a loss,
    k1 has an expected gradient of zero on its own samples, k2 the KL's own, k3 one that
    agrees with it near d = 0.
    """
    d = (logprobs - reference_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    match estimator:
        case "k1":
            return d
        case "k2":
            return d.square() / 2
        case _:
            return (-d).exp() - 1.0 + d
