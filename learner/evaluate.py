"""Tasks and scores of a run: what is trained on, what is held out. ``learner.evaluation`` is ``--role eval``."""

from __future__ import annotations

from typing import Any

from configs.schema import BaselineConfig, Config
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
        tasks = [
            task for dataset in self._config.env.eval for task in eval_tasks(self._config, dataset, size, baseline)
        ]
        episodes = self._gateway.evaluate(tasks, min_version=version, timeout_s=TIMEOUT_S)
        return eval_records(episodes, version, baseline.name if baseline else None), episodes


def eval_tasks(config: Config, dataset: str, size: int, baseline: BaselineConfig | None = None) -> list[Task]:
    """The first ``size`` tasks of a data set's eval split, for the run's own environment or a baseline's."""
    path, args = (baseline.env, baseline.args) if baseline else (config.env.path, config.env.args)
    payloads = load_env(path, args).tasks("eval", dataset, size)
    name = baseline.name if baseline else "main"
    return [Task(task_id=p["id"], env=name, dataset=dataset, payload=p) for p in payloads]


def train_tasks(config: Config) -> list[Task]:
    """The tasks of one epoch, in the environment's own order (the ledger shuffles them)."""
    env = load_env(config.env.path, config.env.args)
    return [
        Task(task_id=payload["id"], dataset=dataset, payload=payload)
        for dataset in config.env.train
        for payload in env.tasks("train", dataset)
    ]


def check_environments(config: Config) -> None:
    """Raise ``ValueError`` for an environment, option or data set that is not there, before anything is started."""
    env = load_env(config.env.path, config.env.args)
    for split, names in (("train", config.env.train), ("eval", config.env.eval)):
        for dataset in names:
            if not env.tasks(split, dataset, 1):
                raise ValueError(f"env.{split}: the data set {dataset!r} of {config.env.path} has no tasks")
    for baseline in config.baselines:
        load_env(baseline.env, baseline.args)


def welcome_config(config: Config, eval_temperature: float = 0.0) -> dict[str, Any]:
    """The share of the configuration that an actor is given; it needs no file of its own.

    eval_temperature: of evaluation episodes; 0 is greedy.
    """
    envs = {"main": {"path": config.env.path, "args": config.env.args}}
    envs |= {b.name: {"path": b.env, "args": b.args} for b in config.baselines}
    sections = {name: getattr(config, name).model_dump(mode="json") for name in ("env", "sampling", "actor", "model")}
    return sections | {"envs": envs, "eval_temperature": eval_temperature}
