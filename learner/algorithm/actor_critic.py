"""GAE and V-trace on whole batches: advantages for the policy, targets for the critic, from the same recursion.

An episode that a limit cut is bootstrapped: had it been let go on, it would have earned
about what the critic says, and counting that as nothing would teach the policy that the
states before a limit are bad. An episode that ended is not: nothing follows it. Where the
limit is part of the task, ``bootstrap: false`` makes it an end like any other.
"""

from __future__ import annotations

import numpy as np

from configs.algorithm import MaskConfig
from configs.critic import CriticAdvantage, VtraceAdvantage
from learner.algorithm import returns
from learner.algorithm.context import Advantages, Context, PerToken, response_mask
from learner.algorithm.reinforce_pp import standardised
from protocol.trajectory import Group, Trajectory


def actor_critic(groups: list[Group], options: CriticAdvantage, context: Context) -> Advantages:
    """Advantages of GAE or V-trace, by the class of ``options``; standardised over the batch with ``whiten``."""
    advantages = [[advantage for advantage, _ in episodes] for episodes in _estimates(groups, options, context)]
    if options.whiten:
        return standardised(groups, advantages, context)
    return [[a.astype(np.float32) for a in episodes] for episodes in advantages]


def value_targets(groups: list[Group], options: CriticAdvantage, context: Context) -> PerToken:
    """What V of the state before each token should have been: float32 [T] each, 0 outside ``context.mask``."""
    return [[target.astype(np.float32) for _, target in episodes] for episodes in _estimates(groups, options, context)]


def loss_masks(masks: MaskConfig, groups: list[Group]) -> PerToken:
    """Tokens whose preceding state's value is trained, bool [T] each: action tokens, with both masks off all that follow."""
    mask = response_mask if not masks.loss and not masks.advantage else (lambda t: t.action_mask.astype(bool))
    return [[mask(t) for t in group.trajectories] for group in groups]


def _estimates(
    groups: list[Group], options: CriticAdvantage, context: Context
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """(advantages, targets) of each trajectory of each group: float64 [T], 0 outside the mask."""
    if context.values is None or (isinstance(options, VtraceAdvantage) and context.logprobs is None):
        raise ValueError(f"{options.type} needs the critic's values, and vtrace the policy's log-probabilities too")
    return [
        [_estimate(t, options, context, g, i) for i, t in enumerate(group.trajectories)]
        for g, group in enumerate(groups)
    ]


def _estimate(
    trajectory: Trajectory, options: CriticAdvantage, context: Context, g: int, i: int
) -> tuple[np.ndarray, np.ndarray]:
    at = np.flatnonzero(context.mask(trajectory))
    states = context.values[g][i].astype(np.float64)
    # The state before a token is the one after its predecessor, whoever wrote that.
    rewards, values = context.rewards[g][i][at], states[at - 1]
    bootstrap = states[-1] if options.bootstrap and not trajectory.terminated else 0.0
    gamma = context.discounts(trajectory, options.gamma)[at]
    if isinstance(options, VtraceAdvantage):
        log_ratios = np.where(trajectory.action_mask, context.logprobs[g][i] - trajectory.behaviour_logprobs, 0.0)[at]
        found = returns.vtrace(
            rewards, values, bootstrap, gamma, options.lam, log_ratios, options.rho_cap, options.c_cap
        )
    else:
        found = returns.gae(rewards, values, bootstrap, gamma, options.lam)
    spread = np.zeros((2, len(trajectory)))
    spread[:, at] = found
    return spread[0], spread[1]
