"""Turn-level credit: which turn earned it, without a critic.

Why returns by turn and not GiGPO's step groups (Feng et al. 2025): those compare actions
taken in the same state. Here a state is the whole history, and once two episodes have
asked different questions of a tool their histories never meet again, so that all step
groups after the first turn would have one member. What stays comparable is "what is
still to come at turn k" of the same task.
"""

from __future__ import annotations

import numpy as np

from configs.algorithm import TurnLevelAdvantage
from learner.algorithm.context import Advantages, Context
from learner.algorithm.rewards import equal, turn_rewards
from protocol.trajectory import Group, Trajectory


def turn_level(groups: list[Group], options: TurnLevelAdvantage, context: Context) -> Advantages:
    """A_{i,k} = (G_{i,k} − mean_j G_{j,k}) / (σ + eps) on the tokens of turn k.

    G_{i,k} = Σ_{l ≥ k} γ^{l−k} r_{i,l} is the return from turn k on, as in DeepSeekMath's
    process supervision (Shao et al. 2024, § 4.1.3). Unlike there, returns are compared and
    not summed after they were compared, so that a long episode is not paid for its length.
    An episode that was over by turn k stands at the reward of its last turn: late turns are
    compared with the whole group, not with the few that got there. σ² is the sample
    variance over the group, averaged over turns.

    Where only outcomes count and γ = 1 this is GRPO, exactly. A turn at which all returns
    are equal gets exactly 0.
    """
    advantages = []
    for group, rewards in zip(groups, context.rewards, strict=True):
        returns = returns_by_turn(
            [turn_rewards(t, r) for t, r in zip(group.trajectories, rewards, strict=True)], context.turn_discount
        )
        signal = np.array([not equal(column) for column in returns.T], bool)
        values = np.zeros_like(returns)
        if signal.any():
            sigma = np.sqrt(returns.var(axis=0, ddof=1).mean())
            values[:, signal] = (returns - returns.mean(axis=0))[:, signal] / (sigma + options.eps)
        advantages.append([_on_tokens(t, a, context.mask(t)) for t, a in zip(group.trajectories, values, strict=True)])
    return advantages


def returns_by_turn(rewards: list[np.ndarray], discount: float) -> np.ndarray:
    """G_{i,k} of a group, float64 [G, max K]. rewards: [K_i] each, those of episode i's turns."""
    returns = np.zeros((len(rewards), max(map(len, rewards))))
    for row, earned in zip(returns, rewards, strict=True):
        later = 0.0
        for k in range(len(earned) - 1, -1, -1):
            later = row[k] = earned[k] + discount * later
        row[len(earned) :] = earned[-1] if len(earned) else 0.0
    return returns


def _on_tokens(trajectory: Trajectory, by_turn: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """float32 [T]: a token belongs to the last turn that had begun, as does the tools' answer to it."""
    turn = np.searchsorted(trajectory.turns[:, 0], np.arange(len(trajectory)), side="right") - 1
    return np.where(mask & (turn >= 0), by_turn[np.maximum(turn, 0)], 0.0).astype(np.float32)
