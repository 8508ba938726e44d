"""``--role local``: server(s), learner and actors on this machine, watched in the foreground."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from rich.console import Console

from configs.logs import setup_logging
from configs.schema import Config
from learner.dashboard import DashboardClient, LearnerRefused, LearnerSilent, learner_of, open_view
from learner.evaluate import check_environments
from learner.run.announce import announcement
from learner.run.folder import RunFolder, RunFolderError
from learner.run.summary import summary_table
from learner.servers.cluster import Cluster, StartError
from learner.servers.serving import ServerError
from learner.stopping import STOPPED, StopSignals
from protocol.keys import KeysError

__all__ = ["Cluster", "StartError", "main"]

log = logging.getLogger("rollway.local")

POLL_S = 0.5
#: How long a learner that was asked to stop may be silent; one that answers is finishing its step or saving.
SILENT_S = 5.0
#: The longest time for that, seconds. The tiny policy takes two; an optimizer state of 100 GB takes minutes.
SAVE_S = 900.0
#: Silence of a learner that should be there before a person is told, seconds.
TELL_S = 10.0


def main(config: Config) -> int:
    """Exit codes: 0 the run is complete, 130 stopped by a person, 1 something could not be had."""
    if config.learner.hostfile:
        return _fail("learner.hostfile is for --role learner: local is one machine (docs/scale-out.md)")
    console = Console()
    signals = StopSignals()
    try:
        check_environments(config)
        folder = RunFolder.open(config, move_aside=True)
    except (RunFolderError, ValueError) as error:
        return _fail(str(error))
    # The screen is the dashboard's: what happened in the night is in a file.
    setup_logging(config.log, logging.FileHandler(folder.log_path("local"), encoding="utf-8"))
    cluster = Cluster(config, folder.logs)
    code = 1
    try:
        for line in (*folder.notes, *announcement(config, folder, local=True)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
            log.info("%s", line)
        cluster.start_servers()
        cluster.start_learner()
        cluster.start_actors()
        code = _watch(config, cluster, console, signals)
    except (StartError, ServerError, KeysError) as error:
        log.error("%s", error)
        return _fail(str(error))
    finally:
        cluster.stop(hurry=lambda: signals.count >= 2)
        folder.close()
    if summary := folder.summary():
        console.print(summary_table(summary))
        console.print(f"trajectories, metrics, checkpoints and weights: {folder.path}", highlight=False, soft_wrap=True)
    if code == STOPPED:
        words = f"stopped; to go on from the last checkpoint: run.dir={folder.path} run.resume=true"
        console.print(words, highlight=False, soft_wrap=True)
    return code


def _watch(config: Config, cluster: Cluster, console: Console, signals: StopSignals) -> int:
    """Show the run until the learner is through; mend what dies; obey Ctrl-C."""
    learner = cluster.children["learner"]
    snapshot: dict = {"run": {"phase": "start", "steps": config.run.steps, "started_at": time.time()}}
    note, asked_at, heard_at = "", 0.0, time.monotonic()
    with (
        DashboardClient(*learner_of(config)) as client,
        open_view(console, leave="stop the run") as view,
    ):
        while learner.exit_code != 0:
            if signals.count >= 2:
                return STOPPED
            stay = view.wait(POLL_S)
            now = time.monotonic()
            if (signals.count or not stay) and not asked_at:
                asked_at = heard_at = now
                note = "stopping: the learner finishes its step and saves; Ctrl-C again stops at once"
                log.info("asked to stop")
                cluster.ask_learner_to_stop()
            if asked_at and (learner.exit_code is not None or now - heard_at > SILENT_S or now - asked_at > SAVE_S):
                break
            if not asked_at:
                events = cluster.revive()
                for event in events:
                    log.warning("%s", event)
                note = events[-1] if events else note
            silence = ""
            try:
                snapshot = client.snapshot(timeout_s=1.0)
                cluster.saw(snapshot)
                heard_at = time.monotonic()
            except (LearnerSilent, LearnerRefused):
                silent = time.monotonic() - max(heard_at, learner.started_at)
                if silent > TELL_S and not asked_at:
                    silence = f"the learner has not answered for {silent:.0f} s: see {learner.log_path}"
            view.update(_with_server_log(snapshot, cluster), silence or note)
    return STOPPED if asked_at else 0


def _with_server_log(snapshot: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """While the run starts, what the server that is waited for does: its log is on this machine."""
    run = snapshot["run"]
    return snapshot | {"run": run | {"server_says": cluster.newest_line()}} if run.get("phase") == "start" else snapshot


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1
