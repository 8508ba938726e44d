"""``PolicyEngine``: the policy under DeepSpeed, and one policy update on it.

Rank 0 calls ``update``, ``score``, ``parameters``, ``export``, ``save_state`` and
``load_state``; all others sit in ``follow`` and do their part of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.schema import Config
from learner.algorithm.objective import Scored, objective
from learner.algorithm.reduction import Tokens, Totals
from learner.policy.batch import Row, by_trajectory, decode, encode, mini_batches
from learner.policy.lora import whole_weights
from learner.policy.model import PolicyModel, inputs_of, load_policy, named_weights, resolve_model, save_model
from learner.policy.packing import MicroBatch
from learner.policy.ranks import COLLECTIVE_TIMEOUT_S, Follower, Ranks, init_distributed
from learner.policy.scoring import score_rows
from learner.policy.spans import Spans
from learner.policy.stats import Stats
from learner.policy.step import Step, plan
from learner.run.durable import fresh_folder_beside, replace_folder
from protocol.trajectory import Group, Trajectory


class PolicyEngine:
    """The trainable policy. Build it on every rank at the same time.

    ``device`` is ``cuda:LOCAL_RANK`` where ``learner.devices`` is set (the launcher
    narrows the visible devices to those), else the CPU. Raises ``FileNotFoundError``
    when ``model.path`` holds no model.
    """

    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.device = torch.device("cpu")
        if cfg.learner.devices:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if cfg.learner.cpu_threads:
            torch.set_num_threads(cfg.learner.cpu_threads)
        torch.manual_seed(cfg.run.seed)
        self._source = resolve_model(cfg.model.path)
        lm = load_policy(self._source, cfg.model.dtype, cfg.model.lora)
        if cfg.model.gradient_checkpointing:
            lm.gradient_checkpointing_enable({"use_reentrant": False})
        init_distributed(self.device)
        from learner.policy import (
            zero,  # DeepSpeed looks for its accelerator when imported, so only after init_distributed
        )

        self.ranks = Ranks(cfg.gateway.batch_timeout_s + cfg.server.start_timeout_s + COLLECTIVE_TIMEOUT_S)
        self._ds = zero.ZeroModel(PolicyModel(lm), cfg, cfg.learner.optimizer)
        self.lm = lm
        #: Of the last update, as far as this rank had them: place in the batch → log π_prox, float32 [T]. Of
        #: trajectories on rank 0, of rows on the others.
        self.proximal: dict[int, np.ndarray] = {}
        self._reference = None
        if cfg.algorithm.reference.coefficient > 0:
            # Frozen, hence outside of DeepSpeed: whole on each rank, also under ZeRO-3.
            frozen = PolicyModel(load_policy(self._source, cfg.model.dtype))
            self._reference = frozen.requires_grad_(False).to(self.device)

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self.lm.config.get_text_config().vocab_size

    @property
    def rank(self) -> int:
        return self.ranks.rank

    # ── rank 0's interface ───────────────────────────────────────────────────

    def update(self, groups: list[Group], advantages: list[list[np.ndarray]], version: int = 0) -> dict[str, Any]:
        """Train on one batch: ``learner.mini_batches`` optimizer steps. Returns metrics.

        advantages: float [T] for each trajectory of each group. version: the policy's before
        the update; tokens are as stale as theirs is behind it. A mini-batch whose
        advantages are all zero makes no step (``skipped_steps``).
        """
        mask_tools = self.cfg.algorithm.masks.loss
        batches = mini_batches(groups, advantages, self.cfg.learner.mini_batches, version, mask_tools)
        self.ranks.tell("update", batches=encode(batches))
        silent = sum(not any(a.any() for a in values) for values in advantages)
        metrics = self._update(batches)
        self.proximal = by_trajectory([t for group in groups for t in group.trajectories], self.proximal)
        return metrics | {"zero_signal_groups": float(silent)}

    def score(self, trajectories: list[Trajectory], temperature: float, reference: bool = False) -> list[np.ndarray]:
        """log π of each action token under the current weights: float32 [T] each, 0 elsewhere.

        temperature: of the distribution that the tokens were sampled from (1 for greedy ones:
        that is what the servers report log-probabilities of). reference: log π_ref instead,
        which takes ``algorithm.reference.coefficient`` above 0.
        """
        rows = [row for t in trajectories for row in Row.of(t, np.zeros(len(t), np.float32))]
        self.ranks.tell("score", batches=encode([rows]), temperature=temperature, reference=reference)
        found = enumerate(self._score(rows, temperature, reference))
        return list(by_trajectory(trajectories, dict(found)).values())

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of each parameter, in model dtype on ``device``.

        Names as ``save_pretrained`` and vLLM's ``load_weights`` know them; a tied head
        is not repeated, and adapters are merged. Below ZeRO-3 the tensors are the live ones:
        copy, do not keep.
        """
        if self.cfg.learner.zero_stage < 3:
            yield from named_weights(self.lm)
            return
        self.ranks.tell("gather")
        yield from self._gather()

    def snapshot(self) -> list[tuple[str, Tensor]]:
        """``parameters()`` as copies that later updates leave alone: a push may go on beside them."""
        return [(name, tensor.clone()) for name, tensor in self.parameters()]

    def export(self, folder: str | Path) -> Path:
        """Write weights, config and tokenizer as a Hugging Face folder, whole or not at all."""
        target = Path(folder)
        aside = fresh_folder_beside(target)
        weights = {name: tensor.cpu() for name, tensor in self.parameters()}
        save_model(self.lm, self._source, aside, weights)
        replace_folder(aside, target)
        return target

    def save_state(self, folder: Path) -> None:
        """Write weights, optimizer and random state of all ranks into ``folder``."""
        self.ranks.tell("save", folder=str(folder))
        self._save(folder)

    def load_state(self, folder: Path) -> None:
        """Take back what ``save_state`` wrote, with as many ranks and the same ZeRO stage."""
        self.ranks.tell("load", folder=str(folder))
        self._load(folder)

    def close(self) -> None:
        """Release the other ranks from ``follow``."""
        self.ranks.tell("stop")

    # ── the other ranks ──────────────────────────────────────────────────────

    def follow(self, **others: Follower | None) -> None:
        """Do this rank's part of whatever rank 0 starts, until it stops or falls silent.

        others: further engines on these ranks, by the name that their commands carry.
        """
        self.ranks.follow({"policy": self, **others})

    def obey(self, message: dict[str, Any]) -> None:
        match message["command"]:
            case "update":
                self._update(decode(message["batches"]))
            case "score":
                self._score(decode(message["batches"])[0], message["temperature"], message["reference"])
            case "gather":
                for _ in self._gather():
                    pass
            case "save":
                self._save(Path(message["folder"]))
            case "load":
                self._load(Path(message["folder"]))

    # ── every rank ───────────────────────────────────────────────────────────

    def _update(self, batches: list[list[Row]]) -> dict[str, Any]:
        spans = Spans(self.device)
        every = [row for rows in batches for row in rows]
        firsts = accumulate(map(len, batches), initial=0)
        parts = [(rows, first) for rows, first in zip(batches, firsts, strict=False) if any(r.has_signal for r in rows)]
        steps = [self._plan(rows, first) for rows, first in parts]
        with spans.time("proximal"):
            proximal = self._proximal(steps)
        stats, norms = Stats(), []
        self.proximal, used = {}, []
        for step, logprobs in zip(steps, proximal, strict=True):
            for k, micro in enumerate(step.micro):
                with spans.time("forward"):
                    loss, scored = self._loss(micro, logprobs[k], step.totals, stats)
                used.append((step, micro, scored.proximal))
                with spans.time("backward"):
                    self._ds.backward(loss, last=k == len(step.micro) - 1)
            with spans.time("optimizer"):
                norms.append(self._ds.step())
        for step, micro, values in used:  # only now: from a GPU earlier, the host would have waited for each of them
            self.proximal |= step.by_row(micro, values.cpu().numpy())
        return stats.metrics(self.ranks, len(steps)) | {
            "grad_norm": float(np.mean(norms)) if norms else 0.0,
            "lr": self._ds.last_lr if norms else 0.0,
            "optimizer_steps": float(len(steps)),
            "skipped_steps": float(len(batches) - len(steps)),
            "tokens": float(sum(map(len, every))),
            "action_tokens": float(sum(row.action_tokens for row in every)),
            "forward_tokens": float(sum(step.forward_tokens for step in steps)),
            "micro_batches": float(sum(len(step.micro) for step in steps)),
            **spans.seconds("proximal", "forward", "backward", "optimizer"),
        }

    def _plan(self, rows: list[Row], first: int) -> Step:
        cfg, ranks = self.cfg, self.ranks
        regularised = cfg.algorithm.entropy_bonus > 0 or self._kl_in_loss
        return plan(rows, cfg.learner.micro_tokens, ranks.rank, ranks.size, cfg.model.max_tokens, regularised, first)

    @property
    def _kl_in_loss(self) -> bool:
        reference = self.cfg.algorithm.reference
        return reference.coefficient > 0 and reference.where == "loss"

    def _proximal(self, steps: list[Step]) -> list[list[Tensor | None]]:
        """log π_prox of each micro-batch, before any step moves the weights.

        None stands for π_θ itself without its gradient: in the first step the weights
        are still those, so it costs no forward pass.
        """
        if self.cfg.algorithm.correction.proximal == "behaviour":
            return [[self._tensor(m.behaviour_logprobs) for m in step.micro] for step in steps]
        return [
            [
                self._logprobs(inputs_of(m, self.device, self.cfg.sampling.temperature)) if i else None
                for m in step.micro
            ]
            for i, step in enumerate(steps)
        ]

    def _loss(self, micro: MicroBatch, proximal: Tensor | None, totals: Totals, stats: Stats) -> tuple[Tensor, Scored]:
        """(Part of the mini-batch's loss, times the ranks, since DeepSpeed averages over them; what it came from)."""
        inputs = inputs_of(micro, self.device, self.cfg.sampling.temperature)
        logprobs, entropy = self._ds(**inputs)
        row = Scored(
            logprobs=logprobs,
            entropy=entropy,
            proximal=logprobs.detach() if proximal is None else proximal,
            behaviour=self._tensor(micro.behaviour_logprobs),
            sampled=self._tensor(micro.action_mask),
            advantages=self._tensor(micro.advantages),
            ages=self._tensor(micro.ages),
            reference=self._reference_logprobs(inputs) if self._kl_in_loss else None,
        )
        batch = Tokens.packed(inputs["action_mask"], inputs["cu_seqlens"])
        loss, sums, maxima = objective(self.cfg.algorithm, row, batch, totals)
        stats.add(sums, maxima)
        return loss * self.ranks.size, row

    @torch.no_grad()
    def _logprobs(self, inputs: dict[str, Any]) -> Tensor:
        return self._ds(**inputs)[0]

    @torch.no_grad()
    def _reference_logprobs(self, inputs: dict[str, Any]) -> Tensor:
        return self._reference(**inputs)[0]

    def _score(self, rows: list[Row], temperature: float, reference: bool = False) -> list[np.ndarray]:
        forward = self._reference_logprobs if reference else self._logprobs
        inputs = partial(inputs_of, device=self.device, temperature=temperature)
        return score_rows(rows, self.cfg.learner.micro_tokens, self.ranks, lambda micro: forward(inputs(micro)))

    def _gather(self) -> Iterator[tuple[str, Tensor]]:
        """All ranks walk through it together, also past a consumer that gave up half way."""
        import deepspeed

        waiting = iter(list(whole_weights(self.lm)))
        try:
            for weight in waiting:
                with deepspeed.zero.GatheredParameters(weight.parts):
                    whole = weight.whole().clone()
                yield weight.name, whole
        finally:
            for weight in waiting:
                with deepspeed.zero.GatheredParameters(weight.parts):
                    pass

    def _save(self, folder: Path) -> None:
        self._ds.save(folder, "engine")
        state = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        torch.save(state, folder / f"random-{self.rank}.pt")
        self.ranks.barrier()

    def _load(self, folder: Path) -> None:
        self._ds.load(folder, "engine")
        state = torch.load(folder / f"random-{self.rank}.pt", weights_only=True)
        torch.set_rng_state(state["cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self.device)
        self.ranks.barrier()

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)
