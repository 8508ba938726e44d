"""Advantage estimators: a batch of groups in, one advantage a token out.

A new estimator is a function of the signature below and a line in ``ESTIMATORS`` (plus
its options in ``configs.schema``). Advantages live on action tokens only; on all
others they are 0, so tool tokens neither discount nor carry credit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from configs.schema import AlgorithmConfig, GrpoAdvantage
from protocol.trajectory import Group, Trajectory

#: advantages[g][i]: float32 [T] of trajectory i of group g.
Advantages = list[list[np.ndarray]]

#: Rewards closer than this (relative to the largest, or absolute below 1) are equal: they travel as float32.
REWARD_RESOLUTION = 1e-6


def compute_advantages(config: AlgorithmConfig, groups: list[Group]) -> Advantages:
    """Advantages of a batch by the estimator that ``config.advantage.type`` names.

    Raises ``ValueError`` on a reward that is not finite: it fails here, loudly, rather
    than as a NaN in the weights.
    """
    for group in groups:
        for trajectory in group.trajectories:
            if not np.isfinite(trajectory.rewards).all():
                raise ValueError(f"task {group.task_id}: a reward is not finite; check the environment's rewards")
    return ESTIMATORS[config.advantage.type](groups, config.advantage, config.process_reward_weight)


def grpo(groups: list[Group], config: GrpoAdvantage, process_weight: float) -> Advantages:
    """A = (r − mean) / (std + eps) over the group, spread evenly over its action tokens.

    Shao et al. 2024 (DeepSeekMath), eq. 3, outcome supervision; sample standard
    deviation, as peers take it. A group whose rewards are all equal, or of one member,
    gets exactly 0: divided by a tiny std its rounding noise would pass for a signal.
    """
    values = [_standardised(total_rewards(group, process_weight), config.eps) for group in groups]
    return [
        [spread(t, a) for t, a in zip(group.trajectories, scalars, strict=True)]
        for group, scalars in zip(groups, values, strict=True)
    ]


ESTIMATORS: dict[str, Callable[..., Advantages]] = {"grpo": grpo}


def total_rewards(group: Group, process_weight: float) -> np.ndarray:
    """Outcome + weight × process rewards of each trajectory, float64 [G].

    ``Trajectory.rewards`` holds the sum of both; ``facts["outcome_reward"]`` tells them apart.
    """
    totals = np.array([t.total_reward for t in group.trajectories])
    if process_weight == 1.0:
        return totals
    outcomes = np.array([float(np.float32(t.facts["outcome_reward"])) for t in group.trajectories])
    return outcomes + process_weight * (totals - outcomes)


def no_signal(rewards: np.ndarray) -> bool:
    """All rewards [G] of a group are equal (or there is only one)."""
    return bool(np.ptp(rewards) <= REWARD_RESOLUTION * max(1.0, float(np.abs(rewards).max())))


def spread(trajectory: Trajectory, advantage: float) -> np.ndarray:
    """One value on every action token, 0 elsewhere: float32 [T]."""
    return trajectory.action_mask.astype(np.float32) * np.float32(advantage)


def _standardised(rewards: np.ndarray, eps: float) -> np.ndarray:
    if no_signal(rewards):
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + eps)
