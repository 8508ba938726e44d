"""Baselines: other policies of the same architecture, scored through the very same path.

Their weights are pushed into the running servers, their episodes run on the same actors,
tools and data; only the environment (their format) and the weights differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from configs.schema import Config
from learner.evaluate import Evaluator
from learner.policy.model import load_policy, named_weights


def score_baselines(
    config: Config, push: Callable[[list[tuple[str, Tensor]]], list[str]], evaluator: Evaluator
) -> list[dict[str, Any]]:
    """Eval records of every entry of ``baselines``. The caller pushes its own weights afterwards.

    push: brings weights to the servers; returns those that took them.
    """
    records = []
    for baseline in config.baselines:
        if not push(list(named_weights(load_policy(baseline.model, config.model.dtype)))):
            raise RuntimeError(f"baseline {baseline.name}: no server took its weights; the log above says why")
        records += evaluator.score(0, config.eval.final_size, baseline)[0]
    return records
