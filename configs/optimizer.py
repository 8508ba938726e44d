"""Options of AdamW; the policy and the critic have one each."""

from __future__ import annotations

from pydantic import Field

from configs.section import Beta, Section


class OptimizerConfig(Section):
    lr: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """The default suits a pretrained model whose weights are all trained; a small or new one wants more."""
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    eps: float = Field(default=1e-8, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""
    grad_clip: float = Field(default=1.0, gt=0)
