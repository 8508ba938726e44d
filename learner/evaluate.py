"""Scoring on held-out tasks: inside a run, and ``--role eval`` for a checkpoint on its own."""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from configs.schema import BaselineConfig, Config
from envs.registry import load_env
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from learner.gateway.router import StartError as GatewayError
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
        tasks = [task for dataset in self._config.env.eval for task in self._tasks(dataset, size, baseline)]
        episodes = self._gateway.evaluate(tasks, min_version=version, timeout_s=TIMEOUT_S)
        return eval_records(episodes, version, baseline.name if baseline else None), episodes

    def _tasks(self, dataset: str, size: int, baseline: BaselineConfig | None) -> list[Task]:
        path, args = (baseline.env, baseline.args) if baseline else (self._config.env.path, self._config.env.args)
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


def welcome_config(config: Config) -> dict[str, Any]:
    """The share of the configuration that an actor is given; it needs no file of its own."""
    envs = {"main": {"path": config.env.path, "args": config.env.args}}
    envs |= {b.name: {"path": b.env, "args": b.args} for b in config.baselines}
    sections = {name: getattr(config, name).model_dump(mode="json") for name in ("env", "sampling", "actor", "model")}
    return sections | {"envs": envs}


def main(config: Config) -> int:
    """Start a server on ``model.path`` and actors, score every set of ``env.eval``, print the table."""
    from rich.console import Console

    from configs.load import dump_config
    from learner.local import Cluster, StartError
    from learner.run.summary import eval_table
    from learner.servers.serving import ServerError

    config = config.model_copy(update={"baselines": []})
    with tempfile.TemporaryDirectory(prefix="rollway-eval-") as scratch:
        folder = Path(scratch)
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        cluster = Cluster(config, folder / "logs")
        gateway = None
        try:
            ledger = Ledger(folder / "ledger.sqlite", [], config.run.seed)
            gateway = Gateway(config, ledger, "eval", welcome_config(config))
            evaluator = Evaluator(config, gateway)
            gateway.start()
            cluster.start_servers()
            cluster.start_actors()
            gateway.set_servers(cluster.wait_for_servers(lambda message: print(message, file=sys.stderr)))
            with ThreadPoolExecutor(1) as pool:
                scores = pool.submit(evaluator.score, 0, config.eval.final_size)
                try:
                    while not scores.done():
                        for event in cluster.revive():
                            print(event, file=sys.stderr)
                        time.sleep(0.5)
                finally:
                    gateway.interrupt()
                records, _ = scores.result()
        except (StartError, ServerError, GatewayError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            if gateway:
                gateway.stop("evaluation over")
            cluster.stop()
    Console(width=None if sys.stdout.isatty() else 100).print(eval_table(records))
    return 0
