"""Baselines: other policies of the same architecture, scored through the very same path.

Their weights are pushed into the running servers, their episodes run on the same actors,
tools and data; only the environment (their format) and the weights differ.
"""

from __future__ import annotations

from typing import Any

from configs.schema import Config
from learner.evaluate import Evaluator
from learner.policy.model import load_policy, named_weights
from learner.weights.push import WeightPusher


def score_baselines(config: Config, pusher: WeightPusher, evaluator: Evaluator) -> list[dict[str, Any]]:
    """Eval records of every entry of ``baselines``. The caller pushes its own weights afterwards."""
    records = []
    for baseline in config.baselines:
        tensors = list(named_weights(load_policy(baseline.model, config.model.dtype)))
        report = pusher.push(tensors, version=0)
        if not pusher.current_servers():
            raise RuntimeError(f"baseline {baseline.name}: no server took its weights: {report.errors()}")
        records += evaluator.score(0, config.eval.final_size, baseline)[0]
    return records
