"""``--role learner``: rank 0 runs gateway and training loop, further ranks follow its commands."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time

from configs.schema import Config
from learner.algorithm.custom import load_estimator
from learner.evaluate import train_tasks, welcome_config
from learner.gateway.ledger import Ledger, LedgerError
from learner.gateway.router import Gateway, StartError, WaitTimeout
from learner.run.folder import RunFolder, RunFolderError
from learner.run.logs import setup_logging
from learner.run.prometheus import serve_metrics
from learner.run.snapshots import FILE, Recorder
from learner.servers.monitor import ServerMonitor
from learner.servers.probe import wait_for_most
from learner.servers.serving import ServerError, server_urls

log = logging.getLogger("rollway.learner")

#: Exit code for what a restart would not mend.
FATAL = 3


def main(config: Config) -> int:
    setup_logging()
    if int(os.environ.get("RANK", 0)) > 0:
        from learner.policy.critic import Critic
        from learner.policy.engine import PolicyEngine

        engine = PolicyEngine(config)
        engine.follow(critic=Critic.beside(engine))
        return 0
    try:
        folder = RunFolder.open(config)
        for note in folder.notes:
            log.info("%s", note)
        return _lead(config, folder)
    except (RunFolderError, StartError, ServerError, LedgerError, ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FATAL
    except WaitTimeout as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


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
        from learner.policy.critic import Critic
        from learner.policy.engine import PolicyEngine
        from learner.trainer import Trainer
        from learner.weights.push import WeightPusher

        engine = PolicyEngine(config)
        critic = Critic.beside(engine)
        gateway.set_vocabulary(engine.vocabulary)
        urls = server_urls(config)
        wait_for_most(
            urls,
            config.server.start_timeout_s,
            config.server.silent_s,
            lambda text: gateway.publish("run", {"message": text}),
        )
        gateway.publish("run", {"message": ""})
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

    def handle(signum, frame):
        if trainer.stop_requested:
            os._exit(130)
        trainer.request_stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
