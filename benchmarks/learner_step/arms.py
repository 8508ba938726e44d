"""Our update, and the bare model's: ``python -m benchmarks.learner_step.arms rollway|bare FOLDER THREADS``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from benchmarks.learner_step.meter import Meter
from benchmarks.learner_step.work import batch, lengths
from configs.schema import Config
from learner.policy.engine import PolicyEngine


def rollway(folder: Path, threads: int) -> None:
    """One ``PolicyEngine.update`` an order: ``micro_tokens``, ``episodes`` and, if all are as long, ``length``."""
    import deepspeed  # noqa: F401  belongs to what is imported before memory counts

    meter = Meter()
    config = Config.model_validate(
        {
            "model": {"path": str(folder / "model"), "max_tokens": 8192},
            "learner": {"groups": 1, "mini_batches": 1, "cpu_threads": threads},
        }
    )
    engine = PolicyEngine(config)
    batches: dict[tuple[int, ...], tuple] = {}
    meter.ready()
    while (order := meter.await_order()) is not None:
        sizes = [order["length"]] * order["episodes"] if order["length"] else lengths(order["episodes"])
        config.learner.micro_tokens = order["micro_tokens"]
        key = tuple(sizes)
        if key not in batches:
            batches[key] = batch(sizes, engine.vocabulary)
        engine.update(*batches[key])
        meter.done()


def bare(folder: Path, threads: int) -> None:
    """Forward and backward of each text by itself, as transformers does them: no padding, no optimizer.

    Cross-entropy on the very tokens that the others score, with all of their logits at once.
    """
    meter = Meter()
    torch.set_num_threads(threads)
    lm = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    arrays = np.load(folder / "batch.npz")
    bounds = np.cumsum(arrays["lengths"])[:-1]
    texts = [torch.from_numpy(x.astype(np.int64)) for x in np.split(arrays["token_ids"], bounds)]
    scored = [torch.from_numpy(np.flatnonzero(x)) for x in np.split(arrays["action_mask"], bounds)]
    meter.ready()
    while meter.await_order() is not None:
        lm.zero_grad()
        for text, at in zip(texts, scored, strict=True):
            logits = lm(input_ids=text[None], logits_to_keep=at - 1, use_cache=False).logits[0]
            F.cross_entropy(logits, text[at], reduction="sum").backward()
        meter.done()


if __name__ == "__main__":
    {"rollway": rollway, "bare": bare}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
