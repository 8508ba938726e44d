"""An advantage estimator of one's own: the group's median as baseline.

One lucky episode of eight moves the mean, and makes the other seven look worse than
they were; the median it leaves alone.
"""

import numpy as np

from learner.algorithm.context import Advantages, Context
from learner.algorithm.rewards import episode_score, equal
from protocol.trajectory import Group


def median_baseline(groups: list[Group], options: dict, context: Context) -> Advantages:
    """A = (R − median) · scale on every action token of the episode; exactly 0 where all R are equal.

    options: ``scale``, 1 by default.
    """
    advantages = []
    for group, rewards in zip(groups, context.rewards, strict=True):
        scores = np.array(
            [episode_score(t, r, context.turn_discount) for t, r in zip(group.trajectories, rewards, strict=True)]
        )
        values = np.zeros_like(scores) if equal(scores) else scores - np.median(scores)
        values = values * options.get("scale", 1.0)
        advantages.append(
            [(context.mask(t) * a).astype(np.float32) for t, a in zip(group.trajectories, values, strict=True)]
        )
    return advantages
