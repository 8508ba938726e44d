"""What an episode earned, token by token and turn by turn, before any estimator sees it."""

from __future__ import annotations

import numpy as np

from configs.algorithm import AlgorithmConfig
from learner.algorithm.context import PerToken
from protocol.trajectory import Group, Trajectory

#: Rewards closer than this (relative to the largest, or absolute below 1) are equal: they travel as float32.
REWARD_RESOLUTION = 1e-6


def token_rewards(
    config: AlgorithmConfig,
    groups: list[Group],
    *,
    max_tokens: int | None = None,
    reference_logprobs: PerToken | None = None,
) -> PerToken:
    """The reward of each token: float64 [T] each, 0 off action tokens.

    outcome + ``process_reward_weight`` × process rewards (each where the environment gave it),
    less the overlong penalty on the last action token, less β · KL(μ ‖ π_ref) of each
    action token where ``reference.where`` is ``reward``. Other groups of the batch do not
    matter to a group's rewards.

    max_tokens: ``model.max_tokens``. reference_logprobs: log π_ref, float32 [T] each.
    """
    shaped = []
    for g, group in enumerate(groups):
        outcomes, process = zip(*(split_rewards(t) for t in group.trajectories), strict=True)
        weight = config.process_reward_weight
        if config.process_reward_norm == "group":
            weight /= process_scale(process)
        # With weight 1 the stored sums serve as they are: taking them apart only adds rounding noise.
        rewards = [
            t.rewards.astype(np.float64) if weight == 1.0 else outcome + weight * extra
            for t, outcome, extra in zip(group.trajectories, outcomes, process, strict=True)
        ]
        for i, trajectory in enumerate(group.trajectories):
            if config.overlong.buffer_tokens:
                penalty = overlong_penalty(trajectory.longest_context, max_tokens, config.overlong.buffer_tokens)
                rewards[i][last_action(trajectory)] -= config.overlong.penalty * penalty
            if reference_logprobs is not None:
                behind = sampled_kl(trajectory, reference_logprobs[g][i], config.reference.estimator)
                rewards[i] -= config.reference.coefficient * behind
        shaped.append(rewards)
    return shaped


def split_rewards(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """(outcome, process) rewards, float64 [T] each.

    ``Trajectory.rewards`` holds their sum; ``facts["outcome_reward"]``, on the last action
    token, tells them apart.
    """
    outcome = np.zeros(len(trajectory))
    if trajectory.action_mask.any():
        outcome[last_action(trajectory)] = np.float32(trajectory.facts["outcome_reward"])
    process = trajectory.rewards.astype(np.float64) - outcome
    # What float32 could not hold of the sum is no process reward.
    process[np.abs(process) <= REWARD_RESOLUTION * np.maximum(1.0, np.abs(outcome))] = 0.0
    return outcome, process


def process_scale(process: list[np.ndarray] | tuple[np.ndarray, ...]) -> float:
    """The largest Σ |process reward| of an episode of the group; 1 where there are none."""
    return max(float(np.abs(p).sum()) for p in process) or 1.0


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """0 up to limit − buffer tokens, then linear up to 1 at the limit (DAPO, Yu et al. 2025, eq. 13, negated)."""
    return float(np.clip((length - (limit - buffer)) / buffer, 0.0, 1.0))


def sampled_kl(trajectory: Trajectory, reference_logprobs: np.ndarray, estimator: str) -> np.ndarray:
    """The estimate of KL(μ ‖ π_ref) at each action token, float64 [T]; 0 elsewhere.

    The tokens are samples of μ, so its own log-probabilities belong here. With
    d = log μ − log π_ref: k1 = d, k2 = d²/2, k3 = exp(−d) − 1 + d (Schulman 2020).
    """
    mask = trajectory.action_mask.astype(bool)
    d = np.where(mask, trajectory.behaviour_logprobs.astype(np.float64) - reference_logprobs, 0.0)
    match estimator:
        case "k1":
            return d
        case "k2":
            return d**2 / 2
        case _:
            return np.exp(np.clip(-d, -20.0, 20.0)) - 1.0 + d


def last_action(trajectory: Trajectory) -> int:
    """Index of the last action token."""
    return int(np.flatnonzero(trajectory.action_mask)[-1])


def turn_rewards(trajectory: Trajectory, rewards: np.ndarray) -> np.ndarray:
    """Σ of token rewards [T] in each turn, float64 [K]."""
    return np.array([rewards[start:end].sum() for start, end in trajectory.turns])


def episode_score(trajectory: Trajectory, rewards: np.ndarray, turn_discount: float) -> float:
    """Σ_k γ^k r_k over turns k = 0, 1, …: what group-relative estimators compare. rewards: [T]."""
    if turn_discount == 1.0:
        return float(rewards.sum())
    turns = turn_rewards(trajectory, rewards)
    return float(turns @ turn_discount ** np.arange(len(turns)))


def equal(scores: np.ndarray) -> bool:
    """All scores are the same, or there is only one, or none."""
    return scores.size < 2 or bool(np.ptp(scores) <= REWARD_RESOLUTION * max(1.0, float(np.abs(scores).max())))


def has_signal(group: Group, config: AlgorithmConfig) -> bool:
    """The group's episodes earned different rewards, so that comparing them teaches something.

    Outcome and weighted process rewards decide; penalties for length and KL do not make a signal.
    """
    plain = config.model_copy(update={"overlong": type(config.overlong)()})
    [rewards] = token_rewards(plain, [group])
    pairs = zip(group.trajectories, rewards, strict=True)
    return not equal(np.array([episode_score(t, r, config.turn_discount) for t, r in pairs]))
