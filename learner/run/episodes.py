"""``episodes.jsonl``: sampled episodes with their tokens, for the report and the trajectory browser.

One line an episode. Text is decoded once, as it is written, so that a reader needs no
tokenizer; the arrays hold what was sampled and what it was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.run.transcript import Decode, segments
from protocol.trajectory import Group, Trajectory


def group_records(
    group: Group,
    advantages: list[np.ndarray],
    step: int,
    decode: Decode,
    proximal: Sequence[np.ndarray | None] | None = None,
) -> list[dict[str, Any]]:
    """The members of a group that training step ``step`` consumed.

    advantages, proximal: float32 [T] a member; proximal is log π_prox, None where it is not known.
    """
    unknown = [None] * len(group.trajectories)
    return [
        episode_record(t, step, "train", group.lease_id, decode, advantage, logprobs)
        for t, advantage, logprobs in zip(group.trajectories, advantages, proximal or unknown, strict=True)
    ]


def episode_record(
    trajectory: Trajectory,
    step: int,
    kind: str,
    group: str,
    decode: Decode,
    advantages: np.ndarray | None = None,
    proximal: np.ndarray | None = None,
) -> dict[str, Any]:
    """One line of the file, as plain values.

    step: the version after the update that used it, or the version that was evaluated
    (``kind`` ``train`` | ``eval``). ``logprobs`` (log μ), ``proximal`` (log π_prox: the
    learner's, before the update), ``token_versions`` and ``advantages`` have one value a
    sampled token, in order; ``segments`` say where these
    lie among ``token_ids``: they are the tokens of the role ``policy``. Rewards and
    arrays are rounded to five decimals, so that 0.1 is found as 0.1.
    """
    sampled = trajectory.action_mask.astype(bool)
    facts, versions = trajectory.facts, trajectory.versions[sampled]
    record: dict[str, Any] = {
        "step": step,
        "kind": kind,
        "group": group,
        "task_id": str(facts.get("task_id", "")),
        "dataset": str(facts.get("dataset", "")),
        "reward": round(trajectory.total_reward, 5),
        "outcome_reward": facts.get("outcome_reward"),
        "process_reward": facts.get("process_reward"),
        "metrics": facts.get("metrics") or {},
        "finish": facts.get("finish"),
        "turns": len(trajectory.turns),
        "tokens": len(trajectory),
        "sampled": int(sampled.sum()),
        "versions": [int(versions.min()), int(versions.max())] if versions.size else None,
        "tool_calls": facts.get("tool_calls") or [],
        "segments": [
            {
                "role": s.role,
                "text": s.text,
                "start": s.start,
                "stop": s.stop,
                "versions": list(s.versions) if s.versions else None,
                "reward": None if s.reward is None else round(s.reward, 5),
            }
            for s in segments(trajectory, decode)
        ],
        "token_ids": trajectory.token_ids.tolist(),
        "logprobs": _rounded(trajectory.behaviour_logprobs[sampled]),
        "token_versions": versions.tolist(),
    }
    if advantages is not None:
        record["advantages"] = _rounded(advantages[sampled])
    if proximal is not None:
        record["proximal"] = _rounded(proximal[sampled])
    return record


def _rounded(values: np.ndarray) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
