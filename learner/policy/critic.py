"""``Critic``: a value model under DeepSpeed beside the policy, trained on the same batches.

It sits on the policy's ranks and shares their command channel: rank 0 calls ``values``,
``update``, ``save_state`` and ``load_state``; the others ``obey`` from ``PolicyEngine.follow``.
Nothing of it exists where the advantage estimator needs no critic.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.critic import CriticConfig
from configs.schema import Config
from learner.algorithm.context import PerToken
from learner.algorithm.reduction import masked_sum
from learner.algorithm.returns import clipped_value_loss, explained_variance
from learner.policy.batch import Row, by_trajectory, decode, encode, mini_batches
from learner.policy.engine import PolicyEngine
from learner.policy.model import load_policy, packed_inputs, resolve_model
from learner.policy.packing import MicroBatch, pack
from learner.policy.scoring import score_rows
from learner.policy.value import ValueModel
from protocol.trajectory import Group

#: Rows of a lesson: V before the update, its target, and 1 where the loss is taken.
OLD_VALUE, TARGET, MASK = range(3)


class Critic:
    """V of the state after each token. Build it on every rank at the same time, after the policy.

    Raises ``FileNotFoundError`` when ``critic.path`` holds no model, and ``ValueError`` when
    that model knows fewer tokens than the policy.
    """

    def __init__(self, cfg: Config, options: CriticConfig, policy: PolicyEngine):
        from learner.policy import zero  # as in PolicyEngine: only after init_distributed

        self._cfg, self._options = cfg, options
        self._ranks, self._device = policy.ranks, policy.device
        source = resolve_model(options.path or cfg.model.path, "critic.path" if options.path else "model.path")
        lm = load_policy(source, cfg.model.dtype)
        vocabulary = lm.config.get_text_config().vocab_size
        if vocabulary < policy.vocabulary:
            raise ValueError(
                f"critic.path: {source} knows {vocabulary} tokens and the policy {policy.vocabulary}; "
                "choose a model with the policy's tokenizer"
            )
        if cfg.model.gradient_checkpointing:
            lm.gradient_checkpointing_enable({"use_reentrant": False})
        self._model = zero.ZeroModel(ValueModel(lm), cfg, options.optimizer)

    @classmethod
    def beside(cls, policy: PolicyEngine) -> Critic | None:
        """The critic that the policy's configuration asks for, or None."""
        return cls(policy.cfg, policy.cfg.critic, policy) if policy.cfg.critic else None

    # ── rank 0's interface ───────────────────────────────────────────────────

    def values(self, groups: list[Group]) -> PerToken:
        """V of the state after each token under the current weights: float32 [T] of each trajectory of each group."""
        [rows] = _rows(groups, 1)
        self._ranks.tell("values", to="critic", batches=encode([rows]))
        every = [t for group in groups for t in group.trajectories]
        found = iter(by_trajectory(every, dict(enumerate(self._values(rows)))).values())
        return [[next(found) for _ in group.trajectories] for group in groups]

    def update(self, groups: list[Group], values: PerToken, targets: PerToken, masks: PerToken) -> dict[str, float]:
        """Train on one batch in the policy's mini-batches: one optimizer step each. Returns metrics.

        values: what ``values`` said of these groups before. targets, masks: [T] each, what V
        of the state *before* each token should have been, and where that counts for the loss.
        """
        lessons = [
            _lesson(*segment)
            for group, *judged in zip(groups, values, targets, masks, strict=True)
            for t, *episode in zip(group.trajectories, *judged, strict=True)
            for segment in zip(*map(t.by_segment, episode), strict=True)
        ]
        batches = _rows(groups, self._cfg.learner.mini_batches)
        self._ranks.tell("update", to="critic", batches=encode(batches), lessons=[one.tobytes() for one in lessons])
        every = np.concatenate(lessons, axis=1)
        old, target = every[:MASK, every[MASK] > 0]
        return self._update(batches, lessons) | {
            "value_mean": float(old.mean()) if old.size else 0.0,
            "explained_variance": explained_variance(old, target),
        }

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer of all ranks into ``folder``, beside the policy's."""
        self._ranks.tell("save", to="critic", folder=str(folder))
        self._save(folder)

    def load_state(self, folder: Path) -> None:
        """Take back what ``save_state`` wrote, with as many ranks and the same ZeRO stage."""
        self._ranks.tell("load", to="critic", folder=str(folder))
        self._load(folder)

    # ── the other ranks ──────────────────────────────────────────────────────

    def obey(self, message: dict[str, Any]) -> None:
        match message["command"]:
            case "values":
                self._values(decode(message["batches"])[0])
            case "update":
                lessons = [np.frombuffer(one, np.float32).reshape(3, -1) for one in message["lessons"]]
                self._update(decode(message["batches"]), lessons)
            case "save":
                self._save(Path(message["folder"]))
            case "load":
                self._load(Path(message["folder"]))

    # ── every rank ───────────────────────────────────────────────────────────

    def _values(self, rows: list[Row]) -> list[np.ndarray]:
        return score_rows(rows, self._cfg.learner.micro_tokens, self._ranks, self._forward)

    def _update(self, batches: list[list[Row]], lessons: list[np.ndarray]) -> dict[str, float]:
        """lessons: float32 [3, T] of each row, in the order of all rows of ``batches``."""
        start, norms = time.perf_counter(), []
        sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        waiting = iter(lessons)
        for rows in batches:
            own = [next(waiting) for _ in rows]
            divisor = sum(float(lesson[MASK].sum()) for lesson in own)
            if not divisor:
                continue
            shares = pack(rows, self._cfg.learner.micro_tokens, self._ranks.size)[self._ranks.rank]
            for k, micro in enumerate(shares):
                # A dummy has no rows: one token that no mask selects.
                lesson = np.concatenate([own[i] for i in micro.rows] or [np.zeros((3, micro.tokens), np.float32)], 1)
                # Times the number of ranks, because DeepSpeed averages gradients over them.
                loss = self._loss(micro, lesson, sums) / divisor * self._ranks.size
                self._model.backward(loss, last=k == len(shares) - 1)
            norms.append(self._model.step())
        loss, clipped, count = self._ranks.total(sums.cpu()).tolist()
        return {
            "value_loss": loss / max(count, 1.0),
            "value_clip_fraction": clipped / max(count, 1.0),
            "value_grad_norm": float(np.mean(norms)) if norms else 0.0,
            "value_lr": self._model.last_lr if norms else 0.0,
            "value_update_s": time.perf_counter() - start,
        }

    def _loss(self, micro: MicroBatch, lesson: np.ndarray, sums: Tensor) -> Tensor:
        """Σ of the value loss over this micro-batch's masked states; adds (loss, clipped, count) to ``sums``."""
        old, targets, mask = torch.from_numpy(lesson).to(self._device)
        losses, clipped = clipped_value_loss(self._forward(micro), old, targets, self._options.clip)
        mask = mask > 0
        loss = masked_sum(losses, mask)
        sums += torch.stack([loss.detach(), (clipped & mask).sum(), mask.sum()])
        return loss

    def _forward(self, micro: MicroBatch) -> Tensor:
        return self._model(**packed_inputs(micro, self._device))

    def _save(self, folder: Path) -> None:
        self._model.save(folder, "critic")
        self._ranks.barrier()

    def _load(self, folder: Path) -> None:
        self._model.load(folder, "critic")
        self._ranks.barrier()


def _rows(groups: list[Group], parts: int) -> list[list[Row]]:
    """The policy's mini-batches; advantages are not the critic's concern."""
    nothing = [[np.zeros(len(t), np.float32) for t in group.trajectories] for group in groups]
    return mini_batches(groups, nothing, parts)


def _lesson(values: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """float32 [3, T], entry t about the state after token t: what was about the state before t + 1 moves one back."""
    lesson = np.zeros((3, len(values)), np.float32)
    lesson[OLD_VALUE] = values
    lesson[TARGET, :-1], lesson[MASK, :-1] = targets[1:], mask[1:]
    return lesson
