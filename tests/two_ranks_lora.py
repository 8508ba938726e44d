"""Adapters for the tests, and the script that trains them on several ranks:

torchrun --nproc_per_node 2 tests/two_ranks_lora.py MODEL OUT
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from configs.lora import LoraConfig
from configs.schema import Config
from tests.two_ranks import batch, config

ADAPTERS = {"rank": 4, "alpha": 6.0}


def lora_config(model: Path, **learner: Any) -> Config:
    """The engine tests' configuration with adapters."""
    cfg = config(model, **learner)
    cfg.model.lora = LoraConfig(**ADAPTERS)
    return cfg


def main(model: Path, out: Path) -> None:
    from learner.policy.checkpoint import load_checkpoint, save_checkpoint
    from learner.policy.engine import PolicyEngine

    for stage in (0, 1, 2, 3):
        engine = PolicyEngine(lora_config(model, zero_stage=stage))
        if engine.rank:
            engine.follow()
            continue
        engine.update(*batch())
        result = {name: tensor.numpy() for name, tensor in engine.snapshot()}
        save_checkpoint(engine, out / f"checkpoints-{stage}", 1, {}, keep=1)
        engine.update(*batch())
        after = dict(engine.snapshot())
        load_checkpoint(engine, out / f"checkpoints-{stage}")
        engine.update(*batch())
        same = all(torch.equal(after[name], tensor) for name, tensor in engine.parameters())
        np.savez(out / f"zero-{stage}.npz", **result, _same=same)
        engine.close()


if __name__ == "__main__":
    from learner.policy import zero

    signal.alarm(160)  # a rank that hangs outlives the launcher that its test kills
    zero.ZERO3_PERSISTENT = 0
    main(Path(sys.argv[1]), Path(sys.argv[2]))
