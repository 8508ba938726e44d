"""Policy losses: per-token tensors in, per-token loss out. No reduction happens here.

A loss is a pure function

    loss(logprobs, proximal_logprobs, advantages, batch: Tokens, options) -> (loss, clipped)

registered by the ``type`` of its options in ``LOSSES``. logprobs [N] carries the
gradient, the other tensors, [N], carry none. Returned are the loss [N] and a bool [N]:
True where the clip is active, hence the token's own gradient zero or bounded.
Values off ``batch.mask`` are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from configs.algorithm import CispoLoss, GspoLoss, PpoClipLoss, ReinforceLoss
from learner.algorithm.reduction import Tokens

#: exp of a log-ratio beyond this says nothing more, but could overflow.
MAX_LOG_RATIO = 20.0


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), finite for whatever comes in."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def ppo_clip(
    logprobs: Tensor, proximal_logprobs: Tensor, advantages: Tensor, batch: Tokens, options: PpoClipLoss
) -> tuple[Tensor, Tensor]:
    """−min(ρA, clip(ρ, 1 − low, 1 + high)·A) with ρ = π_θ/π_prox.

    Schulman et al. 2017, eq. 7; asymmetric bounds as in DAPO (Yu et al. 2025, eq. 10);
    ρ against π_prox, not the sampler, as in decoupled PPO (Hilton et al. 2021, eq. 4).
    ``dual_clip`` c bounds the loss by c·|A| where A < 0 (Ye et al. 2020, eq. 5).
    """
    ratio = bounded_ratio(logprobs - proximal_logprobs)
    loss, clipped = _pessimistic(ratio, advantages, options)
    if options.dual_clip is not None:
        ceiling = -options.dual_clip * advantages
        over = (advantages < 0) & (loss > ceiling)
        loss, clipped = torch.where(over, ceiling, loss), clipped | over
    return loss, clipped


def gspo(
    logprobs: Tensor, proximal_logprobs: Tensor, advantages: Tensor, batch: Tokens, options: GspoLoss
) -> tuple[Tensor, Tensor]:
    """−min(sA, clip(s, 1 − low, 1 + high)·A) with s = exp(mean over the episode of log π_θ/π_prox).

    Zheng et al. 2025 (GSPO), eq. 5–7, in the token form of § 4.3 (GSPO-token): the value of
    s is the episode's, its gradient at a token that token's. With one advantage an
    episode, the sum over its tokens is GSPO's, in value and gradient; with an
    advantage a token each keeps its own. The paper averages by ``aggregation: sequence``.
    """
    log_ratio = (logprobs - proximal_logprobs).detach()
    value = bounded_ratio(batch.spread(batch.segment_mean(log_ratio)))
    return _pessimistic(value * (logprobs - logprobs.detach()).exp(), advantages, options)


def cispo(
    logprobs: Tensor, proximal_logprobs: Tensor, advantages: Tensor, batch: Tokens, options: CispoLoss
) -> tuple[Tensor, Tensor]:
    """−sg(clip(ρ, 1 − low, 1 + high)) · A · log π_θ with ρ = π_θ/π_prox.

    MiniMax-M1 (2025), eq. 4–5: the weight is clipped, not the update, so that every token
    keeps a gradient.
    """
    ratio = bounded_ratio((logprobs - proximal_logprobs).detach())
    weight = ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high)
    return -weight * advantages * logprobs, weight != ratio


def reinforce(
    logprobs: Tensor, proximal_logprobs: Tensor, advantages: Tensor, batch: Tokens, options: ReinforceLoss
) -> tuple[Tensor, Tensor]:
    """−A · log π_θ (Williams 1992): all there is of off-policy data is in the correction's weight of π_θ/μ."""
    return -advantages * logprobs, torch.zeros_like(advantages, dtype=torch.bool)


def _pessimistic(ratio: Tensor, advantages: Tensor, options: PpoClipLoss | GspoLoss) -> tuple[Tensor, Tensor]:
    free = ratio * advantages
    clipped = ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high) * advantages
    return -torch.minimum(free, clipped), clipped < free


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """own_ratio: the loss holds π_θ/π_prox itself. Where it does not, the correction's
    weight is of π_θ/μ, not of π_prox/μ."""

    function: Callable[[Tensor, Tensor, Tensor, Tokens, Any], tuple[Tensor, Tensor]]
    own_ratio: bool = True


LOSSES: dict[str, PolicyLoss] = {
    "ppo_clip": PolicyLoss(ppo_clip),
    "gspo": PolicyLoss(gspo),
    "cispo": PolicyLoss(cispo),
    "reinforce": PolicyLoss(reinforce, own_ratio=False),
}
