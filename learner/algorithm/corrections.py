"""Off-policy correction: the weights and masks that mend how far the sampler μ was from the learner.

Weights and masks are pure functions of d = log π − log μ [N], registered by name in
``WEIGHTS`` and ``MASKS``. π is π_prox (decoupled; the loss then has π_θ/π_prox for the
rest), or π_θ without its gradient where the loss compares with μ itself or has no ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from configs.algorithm import CorrectionConfig, GeometricMask, NoMask, TokenMask
from learner.algorithm.losses import bounded_ratio
from learner.algorithm.reduction import Tokens

# ── weights: (d, batch, cap) → [N] ───────────────────────────────────────────


def token_weights(log_ratio: Tensor, batch: Tokens, cap: float) -> Tensor:
    """min(exp d, cap) of each token: truncated importance sampling.

    Ionides 2008; for RL with a separate sampler Yao et al. 2025 ("Your efficient RL
    framework secretly brings you off-policy RL training").
    """
    return bounded_ratio(log_ratio).clamp(max=cap)


def sequence_weights(log_ratio: Tensor, batch: Tokens, cap: float) -> Tensor:
    """min(exp Σ d, cap), the product over the episode's tokens, on each of them.

    Sequence-level TIS (Liu et al. 2025, "When speed kills stability"): without the bias of
    one weight a token, with far more variance.
    """
    return batch.spread(bounded_ratio(batch.segment_sum(log_ratio))).clamp(max=cap)


def no_weights(log_ratio: Tensor, batch: Tokens, cap: float) -> Tensor:
    return torch.ones_like(log_ratio)


WEIGHTS: dict[str, Callable[[Tensor, Tokens, float], Tensor]] = {
    "tis": token_weights,
    "sequence_tis": sequence_weights,
    "none": no_weights,
}

# ── masks: (d, batch, options) → bool [N], True where a token stays ──────────


def token_mask(log_ratio: Tensor, batch: Tokens, options: TokenMask) -> Tensor:
    """low ≤ exp d ≤ high, token by token: two-sided masking (IcePop; Ling Team 2025, "Every step evolves")."""
    ratio = bounded_ratio(log_ratio)
    return (ratio >= options.low) & (ratio <= options.high)


def geometric_mask(log_ratio: Tensor, batch: Tokens, options: GeometricMask) -> Tensor:
    """low ≤ exp(mean of d over the episode) ≤ high: whole episodes stay or go.

    Liu et al. 2025 ("When speed kills stability"), geometric sequence masking. The mean makes
    the bounds independent of the episode's length.
    """
    ratio = bounded_ratio(batch.segment_mean(log_ratio))
    return batch.spread((ratio >= options.low) & (ratio <= options.high))


def no_mask(log_ratio: Tensor, batch: Tokens, options: NoMask) -> Tensor:
    return torch.ones_like(log_ratio, dtype=torch.bool)


MASKS: dict[str, Callable[[Tensor, Tokens, Any], Tensor]] = {
    "none": no_mask,
    "token": token_mask,
    "geometric": geometric_mask,
}


def correction(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    batch: Tokens,
    options: CorrectionConfig,
    own_ratio: bool = True,
) -> tuple[Tensor, Tensor]:
    """Weights [N] of the loss and bool [N], True where a token is masked out; constants to the gradient.

    logprobs, proximal_logprobs, behaviour_logprobs: [N], log π_θ, π_prox, μ. own_ratio: see
    ``losses.PolicyLoss``. With ``proximal: behaviour`` (bypass) a loss with a ratio of its own has
    π_θ/μ in it already, so its weight is 1; masks judge π_θ/μ. A masked token
    stays in the divisor of the loss: leaving it out must not make the others count more.
    """
    bypass = options.proximal == "behaviour"
    target = logprobs if bypass or not own_ratio else proximal_logprobs
    log_ratio = (target - behaviour_logprobs).detach()
    # Off the mask μ may be anything; it must not make an infinity that a product carries on.
    log_ratio = log_ratio.masked_fill(~batch.mask, 0.0)
    kind = "none" if bypass and own_ratio else options.type
    masked = ~MASKS[options.mask.type](log_ratio, batch, options.mask) & batch.mask
    return WEIGHTS[kind](log_ratio, batch, options.cap).masked_fill(masked, 0.0), masked
