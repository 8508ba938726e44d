"""REINFORCE++ (Hu et al. 2025): no critic, advantages standardised over the tokens of the whole batch."""

from __future__ import annotations

import numpy as np

from configs.algorithm import ReinforcePlusPlusAdvantage, ReinforcePlusPlusBaselineAdvantage
from learner.algorithm.context import Advantages, Context, PerToken
from learner.algorithm.group_relative import per_episode
from learner.algorithm.returns import discounted_sums
from learner.algorithm.rewards import REWARD_RESOLUTION
from protocol.trajectory import Group, Trajectory


def reinforce_pp(groups: list[Group], options: ReinforcePlusPlusAdvantage, context: Context) -> Advantages:
    """Returns G_t = r_t + γ G_{t+1} of each token, less their mean, by their standard deviation.

    Mean and (population) deviation are over all action tokens of the batch. γ is
    ``options.gamma``, times ``turn_discount`` from a turn's last token to the next turn.
    ``reference.where: reward`` with k1 or k2 puts the paper's KL penalty into r.
    """
    returns = [
        [_returns(t, r, options.gamma, context) for t, r in zip(group.trajectories, rewards, strict=True)]
        for group, rewards in zip(groups, context.rewards, strict=True)
    ]
    return standardised(groups, returns, context)


def reinforce_pp_baseline(
    groups: list[Group], options: ReinforcePlusPlusBaselineAdvantage, context: Context
) -> Advantages:
    """R − mean over the group on every action token, then standardised over those of the batch.

    Hu et al. 2025, REINFORCE++-baseline: the group's mean is the baseline, the deviation is
    the batch's, so that no group is weighted by its own. A group without signal stays at
    exactly 0 and out of the statistics, where the paper would shift it by the batch's mean.
    """
    centred = per_episode(groups, context, lambda r: r - r.mean())
    telling = [g for g, values in enumerate(centred) if any(v.any() for v in values)]
    advantages = [[np.zeros(len(v), np.float32) for v in values] for values in centred]
    found = standardised([groups[g] for g in telling], [centred[g] for g in telling], context)
    for g, values in zip(telling, found, strict=True):
        advantages[g] = values
    return advantages


def standardised(groups: list[Group], values: PerToken, context: Context) -> Advantages:
    """(x − mean) / std over the masked tokens of all groups; 0 everywhere if they are all equal.

    values: [T] each. Returned as float32 [T], 0 outside the mask.
    """
    masks = [[context.mask(t) for t in group.trajectories] for group in groups]
    chosen = [v[m] for vs, ms in zip(values, masks, strict=True) for v, m in zip(vs, ms, strict=True)]
    tokens = np.concatenate([np.zeros(0), *chosen])
    mean, std = (tokens.mean(), tokens.std()) if tokens.size else (0.0, 0.0)
    if std <= REWARD_RESOLUTION * max(1.0, float(np.abs(tokens).max(initial=0.0))):
        return [[np.zeros(len(m), np.float32) for m in ms] for ms in masks]
    return [
        [np.where(m, (v - mean) / std, 0.0).astype(np.float32) for v, m in zip(vs, ms, strict=True)]
        for vs, ms in zip(values, masks, strict=True)
    ]


def _returns(trajectory: Trajectory, rewards: np.ndarray, gamma: float, context: Context) -> np.ndarray:
    """Discounted sums along the masked tokens, float64 [T]; 0 elsewhere."""
    decay = context.discounts(trajectory, gamma)
    mask, returns = context.mask(trajectory), np.zeros(len(trajectory))
    returns[mask] = discounted_sums(rewards[mask], decay[mask])
    return returns
