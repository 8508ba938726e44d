"""``--role learner``: rank 0 runs gateway and training loop, further ranks follow its commands."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time

from configs.logs import fail, setup_logging
from configs.schema import Config
from learner.algorithm.custom import load_estimator
from learner.evaluate import train_tasks, welcome_config
from learner.gateway.ledger import Ledger, LedgerError
from learner.gateway.router import Gateway, StartError, WaitTimeout
from learner.launch import LaunchError, RanksMissing, launcher
from learner.run.announce import announcement
from learner.run.disk import disk_trouble
from learner.run.folder import RunFolder, RunFolderError
from learner.run.prometheus import serve_metrics
from learner.run.snapshots import FILE, Recorder
from learner.servers.monitor import ServerMonitor
from learner.servers.probe import wait_for_most
from learner.servers.serving import ServerError, server_urls
from tools.progress import Pace

log = logging.getLogger("rollway.learner")

#: Exit code for what a restart would not mend.
FATAL = 3
#: One Ctrl-C may come twice within so many seconds: from the terminal, and passed on by the launcher.
ECHO_S = 1.0


def main(config: Config) -> int:
    setup_logging(config.log)
    try:
        if "RANK" not in os.environ and (argv := launcher(config, sys.argv[1:])):
            os.execv(argv[0], argv)
        if int(os.environ.get("RANK", 0)) > 0:
            return _follow(config)
        folder = RunFolder.open(config)
        for line in (*folder.notes, *announcement(config, folder)):
            log.info("%s", line)
        return _lead(config, folder)
    except (RunFolderError, StartError, ServerError, LedgerError, LaunchError, ValueError, FileNotFoundError) as error:
        return fail(error, FATAL)
    except (WaitTimeout, RanksMissing) as error:
        return fail(error, 1)
    except Exception as error:
        if trouble := disk_trouble(error, config.run.dir):
            return fail(trouble, FATAL)
        raise


def _follow(config: Config) -> int:
    from learner.policy.critic import Critic
    from learner.policy.engine import PolicyEngine

    engine = PolicyEngine(config)
    critic = Critic.beside(engine)
    # Rank 0 alone obeys signals, which a terminal, a cluster or the launcher sends to all: it needs us to save.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        engine.follow(critic=critic)
    except TimeoutError as error:  # what ended rank 0 is its own to say
        log.error("%s", error)
        return 1
    return 0


def _lead(config: Config, folder: RunFolder) -> int:
    if config.algorithm.advantage.type == "custom":
        load_estimator(config.algorithm.advantage.path)  # a wrong path shows here, not after the first batch
    # The gateway is up before torch is imported: actors and dashboards can connect meanwhile.
    ledger = Ledger(folder.path / "ledger.sqlite", train_tasks(config), config.run.seed)
    gateway = Gateway(config, ledger, folder.path.name, welcome_config(config))
    gateway.pause_training(True)
    gateway.start()
    monitor = pusher = metrics = recorder = None
    over = False
    try:
        metrics = serve_metrics(config.metrics, gateway.snapshot)
        gateway.publish("run", _headline(config, folder))
        if config.log.snapshots_s:
            recorder = Recorder(gateway.snapshot, folder.path / FILE, config.log.snapshots_s)
            recorder.start()
        log.info("loading %s", config.model.path)
        from learner.policy.critic import Critic
        from learner.policy.engine import PolicyEngine
        from learner.trainer import Trainer
        from learner.weights.push import WeightPusher

        engine = PolicyEngine(config)
        critic = Critic.beside(engine)
        gateway.set_vocabulary(engine.vocabulary)
        urls = server_urls(config)
        _await_servers(config, urls, gateway)
        pusher = WeightPusher(config, urls)
        monitor = ServerMonitor(gateway, pusher, urls, config.server.silent_s)
        monitor.start()
        trainer = Trainer(config, engine, critic, gateway, pusher, folder)
        _stop_on_signals(trainer)
        trainer.run()
        folder.write_summary(trainer.summary.as_dict(gateway.audit()))
        gateway.publish("run", {"phase": "done", "status": "done"})
        engine.close()
        over = True
        return 0
    finally:
        if metrics:
            metrics.close()
        if recorder:
            recorder.stop()
        if monitor:
            monitor.stop()
        if pusher:
            pusher.close()
        # After a crash the actors stay: a learner that is started again goes on with them.
        gateway.stop("the run is over", dismiss=over)


def _await_servers(config: Config, urls: list[str], gateway: Gateway) -> None:
    pace, began = Pace(), time.monotonic()

    def say(text: str) -> None:
        gateway.publish("run", {"message": text})
        if pace.due():
            log.info("%s", text)

    ready = wait_for_most(urls, config.server.start_timeout_s, config.server.silent_s, say)
    log.info("%d of %d servers answer, after %.1f s", len(ready), len(urls), time.monotonic() - began)
    gateway.publish("run", {"message": ""})


def _headline(config: Config, folder: RunFolder) -> dict:
    return {
        "id": folder.path.name,
        "dir": str(folder.path),
        "started_at": time.time(),
        "steps": config.run.steps,
        "phase": "start",
        "model": config.model.path,
        "staleness_bound": config.staleness,
        "message": "loading the learner's model",
    }


def _stop_on_signals(trainer) -> None:
    """Once: finish the step, save, leave. Twice: leave now."""
    asked_at = math.inf

    def handle(signum, frame):
        nonlocal asked_at
        if not trainer.stop_requested:
            asked_at = time.monotonic()
            trainer.request_stop()
        elif time.monotonic() - asked_at > ECHO_S:
            os._exit(130)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
