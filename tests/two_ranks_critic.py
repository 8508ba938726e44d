"""A critic and fixed lessons for its tests, and the script that runs them on several ranks:

torchrun --nproc_per_node 2 tests/two_ranks_critic.py MODEL OUT
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from configs.schema import Config
from learner.algorithm.context import PerToken
from protocol.trajectory import Group
from tests.two_ranks import batch, config


def actor_critic_config(
    model: Path, advantage: dict | None = None, critic: dict | None = None, **learner: Any
) -> Config:
    """The engine tests' configuration with a critic; its AdamW is as smooth as theirs."""
    data = config(model, **learner).model_dump()
    smooth = {"lr": 0.5, "eps": 1.0, "grad_clip": 0.5}
    data["algorithm"]["advantage"] = {"type": "gae", **(advantage or {})}
    data["critic"] = {"optimizer": smooth, **(critic or {})}
    return Config.model_validate(data)


def scored_batch() -> list[Group]:
    """The engine tests' groups with rewards that differ, a quarter of them cut by a limit."""
    groups, _ = batch()
    rng = np.random.default_rng(2)
    for group in groups:
        for i, t in enumerate(group.trajectories):
            t.rewards[-1] = t.facts["outcome_reward"] = np.float32(rng.normal())
            t.terminated = i != 3
    return groups


def lessons(groups: list[Group]) -> tuple[PerToken, PerToken, PerToken]:
    """(values, targets, masks) at random; old values so far off that the clip holds some of them."""
    rng = np.random.default_rng(3)
    return (
        [[rng.normal(0, 0.5, len(t)).astype(np.float32) for t in group.trajectories] for group in groups],
        [[rng.normal(1, 1, len(t)).astype(np.float32) for t in group.trajectories] for group in groups],
        [[t.action_mask.astype(bool) for t in group.trajectories] for group in groups],
    )


def main(model: Path, out: Path) -> None:
    from learner.policy.checkpoint import load_checkpoint, save_checkpoint
    from learner.policy.critic import Critic
    from learner.policy.engine import PolicyEngine
    from learner.update import update

    groups = scored_batch()
    for stage in (0, 1, 2, 3):
        cfg = actor_critic_config(model, zero_stage=stage, mini_batches=2)
        engine = PolicyEngine(cfg)
        critic = Critic.beside(engine)
        if engine.rank:
            engine.follow(critic=critic)
            continue
        metrics = critic.update(groups, *lessons(groups))
        values = np.concatenate([v for group in critic.values(groups) for v in group])
        save_checkpoint(engine, out / f"checkpoints-{stage}", 1, {}, 1, critic)
        # One episode for two ranks: one of them has dummies only.
        lone = [Group("l", "t", groups[0].trajectories[:1])]
        first = update(cfg, engine, critic, lone, 0).metrics
        after = critic.values(groups)
        load_checkpoint(engine, out / f"checkpoints-{stage}", critic)
        again = update(cfg, engine, critic, lone, 0).metrics
        same = all(first[name] == again[name] for name in first if not name.endswith("_s"))
        same &= all(
            np.array_equal(a, b)
            for one, other in zip(after, critic.values(groups), strict=True)
            for a, b in zip(one, other, strict=True)
        )
        np.savez(
            out / f"zero-{stage}.npz",
            values=values,
            same=same,
            **{k: v for k, v in metrics.items() if k.startswith("value_")},
        )
        engine.close()


if __name__ == "__main__":
    from learner.policy import zero

    signal.alarm(160)  # a rank that hangs outlives the launcher that its test kills
    zero.ZERO3_PERSISTENT = 0
    main(Path(sys.argv[1]), Path(sys.argv[2]))
