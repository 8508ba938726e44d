"""The algorithms once more, without packing: one episode at a time, all logits, loops, torch's own AdamW.

Written from the formulas and not from ``learner``, which it is compared with.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from configs.schema import Config


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def distribution(lm, t, temperature) -> torch.Tensor:
    """log-probabilities of all tokens of the vocabulary at each position but the first: [T − 1, V]."""
    ids = torch.from_numpy(t.token_ids.astype(np.int64))
    return (lm(ids[None]).logits[0, :-1] / temperature).log_softmax(-1)


def logprobs(lm, t, temperature, mask=None) -> torch.Tensor:
    """log π of each token, [T], 0 off the mask (by default the action mask)."""
    ids = torch.from_numpy(t.token_ids.astype(np.int64))
    chosen = distribution(lm, t, temperature).gather(1, ids[1:, None]).squeeze(1)
    mask = t.action_mask if mask is None else mask
    return torch.cat([torch.zeros(1), chosen]) * torch.from_numpy(mask.astype(np.float32))


def update(cfg: Config, groups, advantages, apart: bool = True) -> tuple[dict[str, torch.Tensor], list[float]]:
    """``learner.mini_batches`` steps of AdamW: (weights after, gradient norms).

    apart: where there is a reference, start at a distance from it, as ``disturb`` makes it.
    """
    o, temperature = cfg.learner.optimizer, cfg.sampling.temperature
    lm, reference = load(cfg.model.path), load(cfg.model.path)
    if cfg.algorithm.reference.coefficient and apart:
        _disturb(lm)
    adam = torch.optim.AdamW(lm.parameters(), lr=o.lr, betas=o.betas, eps=o.eps, weight_decay=o.weight_decay)
    masks = [[_loss_mask(cfg, t) for t in g.trajectories] for g in groups]
    with torch.no_grad():
        proximal = [
            [logprobs(lm, t, temperature, m) for t, m in zip(g.trajectories, ms, strict=True)]
            for g, ms in zip(groups, masks, strict=True)
        ]
    norms, per = [], len(groups) // cfg.learner.mini_batches
    for start in range(0, len(groups), per):
        parts, tokens = [], []
        for g in range(start, start + per):
            for i, t in enumerate(groups[g].trajectories):
                values = _episode(cfg, lm, reference, t, advantages[g][i], proximal[g][i], masks[g][i])
                parts.append(values)
                tokens.append(len(values))
        match cfg.algorithm.aggregation:
            case "token":
                loss = sum(sum(values) for values in parts) / sum(tokens)
            case "sequence":
                loss = sum(sum(values) / n for values, n in zip(parts, tokens, strict=True)) / len(parts)
            case "constant":
                loss = sum(sum(values) for values in parts) / (len(parts) * cfg.model.max_tokens)
        adam.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(lm.parameters(), o.grad_clip)))
        adam.step()
    return {name: p.detach() for name, p in lm.named_parameters()}, norms


def _disturb(lm) -> None:
    """The same small change of all weights as ``disturb`` makes in an engine."""
    with torch.no_grad():
        for p in lm.parameters():
            p += 0.02 * torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view_as(p)


def disturb(engine) -> None:
    """Move an engine's policy, below ZeRO-1, away from its reference."""
    _disturb(engine.lm)


def _loss_mask(cfg, t) -> np.ndarray:
    if cfg.algorithm.masks.loss:
        return t.action_mask
    first = int(np.flatnonzero(t.action_mask)[0])
    return (np.arange(len(t)) >= first).astype("u1")


def _episode(cfg, lm, reference, t, advantages, proximal, mask) -> list[torch.Tensor]:
    """The loss of each token that counts, in order."""
    a, temperature = cfg.algorithm, cfg.sampling.temperature
    current = logprobs(lm, t, temperature, mask)
    still = current.detach()
    everything = distribution(lm, t, temperature)
    with torch.no_grad():
        anchor = logprobs(reference, t, temperature, mask)
    at = np.flatnonzero(mask)
    mu = [float(t.behaviour_logprobs[k]) if t.action_mask[k] else float(proximal[k]) for k in at]
    bypass = a.correction.proximal == "behaviour"
    prox = mu if bypass else [float(proximal[k]) for k in at]
    off = [
        (float(still[k]) if bypass or a.loss.type == "reinforce" else p) - m
        for k, p, m in zip(at, prox, mu, strict=True)
    ]
    whole = math.exp(sum(off) / len(off))
    mean_ratio = math.exp(sum(float(still[k]) - p for k, p in zip(at, prox, strict=True)) / len(at))
    losses = []
    for k, p, d in zip(at, prox, off, strict=True):
        A, log_pi = float(advantages[k]), current[k]
        ratio = (log_pi - p).exp()
        match a.loss.type:
            case "ppo_clip":
                value = -torch.minimum(ratio * A, ratio.clamp(1 - a.loss.clip_low, 1 + a.loss.clip_high) * A)
                if a.loss.dual_clip and A < 0:
                    value = torch.minimum(value, torch.tensor(-a.loss.dual_clip * A))
            case "gspo":
                inside = 1 - a.loss.clip_low <= mean_ratio <= 1 + a.loss.clip_high
                active = (A > 0 and mean_ratio > 1) or (A < 0 and mean_ratio < 1)
                free = mean_ratio * (log_pi - log_pi.detach() + 1)
                bounded = min(max(mean_ratio, 1 - a.loss.clip_low), 1 + a.loss.clip_high)
                value = -A * (torch.tensor(bounded) if active and not inside else free)
            case "cispo":
                value = -min(max(float(ratio.detach()), 1 - a.loss.clip_low), 1 + a.loss.clip_high) * A * log_pi
            case "reinforce":
                value = -A * log_pi
        own_ratio = a.loss.type != "reinforce"
        weight = 1.0
        if a.correction.type == "tis" and not (bypass and own_ratio):
            weight = min(math.exp(d), a.correction.cap)
        if a.correction.type == "sequence_tis":
            weight = min(math.exp(sum(off)), a.correction.cap)
        if a.correction.mask.type == "token" and not a.correction.mask.low <= math.exp(d) <= a.correction.mask.high:
            weight = 0.0
        if a.correction.mask.type == "geometric" and not a.correction.mask.low <= whole <= a.correction.mask.high:
            weight = 0.0
        value = weight * value
        if a.reference.coefficient and a.reference.where == "loss":
            gap = log_pi - anchor[k]
            kl = {"k1": gap, "k2": gap * gap / 2, "k3": (-gap).exp() - 1 + gap}[a.reference.estimator]
            value = value + a.reference.coefficient * kl
        if a.entropy_bonus:
            row = everything[k - 1]
            value = value + a.entropy_bonus * (row.exp() * row).sum()
        losses.append(value)
    return losses
