"""One update from one batch: what estimator, policy and critic need of each other, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from configs.schema import Config
from learner.algorithm.actor_critic import loss_masks
from learner.algorithm.advantages import compute_advantages, compute_value_targets
from learner.algorithm.context import Advantages, PerToken
from learner.policy.critic import Critic
from learner.policy.engine import PolicyEngine
from protocol.trajectory import Group


@dataclass(slots=True)
class Update:
    """metrics: for the step's record. advantages: float32 [T] of each trajectory of each group.

    proximal: log π_prox of trajectories, as ``PolicyEngine.proximal``; empty where the policy was not trained.
    """

    metrics: dict[str, Any]
    advantages: Advantages
    proximal: dict[int, np.ndarray] = field(default_factory=dict)


def update(cfg: Config, policy: PolicyEngine, critic: Critic | None, groups: list[Group], version: int) -> Update:
    """Judge a batch with the critic as it was, then train the policy and the critic on it.

    In the first ``critic.warmup_steps`` versions the policy stays as it is: advantages
    of a critic that knows nothing yet would only be noise to it.
    """
    algorithm = cfg.algorithm
    judged: dict[str, Any] = {"max_tokens": cfg.model.max_tokens}
    if critic:
        judged["values"] = critic.values(groups)
    if algorithm.advantage.type == "vtrace":
        judged["logprobs"] = _score(policy, groups, cfg.sampling.temperature)
    if algorithm.reference.coefficient and algorithm.reference.where == "reward":
        judged["reference_logprobs"] = _score(policy, groups, cfg.sampling.temperature, reference=True)
    advantages = compute_advantages(algorithm, groups, **judged)
    if critic is None:
        return Update(policy.update(groups, advantages, version), advantages, policy.proximal)
    warming_up = version < cfg.critic.warmup_steps
    metrics = {"optimizer_steps": 0.0} if warming_up else policy.update(groups, advantages, version)
    targets = compute_value_targets(algorithm, groups, **judged)
    metrics |= critic.update(groups, judged["values"], targets, loss_masks(algorithm.masks, groups))
    return Update(metrics | {"critic_warmup": float(warming_up)}, advantages, {} if warming_up else policy.proximal)


def _score(policy: PolicyEngine, groups: list[Group], temperature: float, reference: bool = False) -> PerToken:
    scores = iter(policy.score([t for group in groups for t in group.trajectories], temperature, reference))
    return [[next(scores) for _ in group.trajectories] for group in groups]
