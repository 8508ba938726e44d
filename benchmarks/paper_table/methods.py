"""The rows of both tables: what each method sets, and what the paper found.

Everything that is not named here is ``configs/quickstart.yaml`` and the same for all rows. A method's own
settings come last, so overrides on the command line move all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Our data sets, and the public ones that they stand for, in the paper's order.
DATASETS = {"hotpot": "HotpotQA", "wiki2": "2Wiki", "musique": "MuSiQue"}
IN_DOMAIN = ("hotpot", "wiki2")

COMMON = (
    "run.steps=20",
    "eval.every=0",
    "eval.final_size=200",
    "checkpoint.keep=1",
    "baselines=[]",  # Naive RAG is a row of its own
    "env.train=[hotpot,wiki2]",
    "env.eval=[hotpot,wiki2,musique]",
    "env.args.process_reward=0.0",  # the paper's reward is the outcome's alone
    "algorithm.loss.clip_high=0.2",  # its losses clip symmetrically
    "algorithm.reference.coefficient=0.001",
)
QUICK = ("run.steps=6", "learner.groups=4", "learner.group_size=4", "eval.final_size=12")

#: No training: one step of one task with a learning rate of 0, so that the run is like any other. The scores
#: are those of version 0.
_UNTRAINED = (
    "run.steps=1",
    "learner.optimizer.lr=0",
    "learner.groups=1",
    "learner.mini_batches=1",
    "learner.group_size=2",
)
#: γ = λ = 1 and the critic's 5 steps of warm-up are the paper's; KL is part of PPO's reward.
_PPO = (
    "algorithm.advantage.type=gae",
    "algorithm.advantage.gamma=1.0",
    "algorithm.advantage.lam=1.0",
    "algorithm.reference.where=reward",
    "algorithm.reference.estimator=k1",
    "critic.warmup_steps=5",
)
#: KL is a term of GRPO's loss (k3).
_GRPO = (
    "algorithm.advantage.type=grpo",
    "algorithm.advantage.eps=1e-6",
    "algorithm.reference.where=loss",
    "algorithm.reference.estimator=k3",
)
_NO_ADVANTAGE_MASK = ("algorithm.masks.advantage=false",)
_NO_MASKS = ("algorithm.masks.advantage=false", "algorithm.masks.loss=false")


@dataclass(frozen=True)
class Method:
    """``paper``: exact match by data set in the paper's Table 3, None for the ablations; ``average``: the mean
    over the three sets as printed there, or in Table 4."""

    title: str
    overrides: tuple[str, ...]
    average: float
    paper: dict[str, float] | None = None
    trained: bool = True


def _table3(hotpot: float, wiki2: float, musique: float) -> dict[str, float]:
    return {"hotpot": hotpot, "wiki2": wiki2, "musique": musique}


BASELINES = {
    # The warm start itself: the weights, prompt, tool, limits and questions of every trained row, before any
    # reinforcement learning.
    "base_tool_call": Method("Base Tool Call", _UNTRAINED, 0.0847, _table3(0.1372, 0.0891, 0.0277), trained=False),
    # The shipped policy of the same size for one retrieval (five passages) and one answer.
    "naive_rag": Method(
        "Naive RAG",
        (*_UNTRAINED, "model.path=configs/models/tiny-rag", "env.path=envs.naive_rag:NaiveRag", "env.args={}"),
        0.1328,
        _table3(0.1916, 0.1792, 0.0277),
        trained=False,
    ),
}
ALGORITHMS = {
    "ppo": Method("PPO", _PPO, 0.3719, _table3(0.4136, 0.5468, 0.1552)),
    "grpo": Method("GRPO", _GRPO, 0.3877, _table3(0.4405, 0.5741, 0.1485)),
    # KL of each token in the reward, as Hu et al. 2025 have it.
    "reinforce_pp": Method(
        "REINFORCE++",
        (
            "algorithm.advantage.type=reinforce_pp",
            "algorithm.reference.where=reward",
            "algorithm.reference.estimator=k2",
        ),
        0.3300,
        _table3(0.3768, 0.4796, 0.1336),
    ),
    # Its variant with the group's mean takes the KL into the loss.
    "reinforce_pp_baseline": Method(
        "REINFORCE++Baseline",
        (
            "algorithm.advantage.type=reinforce_pp_baseline",
            "algorithm.reference.where=loss",
            "algorithm.reference.estimator=k2",
        ),
        0.3619,
        _table3(0.3966, 0.5406, 0.1485),
    ),
    # Ahmadian et al. 2024: KL in the reward.
    "rloo": Method(
        "RLOO",
        (
            "algorithm.advantage.type=rloo",
            "algorithm.reference.where=reward",
            "algorithm.reference.estimator=k1",
        ),
        0.3716,
        _table3(0.4089, 0.5641, 0.1419),
    ),
}
#: Rows of Table 4 beside ``ppo`` and ``grpo``. With one advantage an episode, dropping GRPO's loss mask means
#: that the tokens of the environment are trained with it too: both of our masks are off (docs/algorithms.md).
ABLATIONS = {
    "ppo_no_advantage_mask": Method("PPO, no advantage mask", (*_PPO, *_NO_ADVANTAGE_MASK), 0.3136),
    "ppo_no_masks": Method("PPO, no loss mask either", (*_PPO, *_NO_MASKS), 0.3022),
    "grpo_no_loss_mask": Method("GRPO, no loss mask", (*_GRPO, *_NO_MASKS), 0.3722),
}
METHODS = BASELINES | ALGORITHMS | ABLATIONS
TABLE3 = (*BASELINES, *ALGORITHMS)
TABLE4 = ("ppo", "ppo_no_advantage_mask", "ppo_no_masks", "grpo", "grpo_no_loss_mask")
