"""What an advantage estimator is given besides the groups, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocol.trajectory import Trajectory

#: values[g][i]: one array [T] for trajectory i of group g.
PerToken = list[list[np.ndarray]]

#: advantages[g][i]: float32 [T] of trajectory i of group g.
Advantages = PerToken


@dataclass(frozen=True, slots=True)
class Context:
    """Read-only inputs of an estimator.

    rewards: float64 [T] each, by ``rewards.token_rewards``: outcome, weighted process rewards,
        overlong and KL penalty, none of it discounted yet. Use these, never ``Trajectory.rewards``.
    turn_discount: γ from one turn to the next, in (0, 1].
    action_only: the advantage mask. True: the recursion and its statistics see action tokens
        only. False (an ablation): every token from the first action token on.
    values: a critic's V after each token, float32 [T] each; None without a critic.
    logprobs: log π of each action token under the weights before the update, float32 [T] each;
        None unless the estimator asks for them.
    """

    rewards: PerToken
    turn_discount: float = 1.0
    action_only: bool = True
    values: PerToken | None = None
    logprobs: PerToken | None = None

    def mask(self, trajectory: Trajectory) -> np.ndarray:
        """bool [T]: the tokens that advantages run along."""
        return trajectory.action_mask.astype(bool) if self.action_only else response_mask(trajectory)

    def discounts(self, trajectory: Trajectory, gamma: float) -> np.ndarray:
        """float64 [T]: ``gamma``, times ``turn_discount`` at the last token of a turn. Of what comes after each token."""
        decay = np.full(len(trajectory), gamma)
        decay[trajectory.turns[:, 1] - 1] *= self.turn_discount
        return decay


def response_mask(trajectory: Trajectory) -> np.ndarray:
    """bool [T]: everything from a segment's first action token on, tool and template tokens included."""
    parts = trajectory.by_segment(trajectory.action_mask)
    return np.concatenate([np.maximum.accumulate(part) for part in parts]).astype(bool)
