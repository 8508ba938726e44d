"""What is particular to DeepSpeed: its configuration, the optimizer under it, its checkpoint files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor, nn

from configs.optimizer import OptimizerConfig
from configs.schema import Config

#: Parameters with fewer elements stay whole on every rank under ZeRO-3 (DeepSpeed's default).
ZERO3_PERSISTENT = 100_000
#: Types other than torch's own in DeepSpeed's checkpoint files.
SAVED_TYPES = [ZeroStageEnum, LossScaler, fragment_address]


class ZeroModel:
    """A module under DeepSpeed with an AdamW of its own: what the policy and the critic are trained as.

    Build it on every rank at the same time, when the process group exists (``ranks.init_distributed``).
    Calling it is a forward pass. The divisor of the loss is the caller's.
    """

    def __init__(self, module: nn.Module, cfg: Config, options: OptimizerConfig):
        self._options = options
        self._stage = cfg.learner.zero_stage
        self._trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        module.register_state_dict_post_hook(_without_frozen)
        adam = torch.optim.AdamW(
            self._trained.values(),
            lr=options.lr,
            betas=options.betas,
            eps=options.eps,
            weight_decay=options.weight_decay,
            fused=True,
        )
        config = deepspeed_config(cfg, options.grad_clip)
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=adam, config=config)
        self._engine.checkpoint_engine = SafeCheckpointEngine()

    def __call__(self, **inputs: Any) -> Any:
        return self._engine(**inputs)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradient of one micro-batch; ``last``: ``step`` comes next.

        Unless told which backward pass is the last, ZeRO-1 and -2 keep that one's gradient only.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss)

    def step(self) -> float:
        """One step of AdamW. Returns the norm of the whole gradient before clipping."""
        options = self._options  # said anew each time: a checkpoint brings those of its day
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self._learning_rate(self._engine.global_steps)
            group |= {"betas": options.betas, "eps": options.eps, "weight_decay": options.weight_decay}
        if self._stage == 0:  # DeepSpeed then clips without telling the norm
            norm = torch.nn.utils.get_total_norm([p.grad for p in self._trained.values()])
            self._engine.step()
            return float(norm)
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    @property
    def last_lr(self) -> float:
        """Learning rate of the last step."""
        return self._learning_rate(self._engine.global_steps - 1)

    def _learning_rate(self, step: int) -> float:
        """Linear warm-up from the first step (0) on."""
        return self._options.lr * min(1.0, (step + 1) / max(1, self._options.warmup_steps))

    def save(self, folder: Path, tag: str) -> None:
        """Write trained weights and optimizer of all ranks to ``folder/tag``; every rank calls it."""
        self._engine.save_checkpoint(str(folder), tag=tag, save_latest=False, exclude_frozen_parameters=True)

    def load(self, folder: Path, tag: str) -> None:
        """Take back what ``save`` wrote. Raises ``FileNotFoundError``, where DeepSpeed would only warn and go on,
        and ``ValueError`` where the weights are those of another module."""
        found, _ = self._engine.load_checkpoint(str(folder), tag=tag, custom_load_fn=self._load_trained)
        if found is None:
            raise FileNotFoundError(f"{folder / tag} holds no checkpoint of DeepSpeed")

    def _load_trained(self, src: dict[str, Tensor], dst: nn.Module) -> None:
        missing, unexpected = dst.load_state_dict(src, strict=False)
        if wrong := sorted({*self._trained}.intersection(missing)) + unexpected:
            raise ValueError(f"the checkpoint is of another model: {', '.join(wrong[:3])} of {len(wrong)} do not fit")


def _without_frozen(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Frozen parameters are in no checkpoint, under none of the names that a tied one has."""
    for name, parameter in module.named_parameters(prefix.removesuffix("."), remove_duplicate=False):
        if not parameter.requires_grad:
            state.pop(name, None)


def deepspeed_config(cfg: Config, grad_clip: float) -> dict[str, Any]:
    """DeepSpeed's configuration of this run. The divisor of the loss is ours: 1 sample, 1 micro-step."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": grad_clip,
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
        with torch.serialization.safe_globals(SAVED_TYPES):
            return torch.load(path, map_location=map_location, weights_only=True)
