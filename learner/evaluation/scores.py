"""Scores of a finished evaluation: means, pass@k and their 95 % confidence intervals. Pure functions.

The unit is the task. Several samples of one task are no independent evidence, so every
score is first a value of each task, and an interval is over tasks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Two-sided 95 % quantile of the normal distribution.
Z95 = 1.959963984540054
#: Resamples of a bootstrap, and their seed: the same outcomes always give the same interval.
RESAMPLES, SEED = 4000, 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One episode. finish: ``done``, ``max_turns``, ``length`` or ``failed``; a failed one scores 0 in every metric.

    kind: what the task is, among those of its data set ("" where it does not say).
    """

    task_id: str
    dataset: str
    kind: str
    finish: str
    turns: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Score:
    """A mean over tasks with its 95 % interval; method: ``wilson`` or ``bootstrap``."""

    mean: float
    low: float
    high: float
    method: str


def kind_of(payload: dict[str, Any]) -> str:
    """What a task says about itself: its ``kind``, else how many passages its answer takes."""
    if kind := payload.get("kind"):
        return str(kind)
    titles = payload.get("gold_titles")
    return f"{len(titles)} passage{'s' * (len(titles) != 1)}" if titles else ""


def pass_at_k(n: int, solved: int, k: int) -> float:
    """Chance that one of ``k`` samples solves a task of which ``solved`` of ``n`` did, without bias.

    1 − C(n − c, k) / C(n, k): Chen et al. 2021, "Evaluating Large Language Models Trained on Code".
    """
    if not 0 <= solved <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {solved} solved in {n} samples")
    return 1.0 - math.comb(n - solved, k) / math.comb(n, k)


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a share (Wilson 1927); it stays sound where all, or none, succeed."""
    share, spread = successes / n, Z95**2 / n
    centre = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the mean over tasks (Efron 1979), of ``RESAMPLES`` resamples."""
    # Drawing how often each distinct value comes up is the same as drawing tasks, and takes far less memory.
    distinct, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
    draws = np.random.default_rng(SEED).multinomial(len(values), counts / len(values), size=RESAMPLES)
    means = draws @ distinct / len(values)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def score(values: Sequence[float]) -> Score:
    """Mean of one value a task (at least one): Wilson's interval where all are 0 or 1, else the bootstrap's."""
    mean = float(np.mean(values))
    if set(values) <= {0.0, 1.0}:
        return Score(mean, *wilson(sum(values), len(values)), "wilson")
    return Score(mean, *bootstrap(values), "bootstrap")


def summarise(outcomes: Sequence[Outcome], samples: int) -> list[dict[str, Any]]:
    """Scores by data set, and by kind where a data set has several, as plain values.

    outcomes: ``samples`` of each task. Each record: {dataset, kind (None for all of it), tasks,
    samples, failed, turns, metrics: {name: score}, pass: {k: score}}, a score being
    {mean, low, high, method}. ``metrics`` are avg@k where there are several samples, and
    ``pass`` (for k = 1, 2, 4, … up to ``samples``) counts a sample as solved where its em is 1.
    """
    by_dataset: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_dataset[outcome.dataset].append(outcome)
    records = []
    for dataset, members in by_dataset.items():
        records.append(_record(dataset, None, members, samples))
        kinds = sorted({outcome.kind for outcome in members})
        if len(kinds) > 1:
            records += [_record(dataset, kind, [o for o in members if o.kind == kind], samples) for kind in kinds]
    return records


def by_task(outcomes: Sequence[Outcome], metric: str) -> dict[tuple[str, str], float]:
    """(data set, task) → mean of a metric over the task's samples; one that lacks it scores 0."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for outcome in outcomes:
        values[outcome.dataset, outcome.task_id].append(outcome.metrics.get(metric, 0.0))
    return {task: float(np.mean(found)) for task, found in values.items()}


def difference(ours: dict[tuple[str, str], float], theirs: dict[tuple[str, str], float], dataset: str) -> Score | None:
    """Mean of ours − theirs over the tasks that both have, paired; None where they share none.

    Pairing takes out how hard each task is: small differences show with fewer tasks.
    """
    shared = [ours[task] - theirs[task] for task in ours if task in theirs and task[0] == dataset]
    return Score(float(np.mean(shared)), *bootstrap(shared), "bootstrap") if shared else None


def _record(dataset: str, kind: str | None, outcomes: list[Outcome], samples: int) -> dict[str, Any]:
    names = sorted({name for outcome in outcomes for name in outcome.metrics})
    solved: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        solved[outcome.task_id] += outcome.metrics.get("em") == 1.0
    ks = [2**power for power in range(samples.bit_length())] if samples > 1 else []
    return {
        "dataset": dataset,
        "kind": kind,
        "tasks": len(solved),
        "samples": samples,
        "failed": sum(outcome.finish == "failed" for outcome in outcomes),
        "turns": float(np.mean([outcome.turns for outcome in outcomes])),
        "metrics": {name: _plain(score(list(by_task(outcomes, name).values()))) for name in names},
        "pass": {str(k): _plain(score([pass_at_k(samples, count, k) for count in solved.values()])) for k in ks},
    }


def _plain(found: Score) -> dict[str, Any]:
    return {"mean": found.mean, "low": found.low, "high": found.high, "method": found.method}
