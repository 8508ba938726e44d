"""Estimators that compare an episode's score with those of its group, and spread the difference evenly.

A group whose scores are all equal, or of one episode, gets exactly 0: its rounding noise
would pass for a signal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from configs.algorithm import DrGrpoAdvantage, GrpoAdvantage, RlooAdvantage
from learner.algorithm.context import Advantages, Context
from learner.algorithm.rewards import episode_score, equal
from protocol.trajectory import Group


def grpo(groups: list[Group], options: GrpoAdvantage, context: Context) -> Advantages:
    """A = (R − mean) / (std + eps) over the group, spread evenly over its action tokens.

    Shao et al. 2024 (DeepSeekMath), § 4.1.2, outcome supervision; sample standard
    deviation, as peers take it.
    """
    return per_episode(groups, context, lambda r: (r - r.mean()) / (r.std(ddof=1) + options.eps))


def dr_grpo(groups: list[Group], options: DrGrpoAdvantage, context: Context) -> Advantages:
    """A = R − mean: without the division, which favours groups that are nearly all right or all wrong.

    Liu et al. 2025 (Understanding R1-Zero-like training). Its other half, the
    constant divisor of the loss, is ``algorithm.aggregation: constant``.
    """
    return per_episode(groups, context, lambda r: r - r.mean())


def rloo(groups: list[Group], options: RlooAdvantage, context: Context) -> Advantages:
    """A_i = R_i − mean of the others (leave one out) = G/(G − 1) · (R_i − mean).

    Kool et al. 2019; Ahmadian et al. 2024 (Back to Basics): the baseline does not
    contain the episode itself, so the gradient has no bias.
    """
    return per_episode(groups, context, lambda r: (r - r.mean()) * len(r) / (len(r) - 1))


def per_episode(groups: list[Group], context: Context, compare: Callable[[np.ndarray], np.ndarray]) -> Advantages:
    """``compare`` maps the scores float64 [G] of a group to one advantage an episode, [G]."""
    advantages = []
    for group, rewards in zip(groups, context.rewards, strict=True):
        pairs = list(zip(group.trajectories, rewards, strict=True))
        scores = np.array([episode_score(t, r, context.turn_discount) for t, r in pairs])
        values = np.zeros_like(scores) if equal(scores) else compare(scores)
        advantages.append(
            [context.mask(t).astype(np.float32) * np.float32(a) for (t, _), a in zip(pairs, values, strict=True)]
        )
    return advantages
