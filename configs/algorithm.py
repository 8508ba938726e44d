"""Options of the algorithm: how rewards become advantages, and advantages a loss.

Each part is chosen by its ``type`` and brings its own options. Formulas with their
sources are in docs/algorithms.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from configs.critic import GaeAdvantage, VtraceAdvantage
from configs.section import NonNegative, Section


def by_type(default: str) -> Discriminator:
    """Chooses a union's member by ``type``; where that is left out, ``default``."""

    def tag(value: Any) -> Any:
        return value.get("type", default) if isinstance(value, dict) else getattr(value, "type", None)

    return Discriminator(tag)


# ── advantages ───────────────────────────────────────────────────────────────


class GrpoAdvantage(Section):
    """A = (R − mean) / (std + eps) over the group (Shao et al. 2024, eq. 3)."""

    type: Literal["grpo"] = "grpo"
    eps: NonNegative = 0.1
    """Added to the standard deviation; large values temper groups with little spread."""


class DrGrpoAdvantage(Section):
    """A = R − mean over the group (Liu et al. 2025, "Understanding R1-Zero-like training")."""

    type: Literal["dr_grpo"] = "dr_grpo"


class RlooAdvantage(Section):
    """A = R − mean of the group's other episodes (Kool et al. 2019; Ahmadian et al. 2024)."""

    type: Literal["rloo"] = "rloo"


class ReinforcePlusPlusAdvantage(Section):
    """Returns of each token, standardised over all action tokens of the batch (Hu et al. 2025)."""

    type: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount from one action token to the next."""


class ReinforcePlusPlusBaselineAdvantage(Section):
    """R − mean over the group, then standardised over all action tokens of the batch (Hu et al. 2025)."""

    type: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"


class TurnLevelAdvantage(Section):
    """Each turn's return from there on against the group's at the same turn; GRPO where only outcomes count."""

    type: Literal["turn_level"] = "turn_level"
    eps: NonNegative = 0.1
    """Added to the standard deviation."""


class CustomAdvantage(Section):
    """A function of your own, ``(groups, args, context) → advantages`` (docs/algorithms.md)."""

    type: Literal["custom"] = "custom"
    path: str = Field(pattern=r"^[\w.]+:\w+$")
    """``module:function``, the module anywhere on PYTHONPATH."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Handed to the function."""


Advantage = Annotated[
    Annotated[GrpoAdvantage, Tag("grpo")]
    | Annotated[DrGrpoAdvantage, Tag("dr_grpo")]
    | Annotated[RlooAdvantage, Tag("rloo")]
    | Annotated[ReinforcePlusPlusAdvantage, Tag("reinforce_pp")]
    | Annotated[ReinforcePlusPlusBaselineAdvantage, Tag("reinforce_pp_baseline")]
    | Annotated[TurnLevelAdvantage, Tag("turn_level")]
    | Annotated[GaeAdvantage, Tag("gae")]
    | Annotated[VtraceAdvantage, Tag("vtrace")]
    | Annotated[CustomAdvantage, Tag("custom")],
    by_type("grpo"),
]

# ── losses ───────────────────────────────────────────────────────────────────


class PpoClipLoss(Section):
    """Clipped surrogate with asymmetric bounds on π_θ/π_prox (Schulman 2017, eq. 7; DAPO)."""

    type: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=None, gt=1, allow_inf_nan=False)
    """Bound on ratio · |A| where A < 0, in units of |A| (Ye et al. 2020, eq. 5); null for none. 3 is usual."""


class GspoLoss(Section):
    """Clipped surrogate on the ratio of the whole episode, its geometric mean a token (Zheng et al. 2025)."""

    type: Literal["gspo"] = "gspo"
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    clip_high: float = Field(default=4e-4, gt=0)


class CispoLoss(Section):
    """−sg(clip(π_θ/π_prox)) · A · log π_θ: clipped weights, but no token without a gradient (MiniMax-M1, eq. 4)."""

    type: Literal["cispo"] = "cispo"
    clip_low: float = Field(default=1.0, gt=0, le=1)
    """The weight is at least 1 − clip_low; 1 for no lower bound, as in the paper."""
    clip_high: float = Field(default=4.0, gt=0)
    """The weight is at most 1 + clip_high."""


class ReinforceLoss(Section):
    """−A · log π_θ, weighted by the off-policy correction of π_θ/μ alone."""

    type: Literal["reinforce"] = "reinforce"


Loss = Annotated[
    Annotated[PpoClipLoss, Tag("ppo_clip")]
    | Annotated[GspoLoss, Tag("gspo")]
    | Annotated[CispoLoss, Tag("cispo")]
    | Annotated[ReinforceLoss, Tag("reinforce")],
    by_type("ppo_clip"),
]

# ── off-policy correction ────────────────────────────────────────────────────


