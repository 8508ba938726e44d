"""One flat record a training step: what metrics.jsonl, TensorBoard and the dashboard show."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from learner.algorithm.rewards import equal
from protocol.trajectory import Group, Trajectory


def batch_record(groups: list[Group], version: int) -> dict[str, Any]:
    """What the batch itself says, before it is trained on at policy ``version``.

    Staleness of a token is ``version`` − the version that sampled it, over action tokens.
    """
    episodes = [t for group in groups for t in group.trajectories]
    ages = np.concatenate([version - t.versions[t.action_mask.astype(bool)] for t in episodes])
    return {
        "reward": _mean([t.total_reward for t in episodes]),
        "em": metric_by_dataset(episodes, "em"),
        "episodes": len(episodes),
        "equal_reward_groups": sum(equal(np.array([t.total_reward for t in group.trajectories])) for group in groups),
        "tokens": sum(len(t) for t in episodes),
        "action_tokens": int(ages.size),
        "turns": _mean([len(t.turns) for t in episodes]),
        "truncated": _mean([not t.terminated for t in episodes]),
        "tool_faults": sum(bool(call["fault"]) for t in episodes for call in t.facts.get("tool_calls", ())),
        # A learner that restarted from a checkpoint may hold tokens of versions that it has yet to make again.
        "staleness_mean": float(np.clip(ages, 0, None).mean()) if ages.size else 0.0,
        "staleness_max": int(ages.max(initial=0)),
    }


def metric_by_dataset(episodes: list[Trajectory], metric: str) -> dict[str, float]:
    """Mean of one metric of the environment, by data set; episodes without it are left out."""
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        value = episode.facts.get("metrics", {}).get(metric)
        if value is not None:
            values[episode.facts["dataset"]].append(value)
    return {name: _mean(found) for name, found in sorted(values.items())}


def eval_records(episodes: list[Trajectory], version: int, baseline: str | None = None) -> list[dict[str, Any]]:
    """Scores by data set: [{version, dataset, em, f1, sub_em, n, ...}]; ``baseline`` names another policy."""
    by_dataset: dict[str, list[Trajectory]] = defaultdict(list)
    for episode in episodes:
        by_dataset[episode.facts["dataset"]].append(episode)
    records = []
    for dataset, members in by_dataset.items():
        metrics = sorted({name for t in members for name in t.facts.get("metrics", {})})
        record = {"version": version, "dataset": dataset, "n": len(members)}
        record |= {m: _mean([t.facts["metrics"].get(m, 0.0) for t in members]) for m in metrics}
        if baseline:
            record["baseline"] = baseline
        records.append(record)
    return records


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
