"""``--role eval``: score a model, a checkpoint or an endpoint on the eval data sets."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from configs.load import dump_config
from configs.logs import fail, setup_logging
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
from learner.stopping import STOPPED, Stopped, StopSignals
from protocol.messages import Task
from protocol.trajectory import Trajectory
from tools.progress import progress, to_stderr, waiting

#: Seconds between two looks at whether a signal came, a process died, or more is done.
LOOK_S = 0.5
#: Time that episodes under way at an endpoint have to let go of what they hold, seconds.
CLOSE_S = 10.0


def main(config: Config) -> int:
    """Print the table and write the JSON file. Exit codes: 0 scored, 130 stopped, 1 something could not be had."""
    setup_logging(config.log, logging.StreamHandler(sys.stderr))
    logging.getLogger("rollway").setLevel(max(logging.WARNING, logging.getLogger("rollway").level))
    signals = StopSignals()
    config, began = config.model_copy(update={"baselines": []}), time.time()
    try:
        path = report.output_path(config)
        other = report.read(config.eval.against) if config.eval.against else None
        tasks = [t for dataset in config.env.eval for t in eval_tasks(config, dataset, config.eval.final_size)]
        if not tasks:
            raise ValueError(f"env.eval: the data sets {config.env.eval} of {config.env.path} have no tasks")
        tasks = [task for task in tasks for _ in range(config.eval.samples)]
        score = _of_endpoint if config.eval.endpoint else _of_model
        outcomes = score(config, tasks, signals)
        found = report.make(config, outcomes, began)
        if other:
            report.compare(found, other, config.eval.against)
        report.write(found, path)
    except (StartError, ServerError, GatewayError, EndpointError, WaitTimeout, ValueError, FileNotFoundError) as error:
        return fail(error, 1)
    except Stopped:
        to_stderr("stopped: nothing is left behind, and no scores are written")
        return STOPPED
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report.table(found))
    console.print(f"scores and outcomes: {path}", highlight=False, soft_wrap=True)
    return 0


def _of_model(config: Config, tasks: list[Task], signals: StopSignals) -> list[Outcome]:
    """By a server on ``model.path`` (or those of ``server.urls``) and actors of our own; nothing of them is left."""
    with tempfile.TemporaryDirectory(prefix="rollway-eval-") as scratch:
        folder = Path(scratch)
        model = config.model.model_copy(update={"path": model_folder(config.model.path, folder)})
        config = config.model_copy(update={"model": model})
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        cluster = Cluster(config, folder / "logs")
        gateway = None
        try:
            signals.check()
            ledger = Ledger(folder / "ledger.sqlite", [], config.run.seed)
            gateway = Gateway(config, ledger, "eval", welcome_config(config, config.eval.temperature))
            gateway.start()
            cluster.start_servers()
            cluster.start_actors()
            gateway.set_servers(_await_servers(cluster, signals))
            played = _play(gateway, cluster, tasks, signals)
        finally:
            if gateway:
                gateway.stop("evaluation over")
            cluster.stop(hurry=lambda: signals.count >= 2)
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


def _await_servers(cluster: Cluster, signals: StopSignals) -> list[str]:
    began = time.monotonic()
    with waiting() as show:

        def say(text: str) -> None:
            signals.check()
            show(text)

        urls = cluster.wait_for_servers(say)
    to_stderr(f"server ready after {time.monotonic() - began:.1f} s")
    return urls


def _play(gateway: Gateway, cluster: Cluster, tasks: list[Task], signals: StopSignals) -> list[Trajectory]:
    """One episode of each task, in their order. Raises ``Stopped``."""
    with ThreadPoolExecutor(1) as pool, progress("episodes", len(tasks)) as advance:
        episodes, seen = pool.submit(gateway.evaluate, tasks, 0, TIMEOUT_S), 0
        try:
            while not episodes.done():
                signals.check()
                for event in cluster.revive():
                    to_stderr(event)
                done, _ = gateway.snapshot()["run"].get("evaluation", (seen, 0))
                advance(done - seen)
                seen = done
                time.sleep(LOOK_S)
        finally:
            gateway.interrupt()
        advance(len(tasks) - seen)
        return episodes.result()


def _of_endpoint(config: Config, tasks: list[Task], signals: StopSignals) -> list[Outcome]:
    env = load_env(config.env.path, config.env.args)
    with progress(config.eval.endpoint_model, len(tasks)) as advance:
        return asyncio.run(_until_stopped(score_endpoint(config, env, tasks, advance), signals))


async def _until_stopped(work: Coroutine[Any, Any, list[Outcome]], signals: StopSignals) -> list[Outcome]:
    """Its result. Raises ``Stopped``, after everything that it holds is closed."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait({task}, timeout=LOOK_S)
        if signals.count and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_S)
            raise Stopped
    return task.result()
