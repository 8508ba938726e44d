"""The loss of one micro-batch, put together from what the options name, and what there is to say about it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from configs.algorithm import AlgorithmConfig
from learner.algorithm.corrections import correction
from learner.algorithm.diagnostics import binned_sum, mismatch, staleness_bins
from learner.algorithm.losses import LOSSES
from learner.algorithm.reduction import Tokens, Totals, aggregate, masked_sum
from learner.algorithm.regularisers import kl_loss


@dataclass(frozen=True, slots=True)
class Scored:
    """A packed row after its forward pass. All tensors are [N], 0 where they say nothing.

    logprobs, entropy: float32, of π_θ, with gradient, on tokens in the loss. proximal,
    reference: float32, log π_prox and log π_ref there, without; reference is None where no KL
    is in the loss. behaviour: float32, log μ, and sampled: bool, on tokens of the policy.
    advantages: float32. ages: int64, versions that a token is behind.
    """

    logprobs: Tensor
    entropy: Tensor
    proximal: Tensor
    behaviour: Tensor
    sampled: Tensor
    advantages: Tensor
    ages: Tensor
    reference: Tensor | None = None


def objective(
    options: AlgorithmConfig, row: Scored, batch: Tokens, totals: Totals
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """(loss, sums, maxima): this row's part of the optimizer step's loss, and what ``Stats`` adds up.

    loss = aggregate(w · policy loss + β · KL − c · H). The weight w is the policy loss's alone:
    a token that is too far off for its advantage to count is still drawn to the reference.
    """
    # Where the loss mask is off, tokens of the environment take part. μ never saw them, so they count as on-policy.
    behaviour = torch.where(row.sampled, row.behaviour, row.proximal)
    loss_of = LOSSES[options.loss.type]
    losses, clipped = loss_of.function(row.logprobs, row.proximal, row.advantages, batch, options.loss)
    weights, masked = correction(
        row.logprobs, row.proximal, behaviour, batch, options.correction, own_ratio=loss_of.own_ratio
    )
    losses = losses * weights
    bins = staleness_bins(row.ages)
    target = row.logprobs if options.correction.proximal == "behaviour" else row.proximal
    sums, maxima = mismatch(target, behaviour, row.sampled, bins, options.correction.cap)
    sums |= {name: binned_sum(flags, row.sampled, bins) for name, flags in (("clipped", clipped), ("masked", masked))}
    sums |= {"in_loss": batch.mask.sum(), "entropy": masked_sum(row.entropy, batch.mask)}
    if row.reference is not None:
        kl = kl_loss(row.logprobs, row.reference, options.reference.estimator)
        losses = losses + options.reference.coefficient * kl
        sums["reference_kl"] = masked_sum(kl, batch.mask)
    if options.entropy_bonus:
        losses = losses - options.entropy_bonus * row.entropy
    loss = aggregate(losses, batch, totals, options.aggregation)
    return loss, sums | {"loss": loss}, maxima
