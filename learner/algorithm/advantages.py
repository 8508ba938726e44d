"""Advantage estimators: a batch of groups in, one advantage a token out.

An estimator is a pure function

    estimator(groups: list[Group], options: <its config model>, context: Context) -> Advantages

registered by the ``type`` of its options in ``ESTIMATORS``. ``context.rewards`` holds the
shaped reward of each token, ``context.values`` a critic's values or None,
``context.mask(trajectory)`` the tokens to run along (see ``context.Context``).
Returned are float32 [T] arrays, 0 outside that mask, so tool tokens neither
discount nor carry credit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from configs.algorithm import AlgorithmConfig
from learner.algorithm import actor_critic, custom, group_relative, reinforce_pp, turn_level
from learner.algorithm.context import Advantages, Context, PerToken
from learner.algorithm.rewards import token_rewards
from protocol.trajectory import Group

Estimator = Callable[[list[Group], Any, Context], Advantages]

ESTIMATORS: dict[str, Estimator] = {
    "grpo": group_relative.grpo,
    "dr_grpo": group_relative.dr_grpo,
    "rloo": group_relative.rloo,
    "reinforce_pp": reinforce_pp.reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp.reinforce_pp_baseline,
    "turn_level": turn_level.turn_level,
    "gae": actor_critic.actor_critic,
    "vtrace": actor_critic.actor_critic,
    "custom": custom.custom,
}


def compute_advantages(
    config: AlgorithmConfig,
    groups: list[Group],
    *,
    max_tokens: int | None = None,
    values: PerToken | None = None,
    logprobs: PerToken | None = None,
    reference_logprobs: PerToken | None = None,
) -> Advantages:
    """Advantages of a batch by the estimator that ``config.advantage.type`` names.

    max_tokens: ``model.max_tokens``, needed where ``config.overlong`` is on.
    values, logprobs: as in ``Context``. reference_logprobs: log π_ref of the action tokens,
    float32 [T] each, needed where the KL is part of the reward.
    Raises ``ValueError`` on a reward that is not finite: it fails here, loudly, rather
    than as a NaN in the weights.
    """
    context = _context(config, groups, max_tokens, values, logprobs, reference_logprobs)
    return ESTIMATORS[config.advantage.type](groups, config.advantage, context)


def compute_value_targets(
    config: AlgorithmConfig,
    groups: list[Group],
    *,
    values: PerToken,
    max_tokens: int | None = None,
    logprobs: PerToken | None = None,
    reference_logprobs: PerToken | None = None,
) -> PerToken:
    """The critic's targets, float32 [T] each, from what ``compute_advantages`` was given."""
    context = _context(config, groups, max_tokens, values, logprobs, reference_logprobs)
    return actor_critic.value_targets(groups, config.advantage, context)


def _context(
    config: AlgorithmConfig,
    groups: list[Group],
    max_tokens: int | None,
    values: PerToken | None,
    logprobs: PerToken | None,
    reference_logprobs: PerToken | None,
) -> Context:
    for group in groups:
        for trajectory in group.trajectories:
            if not np.isfinite(trajectory.rewards).all():
                raise ValueError(f"task {group.task_id}: a reward is not finite; check the environment's rewards")
    rewards = token_rewards(config, groups, max_tokens=max_tokens, reference_logprobs=reference_logprobs)
    return Context(rewards, config.turn_discount, config.masks.advantage, values, logprobs)
