"""``--role eval``: score a model, a checkpoint or an endpoint on the eval data sets."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from configs.load import dump_config
from configs.schema import Config
from envs.registry import load_env
from learner.evaluate import TIMEOUT_S, eval_tasks, welcome_config
from learner.evaluation import report
from learner.evaluation.checkpoint import model_folder
from learner.evaluation.endpoint import EndpointError
from learner.evaluation.rival import score_endpoint
from learner.evaluation.scores import Outcome, kind_of
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway, WaitTimeout
from learner.gateway.router import StartError as GatewayError
from learner.servers.cluster import Cluster, StartError
from learner.servers.serving import ServerError
from protocol.messages import Task

#: Exit code of an evaluation that a person, or SIGTERM, stopped.
STOPPED = 130


def main(config: Config) -> int:
    """Print the table and write the JSON file. Exit codes: 0 scored, 130 stopped, 1 something could not be had."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, _interrupt)
    config, began = config.model_copy(update={"baselines": []}), time.time()
    try:
        path = report.output_path(config)
        other = report.read(config.eval.against) if config.eval.against else None
        tasks = [t for dataset in config.env.eval for t in eval_tasks(config, dataset, config.eval.final_size)]
        if not tasks:
            raise ValueError(f"env.eval: the data sets {config.env.eval} of {config.env.path} have no tasks")
        tasks = [task for task in tasks for _ in range(config.eval.samples)]
        outcomes = _of_endpoint(config, tasks) if config.eval.endpoint else _of_model(config, tasks)
        found = report.make(config, outcomes, began)
        if other:
            report.compare(found, other, config.eval.against)
        report.write(found, path)
    except (StartError, ServerError, GatewayError, EndpointError, WaitTimeout, ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return STOPPED
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report.table(found))
    console.print(f"scores and outcomes: {path}", highlight=False, soft_wrap=True)
    return 0


def _of_model(config: Config, tasks: list[Task]) -> list[Outcome]:
    """By a server on ``model.path`` (or those of ``server.urls``) and actors of our own; nothing of them is left."""
    with tempfile.TemporaryDirectory(prefix="rollway-eval-") as scratch:
        folder = Path(scratch)
        model = config.model.model_copy(update={"path": model_folder(config.model.path, folder)})
        config = config.model_copy(update={"model": model})
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        cluster = Cluster(config, folder / "logs")
        gateway = None
        try:
            ledger = Ledger(folder / "ledger.sqlite", [], config.run.seed)
            gateway = Gateway(config, ledger, "eval", welcome_config(config, config.eval.temperature))
            gateway.start()
            cluster.start_servers()
            cluster.start_actors()
            gateway.set_servers(cluster.wait_for_servers(_say))
            with ThreadPoolExecutor(1) as pool:
                episodes = pool.submit(gateway.evaluate, tasks, 0, TIMEOUT_S)
                try:
                    while not episodes.done():
                        for event in cluster.revive():
                            _say(event)
                        time.sleep(0.5)
                finally:
                    gateway.interrupt()
                played = episodes.result()
        finally:
            if gateway:
                gateway.stop("evaluation over")
            cluster.stop()
    return [
        Outcome(
            task_id=task.task_id,
            dataset=task.dataset,
            kind=kind_of(task.payload),
            finish=episode.facts["finish"],
            turns=len(episode.turns),
            metrics=episode.facts["metrics"],
        )
        for task, episode in zip(tasks, played, strict=True)
    ]


def _of_endpoint(config: Config, tasks: list[Task]) -> list[Outcome]:
    env = load_env(config.env.path, config.env.args)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(config.eval.endpoint_model, total=len(tasks))
        return asyncio.run(score_endpoint(config, env, tasks, functools.partial(progress.advance, bar)))


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _interrupt(*_: object) -> None:
    """SIGTERM ends an evaluation as Ctrl-C does: by way of every ``finally``. A second one changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
