"""Our losses against trl's ``GRPOTrainer`` on random rows: loss and gradient of each token.

Not a test of the suite, because trl is not among its packages. In an environment that has
Rollway's and trl 1.16 (``pip install trl==1.16.0``):

    python tests/compare_trl.py

Differences of convention: trl takes one advantage an episode and pads; its CISPO bound is
the ratio itself (ours is 1 + clip_high); its two-sided ``delta`` is our ``dual_clip``; its
``bnpo`` divides by the tokens of a micro-batch, ``dapo`` by those of the step (our ``token``).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from trl import GRPOTrainer

sys.path.insert(0, str(Path(__file__).parent.parent))

from configs.algorithm import AlgorithmConfig
from learner.algorithm.objective import Scored, objective
from learner.algorithm.reduction import Tokens, Totals

LENGTH, EPISODES, MAX_TOKENS = 12, 6, 40

#: name → (our options, trl's).
CASES = {
    "ppo_clip, token": ({"loss": {"clip_low": 0.2, "clip_high": 0.28}}, {"loss_type": "dapo"}),
    "ppo_clip, sequence": ({"aggregation": "sequence"}, {"loss_type": "grpo"}),
    "ppo_clip, constant": ({"aggregation": "constant"}, {"loss_type": "dr_grpo"}),
    "dual clip": ({"loss": {"dual_clip": 1.5}}, {"loss_type": "dapo", "delta": 1.5}),
    "cispo": ({"loss": {"type": "cispo", "clip_high": 0.28}}, {"loss_type": "cispo", "epsilon_high": 1.28}),
    "gspo": (
        {"loss": {"type": "gspo", "clip_low": 0.2, "clip_high": 0.28}, "aggregation": "sequence"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "kl k3": ({"reference": {"coefficient": 0.3}}, {"loss_type": "dapo", "beta": 0.3}),
    "tis": ({"correction": {"type": "tis", "cap": 1.2}}, {"loss_type": "dapo", "cap": 1.2}),
}


def trl_loss(options, logps, old, behaviour, reference, advantages, mask):
    options = {
        "importance_sampling_level": "token",
        "epsilon_high": 0.28,
        "beta": 0.0,
        "delta": None,
        "cap": None,
    } | options
    reduce = SimpleNamespace(
        num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
    )  # fmt: skip
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.zeros_like(logps), None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, epsilon_low=0.2,
        args=SimpleNamespace(delta=options["delta"], use_bias_correction_kl=False, steps_per_generation=1),
        use_vllm=options["cap"] is not None, vllm_importance_sampling_correction=True, model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1, max_completion_length=MAX_TOKENS, accelerator=reduce,
        _entropy_bonus_enabled=False, _metrics={"train": defaultdict(list)},
        **{name: options[name] for name in ("importance_sampling_level", "epsilon_high", "beta", "loss_type")},
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.zeros(EPISODES, 1), "prompt_mask": torch.ones(EPISODES, 1),
        "completion_ids": torch.zeros(EPISODES, LENGTH), "completion_mask": torch.ones(EPISODES, LENGTH),
        "tool_mask": mask.float(), "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    if options["cap"]:
        inputs["importance_sampling_ratio"] = (old - behaviour).exp().clamp(max=options["cap"])
    return GRPOTrainer._compute_loss(trainer, None, inputs)


def our_loss(options, logps, old, behaviour, reference, advantages, mask):
    config = AlgorithmConfig.model_validate({"correction": {"type": "none"}} | options)
    row = Scored(
        logprobs=logps.flatten(), entropy=torch.zeros(logps.numel()), proximal=old.flatten(),
        behaviour=behaviour.flatten(), sampled=mask.flatten(), ages=torch.zeros(logps.numel(), dtype=torch.int64),
        advantages=advantages.repeat_interleave(LENGTH), reference=reference.flatten() if config.reference.coefficient else None,
    )  # fmt: skip
    bounds = torch.arange(0, logps.numel() + 1, LENGTH, dtype=torch.int32)
    totals = Totals(int(mask.sum()), EPISODES, MAX_TOKENS)
    return objective(config, row, Tokens.packed(mask.flatten(), bounds), totals)[0]


def main() -> int:
    worst = 0.0
    for name, (ours, theirs) in CASES.items():
        gap = 0.0
        for seed in range(20):
            torch.manual_seed(seed)
            old = -torch.rand(EPISODES, LENGTH) * 3
            behaviour, reference = (old + 0.3 * torch.randn_like(old) for _ in range(2))
            mask, advantages = torch.rand(EPISODES, LENGTH) < 0.6, torch.randn(EPISODES)
            results = []
            for loss_of, options in ((our_loss, ours), (trl_loss, theirs)):
                torch.manual_seed(seed)
                logps = (old + 0.3 * torch.randn_like(old)).requires_grad_()
                loss = loss_of(options, logps, old, behaviour, reference, advantages, mask)
                loss.backward()
                results.append((loss.detach(), logps.grad))
            (a, da), (b, db) = results
            gap = max(gap, float((a - b).abs()), float((da - db).abs().max()))
        worst = max(worst, gap)
        print(f"{name:20} {gap:.1e}")
    return int(worst > 1e-6)


if __name__ == "__main__":
    raise SystemExit(main())
