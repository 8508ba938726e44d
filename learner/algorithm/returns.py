"""Advantages and value targets from a critic's values, and the critic's loss.

The recursions run over the n action tokens of one episode, in order, with the tokens of
prompt and tools taken out: those neither discount nor carry a TD error. The value of an
action is V of the state before it; the value that follows it is V of the state before
the next action, whatever a tool wrote in between.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from learner.algorithm.losses import MAX_LOG_RATIO
from learner.algorithm.rewards import equal


def gae(
    rewards: np.ndarray, values: np.ndarray, bootstrap: float, gamma: float | np.ndarray, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages A and value targets G = A + V: two float64 [n].

    A_t = δ_t + γλ A_{t+1} with δ_t = r_t + γ V_{t+1} − V_t (Schulman et al. 2016, GAE, eq.
    16), so G is the TD(λ) return: λ = 1 makes A the return less V, λ = 0 the TD error.

    rewards, values: [n]. bootstrap: V of the state after the last action, 0 where the
    episode ended there. gamma: one discount, or [n], that of each action's successor.
    """
    deltas = rewards + gamma * _following(values, bootstrap) - values
    advantages = discounted_sums(deltas, np.broadcast_to(gamma * lam, deltas.shape))
    return advantages, advantages + values


def vtrace(
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap: float,
    gamma: float | np.ndarray,
    lam: float,
    log_ratios: np.ndarray,
    rho_cap: float,
    c_cap: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and V-trace targets of off-policy data: two float64 [n].

    Espeholt et al. 2018 (IMPALA), § 4.1 with remark 2's λ, and the q of § 4.2:

        v_t = V_t + δ_t + γ c_t (v_{t+1} − V_{t+1}),  δ_t = ρ_t (r_t + γ V_{t+1} − V_t)
        ρ_t = min(ρ̄, π/μ),  c_t = λ min(c̄, π/μ),     A_t = r_t + γ v_{t+1} − V_t

    A comes without the factor ρ_t: the loss has it, as its importance weight. log_ratios
    [n]: log π − log μ of each action; the rest as for :func:`gae`. With ratios of 1 the
    targets are the TD(λ) returns, with λ = 1 as well the n-step returns.
    """
    ratios = np.exp(np.clip(log_ratios, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    deltas = np.minimum(ratios, rho_cap) * (rewards + gamma * _following(values, bootstrap) - values)
    targets = values + discounted_sums(deltas, gamma * lam * np.minimum(ratios, c_cap))
    return rewards + gamma * _following(targets, bootstrap) - values, targets


def discounted_sums(terms: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """S_t = terms_t + decay_t · S_{t+1}, S_n = 0: float64 [n]."""
    sums, later = [], 0.0
    for term, factor in zip(reversed(terms.tolist()), reversed(decay.tolist()), strict=True):
        later = term + factor * later
        sums.append(later)
    return np.array(sums[::-1], dtype=np.float64)


def explained_variance(values: np.ndarray, targets: np.ndarray) -> float:
    """1 − Var(G − V) / Var(G): 1 is a perfect critic, 0 no better than a constant, below 0 worse.

    0 where the targets are all the same: there is nothing to explain. As usual for PPO, the
    targets are those trained on; below λ = 1 they lean on V themselves, and flatter it.
    """
    if equal(targets):
        return 0.0
    return 1.0 - float(np.var(targets - values, dtype=np.float64) / np.var(targets, dtype=np.float64))


def clipped_value_loss(
    values: Tensor, old_values: Tensor, targets: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """½ max((V − G)², (clip(V, V_old ± ε) − G)²) a token.

    Schulman et al. 2017's PPO as in its code (baselines, ppo2). All [n]; values carry the
    gradient. Returns the loss [n] and a bool [n]: True where the bound holds the value
    back, hence the gradient is zero. ``clip`` None: the plain squared error.
    """
    free = (values - targets).square()
    if clip is None:
        return free / 2, torch.zeros_like(free, dtype=torch.bool)
    bounded = (values.clamp(old_values - clip, old_values + clip) - targets).square()
    return torch.maximum(free, bounded) / 2, bounded > free


def _following(values: np.ndarray, bootstrap: float) -> np.ndarray:
    return np.append(values[1:], bootstrap)[: len(values)]
