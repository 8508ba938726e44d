"""What is particular to DeepSpeed: its configuration, the optimizer under it, its checkpoint files."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from configs.schema import Config
from learner.policy.model import PolicyModel

#: Parameters with fewer elements stay whole on every rank under ZeRO-3 (DeepSpeed's default).
ZERO3_PERSISTENT = 100_000


def initialize(policy: PolicyModel, cfg: Config) -> deepspeed.DeepSpeedEngine:
    """The policy under DeepSpeed with AdamW. The process group must exist (``ranks.init_distributed``)."""
    o = cfg.learner.optimizer
    adam = torch.optim.AdamW(
        policy.parameters(), lr=o.lr, betas=o.betas, eps=o.eps, weight_decay=o.weight_decay, fused=True
    )
    engine, *_ = deepspeed.initialize(model=policy, optimizer=adam, config=deepspeed_config(cfg))
    engine.checkpoint_engine = SafeCheckpointEngine()
    return engine


def deepspeed_config(cfg: Config) -> dict[str, Any]:
    """DeepSpeed's configuration of this run. The divisor of the loss is ours: 1 sample, 1 micro-step."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": cfg.learner.optimizer.grad_clip,
        "zero_optimization": {
            "stage": cfg.learner.zero_stage,
            "stage3_param_persistence_threshold": ZERO3_PERSISTENT,
        },
    }
    if cfg.model.dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
        # The sum over micro-batches is kept in float32.
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


class SafeCheckpointEngine(TorchCheckpointEngine):
    """Reads DeepSpeed's checkpoint files as data: nothing in them can run code."""

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        with torch.serialization.safe_globals([ZeroStageEnum, LossScaler, fragment_address]):
            return torch.load(path, map_location=map_location, weights_only=True)
