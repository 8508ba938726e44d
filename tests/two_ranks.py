"""A tiny policy and a fixed batch for the engine's tests, and the script that runs them on several ranks:

torchrun --nproc_per_node 2 tests/two_ranks.py MODEL OUT
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from configs.schema import Config
from protocol.trajectory import NO_VERSION, Group, Trajectory

VOCAB = 97
GROUPS = 4
LENGTHS = (9, 30, 41, 23)


#: What sums over whole episodes, and keeps rows without an advantage for its KL and entropy, in one.
FAMILY = {
    "loss": {"type": "gspo", "clip_low": 0.05, "clip_high": 0.05},
    "correction": {"type": "sequence_tis", "cap": 50.0, "mask": {"type": "geometric", "low": 0.7, "high": 1.6}},
    "aggregation": "sequence",
    "reference": {"coefficient": 0.2},
    "entropy_bonus": 0.05,
}


def save_tiny_model(folder: Path) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def trajectory(rng: np.random.Generator, length: int) -> Trajectory:
    mask = (rng.random(length) < 0.4).astype("u1")
    mask[0], mask[-1] = 0, 1
    return Trajectory(
        token_ids=rng.integers(0, VOCAB, length).astype("<i4"),
        action_mask=mask,
        behaviour_logprobs=np.where(mask, -rng.gamma(4.0, 1.0, length), 0.0).astype("<f4"),
        versions=np.where(mask, 0, NO_VERSION).astype("<i4"),
        rewards=np.zeros(length, "<f4"),
        turns=np.zeros((0, 2), "<i4"),
        facts={"outcome_reward": 0.0},
    )


def begin_alike(episodes: list[Trajectory], common: int) -> None:
    """Give all the first ``common`` token ids of the longest, whoever wrote them."""
    ids = max(episodes, key=len).token_ids[:common].copy()
    for episode in episodes:
        episode.token_ids[:common] = ids[: len(episode)]


def batch(signal: float = 1.0, common: int = 0) -> tuple[list[Group], list[list[np.ndarray]]]:
    """Four groups of four episodes with random advantages; the second group's are all zero.

    common: so many tokens the episodes of a group begin with alike.
    """
    rng = np.random.default_rng(1)
    groups = [Group(f"l{g}", f"t{g}", [trajectory(rng, n) for n in LENGTHS]) for g in range(GROUPS)]
    for group in groups:
        begin_alike(group.trajectories, common)
    scale = [signal, 0.0, signal, signal]
    advantages = [
        [t.action_mask * np.float32(s * rng.normal()) for t in g.trajectories]
        for g, s in zip(groups, scale, strict=True)
    ]
    return groups, advantages


def config(model: Path, algorithm: dict[str, Any] | None = None, **learner: Any) -> Config:
    """A large eps makes AdamW's step a smooth function of the gradient, so that steps can be compared closely."""
    optimizer = {"lr": 3.0, "eps": 1.0, "grad_clip": 0.5, "weight_decay": 1e-3}
    defaults = {"groups": GROUPS, "mini_batches": 1, "micro_tokens": 64, "cpu_threads": 1, "optimizer": optimizer}
    parts = {"model": {"path": str(model)}, "sampling": {"temperature": 0.8}, "learner": defaults | learner}
    parts["algorithm"] = algorithm or {}
    return Config.model_validate(parts)


def main(model: Path, out: Path) -> None:
    from learner.policy.checkpoint import load_checkpoint, save_checkpoint
    from learner.policy.engine import PolicyEngine

    groups, advantages = batch()
    for stage in (0, 1, 2, 3):
        engine = PolicyEngine(config(model, zero_stage=stage))
        if engine.rank:
            engine.follow()
            continue
        metrics = engine.update(groups, advantages)
        result = {name: tensor.numpy() for name, tensor in engine.snapshot()}
        scores = engine.score(groups[0].trajectories, temperature=engine.cfg.sampling.temperature)
        # One episode for two ranks: one of them has a dummy only.
        save_checkpoint(engine, out / f"checkpoints-{stage}", 1, {"stage": stage}, keep=1)
        lone = (groups[:1], [[advantages[0][0], *(0 * a for a in advantages[0][1:])]])
        engine.update(*lone)
        after = dict(engine.snapshot())
        abandoned = engine.parameters()
        next(abandoned)
        abandoned.close()
        assert load_checkpoint(engine, out / f"checkpoints-{stage}") == {"stage": stage}
        engine.update(*lone)
        same = all(torch.equal(after[name], tensor) for name, tensor in engine.parameters())
        np.savez(out / f"zero-{stage}.npz", **result, _scores=np.concatenate(scores), _same=same,
                 _grad_norm=metrics["grad_norm"], _loss=metrics["loss"], _mismatch=metrics["logprob_mismatch_mean"])  # fmt: skip
        engine.close()
    for stage in (0, 1, 2, 3):
        # The second mini-batch is at a distance from the reference.
        engine = PolicyEngine(config(model, algorithm=FAMILY, zero_stage=stage, mini_batches=2))
        if engine.rank:
            engine.follow()
            continue
        engine.update(groups, advantages)
        result = {name: tensor.numpy() for name, tensor in engine.snapshot()}
        reference = engine.score(groups[0].trajectories, engine.cfg.sampling.temperature, reference=True)
        np.savez(out / f"family-{stage}.npz", **result, _reference=np.concatenate(reference))
        engine.close()


if __name__ == "__main__":
    from learner.policy import zero

    signal.alarm(270)  # a rank that hangs outlives the launcher that its test kills
    zero.ZERO3_PERSISTENT = 0
    main(Path(sys.argv[1]), Path(sys.argv[2]))
