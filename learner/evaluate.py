"""Tasks and scores of a run: what is trained on, what is held out. ``learner.evaluation`` is ``--role eval``."""

from __future__ import annotations

import time
from typing import Any

from configs.schema import BaselineConfig, Config
from envs.base import TaskSource, ToolEnv
from envs.registry import load_env
from learner.gateway.router import Gateway
from learner.run.telemetry import eval_records
from protocol.messages import Task
from protocol.trajectory import Trajectory

#: Longest time for one evaluation; far above any sane one, so that nothing waits for ever.
TIMEOUT_S = 3600.0


class Evaluator:
    """Hands eval tasks to the gateway and turns the episodes into scores. Greedy, one episode a task."""

    def __init__(self, config: Config, gateway: Gateway):
        self._config = config
        self._gateway = gateway

    def score(
        self, version: int, size: int, baseline: BaselineConfig | None = None
    ) -> tuple[list[dict[str, Any]], list[Trajectory]]:
        """(records by data set, the episodes). ``size``: tasks of each of ``env.eval``."""
        scoring = baseline.name if baseline else f"version {version}"
        self._gateway.publish("run", {"phase": "eval", "phase_since": time.time(), "scoring": scoring})
        tasks = [
            task for dataset in self._config.env.eval for task in eval_tasks(self._config, dataset, size, baseline)
        ]
        episodes = self._gateway.evaluate(tasks, min_version=version, timeout_s=TIMEOUT_S)
        return eval_records(episodes, version, baseline.name if baseline else None), episodes


def eval_tasks(config: Config, dataset: str, size: int, baseline: BaselineConfig | None = None) -> list[Task]:
    """The first ``size`` tasks of a data set's eval split, for the run's own environment or a baseline's."""
    source = load_env(baseline.env, baseline.args) if baseline else task_source(config)
    payloads = source.tasks("eval", dataset, size)
    name = baseline.name if baseline else "main"
    return [Task(task_id=p["id"], env=name, dataset=dataset, payload=p) for p in payloads]


def train_tasks(config: Config) -> list[Task]:
    """The tasks of one epoch, in the environment's own order (the ledger shuffles them)."""
    source = task_source(config)
    return [
        Task(task_id=payload["id"], dataset=dataset, payload=payload)
        for dataset in config.env.train
        for payload in source.tasks("train", dataset)
    ]


def task_source(config: Config) -> type[TaskSource]:
    """What ``env.path`` names: an environment, or only tasks where an agent plays. Raises ``ValueError``."""
    return load_env(config.env.path, config.env.args, TaskSource if config.agent else ToolEnv)


def check_environments(config: Config) -> None:
    """Raise ``ValueError`` for an environment, option or data set that is not there, before anything is started."""
    source = task_source(config)
    for split, names in (("train", config.env.train), ("eval", config.env.eval)):
        for dataset in names:
            if not source.tasks(split, dataset, 1):
                raise ValueError(f"env.{split}: the data set {dataset!r} of {config.env.path} has no tasks")
    for baseline in config.baselines:
        load_env(baseline.env, baseline.args)


def welcome_config(config: Config, eval_temperature: float = 0.0) -> dict[str, Any]:
    """The share of the configuration that an actor is given; it needs no file of its own.

    eval_temperature: of evaluation episodes; 0 is greedy.
    """
    envs = {} if config.agent else {"main": {"path": config.env.path, "args": config.env.args}}
    envs |= {b.name: {"path": b.env, "args": b.args} for b in config.baselines}
    sections = {name: getattr(config, name).model_dump(mode="json") for name in ("env", "sampling", "actor", "model")}
    agent = config.agent.model_dump(mode="json") if config.agent else None
    return sections | {"envs": envs, "agent": agent, "eval_temperature": eval_temperature}
