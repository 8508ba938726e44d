"""Options of the critic and of the advantage estimators that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from configs.optimizer import OptimizerConfig
from configs.section import Fraction, Section

if TYPE_CHECKING:
    from configs.algorithm import CorrectionConfig


class CriticAdvantage(Section):
    """What GAE and V-trace share. An estimator of this kind brings a critic into the run."""

    gamma: Fraction = 1.0
    """Discount of one action token; tool tokens do not discount."""
    lam: Fraction = 1.0
    """λ: 1 trusts the returns (unbiased, noisy), 0 the critic's one-step prediction."""
    bootstrap: bool = True
    """Add the critic's value of where a limit cut an episode; false where the limit belongs to the task."""
    whiten: bool = True
    """Shift and scale advantages to mean 0 and standard deviation 1 over the batch's action tokens."""


class GaeAdvantage(CriticAdvantage):
    """Generalised advantage estimation over action tokens (Schulman et al. 2016), as PPO uses it."""

    type: Literal["gae"] = "gae"


class VtraceAdvantage(CriticAdvantage):
    """V-trace targets and advantages (Espeholt et al. 2018): off-policy data still teaches V of the learner's policy."""

    type: Literal["vtrace"] = "vtrace"
    rho_cap: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """ρ̄: largest weight of a TD error; which policy the values converge to."""
    c_cap: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """c̄: largest weight that hands a TD error back to the token before; how fast they converge. At most ρ̄."""

    @model_validator(mode="after")
    def _caps_in_order(self) -> VtraceAdvantage:
        if self.c_cap > self.rho_cap:
            raise ValueError(f"c_cap ({self.c_cap}) must not be above rho_cap ({self.rho_cap})")
        return self


class CriticConfig(Section):
    """A value head on a model of its own, trained beside the policy. Leave it out to take these defaults."""

    path: str | None = None
    """Model whose backbone the critic starts from; by default ``model.path``."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps at the start of a run that train the critic alone: versions count on, the policy's weights stay."""
    clip: float | None = Field(default=0.2, gt=0, allow_inf_nan=False)
    """The value loss gives no reason to move a value further than this in one batch; null for no bound."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-3)
    """AdamW of the critic, apart from the policy's."""


def critic_mistake(
    critic: CriticConfig | None, advantage: Section, correction: CorrectionConfig, steps: int
) -> str | None:
    """What does not fit together, as one line; None if all does."""
    if not isinstance(advantage, CriticAdvantage):
        if critic is None:
            return None
        return (
            f"critic: algorithm.advantage.type {advantage.type} has no use for a critic; "
            "set it to gae or vtrace, or leave the critic's options out"
        )
    if isinstance(advantage, VtraceAdvantage) and (correction.type, correction.proximal) == ("none", "recompute"):
        return (
            "algorithm.advantage.type vtrace leaves the importance weight to the loss, and algorithm.correction.type "
            "none takes it away; set it to tis, or choose gae"
        )
    if critic is not None and critic.warmup_steps >= steps:
        return f"critic.warmup_steps ({critic.warmup_steps}) must be below run.steps ({steps}): the policy never learns"
    return None