class NoMask(Section):
    type: Literal["none"] = "none"


class TokenMask(Section):
    """Leave out tokens whose π/μ is outside [low, high] (IcePop, Ling Team 2025)."""

    type: Literal["token"] = "token"
    low: float = Field(default=0.5, ge=0, lt=1)
    """A ratio below this is masked."""
    high: float = Field(default=5.0, gt=1, allow_inf_nan=False)
    """A ratio above this is masked."""


class GeometricMask(Section):
    """Leave out episodes whose geometric mean of π/μ over their tokens is outside [low, high] (Liu et al. 2025)."""

    type: Literal["geometric"] = "geometric"
    low: float = Field(default=0.99, ge=0, lt=1)
    """A mean below this masks the episode."""
    high: float = Field(default=1.01, gt=1, allow_inf_nan=False)
    """A mean above this masks the episode."""


Mask = Annotated[
    Annotated[NoMask, Tag("none")] | Annotated[TokenMask, Tag("token")] | Annotated[GeometricMask, Tag("geometric")],
    by_type("none"),
]


class CorrectionConfig(Section):
    """Off-policy correction: weights min(π_prox/μ, cap), and a mask of what is too far off."""

    type: Literal["tis", "sequence_tis", "none"] = "tis"
    """The weight is of each token, or of the whole episode (product over its tokens).
    ``none`` switches it off; the ratios stay in the metrics."""
    cap: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """Largest weight."""
    mask: Mask = NoMask()
    proximal: Literal["recompute", "behaviour"] = "recompute"
    """π_prox from the learner's weights at the start of the update (decoupled), or taken equal to μ (bypass)."""


# ── the rest of the loss ─────────────────────────────────────────────────────


class ReferenceConfig(Section):
    """KL of the policy to a frozen copy of ``model.path``, which is loaded only where ``coefficient`` is above 0."""

    coefficient: NonNegative = 0.0
    """β, weight of the KL term."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman, "Approximating KL divergence", 2020."""
    where: Literal["loss", "reward"] = "loss"
    """A term of the loss (GRPO), or a penalty in the reward of each token (PPO, REINFORCE++)."""


class OverlongConfig(Section):
    """Soft penalty of episodes near ``model.max_tokens`` (DAPO, Yu et al. 2025, eq. 13)."""

    buffer_tokens: int = Field(default=0, ge=0)
    """The penalty grows linearly over this many last tokens; 0 for no penalty."""
    penalty: NonNegative = 1.0
    """Taken from the outcome of an episode of ``model.max_tokens``."""


class DynamicSamplingConfig(Section):
    """Take further groups for those whose rewards are all equal (DAPO, Yu et al. 2025, § 3.2)."""

    rounds: int = Field(default=0, ge=0)
    """Most times that a step asks for replacements; 0 switches it off. What is still
    missing then is trained without."""


class MaskConfig(Section):
    """The masks of Agent-R1. Off is for ablation: what the environment wrote takes part as if the policy had."""

    loss: bool = True
    """Policy loss, KL and entropy on action tokens only; off: on every token after the prompt."""
    advantage: bool = True
    """Advantages along action tokens only; off: tokens of the environment discount, carry and receive them too."""


class AlgorithmConfig(Section):
    advantage: Advantage = GrpoAdvantage()
    loss: Loss = PpoClipLoss()
    correction: CorrectionConfig = CorrectionConfig()
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens of the optimizer step, mean of the episodes' means, or sum over
    episodes × ``model.max_tokens`` (Dr.GRPO)."""
    reference: ReferenceConfig = ReferenceConfig()
    entropy_bonus: NonNegative = 0.0
    """Weight of the policy's entropy in the loss."""
    process_reward_weight: NonNegative = 1.0
    """Weight of process rewards against the outcome."""
    process_reward_norm: Literal["none", "group"] = "none"
    """group: divided by the largest sum of |process rewards| of an episode of the same task, so that the weight
    means the same whatever the environment's unit."""
    turn_discount: float = Field(default=1.0, gt=0, le=1)
    """Discount of rewards from one turn to the next."""
    overlong: OverlongConfig = OverlongConfig()
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    masks: MaskConfig = MaskConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> AlgorithmConfig:
        bypass = self.correction.proximal == "behaviour"
        if bypass and not self.masks.loss:
            raise ValueError(
                "masks.loss false needs correction.proximal recompute: the sampler gave no probabilities of tool tokens"
            )
        if bypass and self.correction.type == "sequence_tis" and self.loss.type != "reinforce":
            raise ValueError(
                f"correction.type sequence_tis has no effect with correction.proximal behaviour: the ratio of {self.loss.type} "
                "is then the whole correction; set proximal to recompute, or loss.type to reinforce"
            )
        return self
