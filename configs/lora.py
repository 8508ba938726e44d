"""Options of low-rank adapters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.section import Positive, Section


class LoraConfig(Section):
    """Train W + alpha / rank · B·A with W frozen (Hu et al. 2021), by ``peft``. Servers get the sum."""

    rank: Positive = 16
    """Rows of A and columns of B."""
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    """Scale of the update, in units of 1 / rank."""
    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """Names of the linear layers that get adapters, e.g. [q_proj, v_proj]; all-linear: every one but the output head."""
