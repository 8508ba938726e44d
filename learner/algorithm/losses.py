"""Policy losses: per-token tensors in, per-token loss out. No reduction happens here.

A new loss is a function of the signature of ``ppo_clip`` and a line in ``LOSSES`` (plus
its options in ``configs.schema``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from configs.schema import PpoClipLoss

#: exp of a log-ratio beyond this says nothing more, but could overflow.
MAX_LOG_RATIO = 20.0


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), finite for whatever comes in."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def ppo_clip(
    logprobs: Tensor, proximal_logprobs: Tensor, advantages: Tensor, config: PpoClipLoss
) -> tuple[Tensor, Tensor]:
    """−min(ρA, clip(ρ, 1 − low, 1 + high)·A) with ρ = π_θ/π_prox.

    Schulman et al. 2017, eq. 7; asymmetric bounds as in DAPO (Yu et al. 2025, eq. 10);
    ρ against π_prox, not the sampler, as in decoupled PPO (Hilton et al. 2021, eq. 4).

    logprobs [N] carries the gradient; the others, [N], carry none. Returns the loss
    [N] and a bool [N]: True where the clip is active, hence the gradient zero.
    """
    ratio = bounded_ratio(logprobs - proximal_logprobs)
    free = ratio * advantages
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantages
    return -torch.minimum(free, clipped), clipped < free


LOSSES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"ppo_clip": ppo_clip}


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Σ of values [N] where mask [N] is True; 0 (with a gradient) on an empty mask.

    Masked values do not reach the sum, not even as 0 · inf.
    """
    return values.masked_fill(~mask, 0.0).sum()
