"""Small episodes with known rewards, for the tests of the algorithms."""

import numpy as np

from configs.algorithm import AlgorithmConfig
from learner.algorithm.advantages import compute_advantages
from protocol.trajectory import Group, Trajectory


def episode(outcome: float, process: tuple[float, ...] | float = 0.0, turns: int = 2, **fields) -> Trajectory:
    """Prompt of one token; turns of two tokens each, a tool's token between them."""
    mask = np.array([0] + [1, 1, 0] * turns, "u1")[:-1]
    spans = np.array([[1 + 3 * k, 3 + 3 * k] for k in range(turns)], "<i4").reshape(-1, 2)
    rewards = np.zeros(len(mask))
    process = (process,) if isinstance(process, float) else process
    for k, reward in enumerate(process):
        rewards[spans[k, 1] - 1] += reward
    rewards[spans[-1, 1] - 1] += outcome
    return trajectory(mask, rewards, spans, outcome, sum(process), **fields)


def trajectory(mask, rewards, spans, outcome, process=0.0, terminated=True, logprobs=None) -> Trajectory:
    mu = np.where(mask, -1.0, 0.0) if logprobs is None else logprobs
    return Trajectory(
        np.arange(len(mask), dtype="<i4"), mask, mu.astype("<f4"), np.where(mask, 0, -1).astype("<i4"),
        rewards.astype("<f4"), spans, terminated, {"outcome_reward": outcome, "process_reward": process},
    )  # fmt: skip


def ends_on_a_tool(outcome: float, terminated: bool = False) -> Trajectory:
    """Prompt, turn of two, the tool's answer of two at the end: the reward is on the last action token."""
    mask = np.array([0, 1, 1, 0, 0], "u1")
    return trajectory(mask, np.array([0, 0, outcome, 0, 0]), np.array([[1, 3]], "<i4"), outcome, terminated=terminated)


def advantages(groups, type="grpo", options=None, **algorithm):
    judged = {name: algorithm.pop(name) for name in ("max_tokens", "reference_logprobs") if name in algorithm}
    config = AlgorithmConfig(advantage={"type": type, **(options or {})}, **algorithm)
    return compute_advantages(config, [Group("l", "t", g) for g in groups], **judged)
