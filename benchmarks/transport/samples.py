"""Realistic groups: 8 episodes of 2,000 tokens, five turns each."""

from __future__ import annotations

from typing import Any

import numpy as np

from protocol.messages import Task
from protocol.trajectory import NO_VERSION, TOKEN_FIELDS, Group, Trajectory

EPISODES, TOKENS, TURNS = 8, 2000, 5
TASK = Task(task_id="q", dataset="load", payload={"id": "q"})


def trajectory(seed: int, tokens: int = TOKENS, turns: int = TURNS) -> Trajectory:
    """Half of the tokens are the policy's, in ``turns`` turns."""
    rng = np.random.default_rng(seed)
    size = tokens // turns
    spans = np.array([[k * size + size // 2, (k + 1) * size] for k in range(turns)], "<i4")
    mask = np.zeros(tokens, "u1")
    for start, end in spans:
        mask[start:end] = 1
    rewards = np.zeros(tokens, "<f4")
    rewards[spans[:, 1] - 1] = 0.25
    calls = [{"turn": k, "name": "search", "latency_s": 0.0123, "fault": None} for k in range(turns - 1)]
    facts = {
        "task_id": TASK.task_id,
        "dataset": TASK.dataset,
        "seed": seed,
        "finish": "done",
        "outcome_reward": 1.0,
        "process_reward": 0.25,
        "metrics": {"em": 1.0, "f1": 1.0, "format": 1.0},
        "tool_calls": calls,
    }
    return Trajectory(
        token_ids=rng.integers(0, 150_000, tokens).astype("<i4"),
        action_mask=mask,
        behaviour_logprobs=(-rng.random(tokens) * mask).astype("<f4"),
        versions=np.where(mask, 0, NO_VERSION).astype("<i4"),
        rewards=rewards,
        turns=spans,
        facts=facts,
    )


def group(lease_id: str = "lease") -> Group:
    return Group(lease_id, TASK.task_id, [trajectory(seed) for seed in range(EPISODES)])


def as_lists(made: Group) -> dict[str, Any]:
    """The group as plain lists: what servers answer with, and what can be written as JSON."""
    episodes = [
        {name: getattr(t, name).tolist() for name in (*TOKEN_FIELDS, "turns")}
        | {"terminated": t.terminated, "facts": t.facts}
        for t in made.trajectories
    ]
    return {"lease_id": made.lease_id, "task_id": made.task_id, "trajectories": episodes}


def from_lists(fields: dict[str, Any]) -> Group:
    members = [
        Trajectory(
            **{name: np.array(episode[name], dtype) for name, dtype in TOKEN_FIELDS.items()},
            turns=np.array(episode["turns"], "<i4"),
            terminated=episode["terminated"],
            facts=episode["facts"],
        )
        for episode in fields["trajectories"]
    ]
    return Group(fields["lease_id"], fields["task_id"], members)
