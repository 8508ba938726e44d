"""``--role local``: server(s), learner and actors on this machine, watched in the foreground."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from configs.schema import Config
from learner.dashboard import DashboardClient, LearnerRefused, LearnerSilent, learner_of, open_view
from learner.evaluate import check_environments
from learner.run.folder import RunFolder, RunFolderError
from learner.run.summary import summary_table
from learner.servers.processes import Child, terminate
from learner.servers.serving import (
    ServerError,
    check_address,
    check_model,
    check_port,
    server_command,
    server_urls,
    wait_healthy,
)
from protocol.keys import KeysError

#: How often a dead server or actor is started again before the run is given up.
MAX_RESTARTS = 5
POLL_S = 0.5
#: An actor that left in good order is missed only after this long: the learner may be about to leave as well.
SETTLE_S = 20.0
#: Learner's time to finish its step, save and export after the first Ctrl-C.
GRACE_S = 12.0


class StartError(Exception):
    """Something needed cannot be started; the message says what and what to do."""


class Cluster:
    """The processes of one machine. ``stop`` ends them all, children of children included."""

    def __init__(self, config: Config, logs: Path):
        self.config = config
        self.logs = logs
        self.children: dict[str, Child] = {}

    def start_servers(self) -> None:
        if self.config.server.urls:
            return
        for index in range(self.config.server.count):
            try:
                check_address(self.config)
                check_model(self.config)
                check_port(self.config.server.host, self.config.server.port + index)
            except ServerError as error:
                raise StartError(str(error)) from None
            argv, env = server_command(self.config, index)
            self._start(f"server-{index}", argv, env)

    def start_actors(self) -> None:
        for index in range(self.config.actor.count):
            self._start(f"actor-{index}", self._role("actor"), {"ROLLWAY_ACTOR_ID": f"actor-{index}"})

    def start_learner(self) -> None:
        ranks = self.config.learner.ranks
        argv = self._role("learner")
        if ranks > 1:
            devices = self.config.learner.devices
            where = (
                ["--include", f"localhost:{','.join(map(str, devices))}"]
                if devices
                else ["--num_accelerators", str(ranks)]
            )
            argv = [sys.executable, "-m", "deepspeed.launcher.runner", *where, *argv[1:]]
        check_port(self.config.gateway.host, self.config.gateway.port)
        self._start("learner", argv, {})

    def wait_for_servers(self, say: Callable[[str], None]) -> list[str]:
        """Base URLs once all are healthy. A server that exits meanwhile is reported at once."""
        urls = server_urls(self.config)
        for index, url in enumerate(urls):
            child = self.children.get(f"server-{index}")
            alive = (lambda child=child: child.exit_code is None) if child else None
            try:
                wait_healthy(url, self.config.server.start_timeout_s, alive, say)
            except ServerError as error:
                words = f"; its last words: {child.last_words()}" if child else ""
                raise StartError(f"{error}{words}") from None
        return urls

    def revive(self) -> list[str]:
        """Start dead servers, actors and learner again; returns what happened, in words. Raises StartError at the limit."""
        events = []
        for child in self.children.values():
            code = child.exit_code
            # Exit code 0 was told to leave: at the end of the run, or by a learner that then died.
            if code is None or (code == 0 and (child.name == "learner" or child.dead_for_s < SETTLE_S)):
                continue
            if child.restarts >= MAX_RESTARTS or code in (2, 3):
                raise StartError(f"{child.name}: {child.last_words()} (exit code {code}, log {child.log_path})")
            child.restarts += 1
            child.start()
            events.append(
                f"{child.name} had died (exit code {code}); started again, {child.restarts} of {MAX_RESTARTS}"
            )
        return events

    def stop(self, grace_s: float = 5.0) -> None:
        """Learner and actors first, so that nobody talks to a server that is gone."""
        order = sorted(self.children.values(), key=lambda c: c.name.startswith("server"))
        terminate([c for c in order if not c.name.startswith("server")], grace_s)
        terminate([c for c in order if c.name.startswith("server")], grace_s)

    def _role(self, role: str) -> list[str]:
        """This program again, in another role, with the resolved configuration."""
        run = Path(__file__).parents[1] / "run.py"
        return [sys.executable, str(run), "--role", role, "--config", str(self.logs.parent / "config.yaml")]

    def _start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        child = Child(name, argv, env, self.logs / f"{name}.log")
        self.children[name] = child
        child.start()


def main(config: Config) -> int:
    """Exit codes: 0 the run is complete, 130 stopped by a person, 1 something could not be had."""
    console = Console()
    signals = _Signals()
    try:
        check_environments(config)
        folder = RunFolder.open(config, move_aside=True)
    except (RunFolderError, ValueError) as error:
        return _fail(str(error))
    cluster = Cluster(config, folder.logs)
    code = 1
    try:
        _announce(console, config, folder)
        cluster.start_servers()
        cluster.start_learner()
        cluster.start_actors()
        code = _watch(config, cluster, console, signals)
    except (StartError, ServerError, KeysError) as error:
        return _fail(str(error))
    finally:
        cluster.stop()
        folder.close()
    if summary := folder.summary():
        console.print(summary_table(summary))
        console.print(f"trajectories, metrics, checkpoints and weights: {folder.path}", highlight=False)
    return code


def _watch(config: Config, cluster: Cluster, console: Console, signals: _Signals) -> int:
    """Show the run until the learner is through; mend what dies; obey Ctrl-C."""
    learner = cluster.children["learner"]
    snapshot: dict = {"run": {"phase": "start", "steps": config.run.steps, "started_at": time.time()}}
    note, asked_at = "", 0.0
    with (
        DashboardClient(*learner_of(config)) as client,
        open_view(console, leave="stop the run") as view,
    ):
        while learner.exit_code != 0:
            if signals.count >= 2:
                raise StartError("stopped at once; the run goes on from its last checkpoint with run.resume=true")
            stay = view.wait(POLL_S)
            if (signals.count or not stay) and not asked_at:
                asked_at = time.monotonic()
                note = "stopping: the learner finishes its step and saves; Ctrl-C again stops at once"
                learner.process.terminate()
            if asked_at and (learner.exit_code is not None or time.monotonic() - asked_at > GRACE_S):
                break
            if not asked_at:
                events = cluster.revive()
                note = events[-1] if events else note
            snapshot, note = _look(client, snapshot, note)
            view.update(snapshot, note)
    return 130 if asked_at else 0


def _look(client: DashboardClient, snapshot: dict, note: str) -> tuple[dict, str]:
    try:
        return client.snapshot(timeout_s=1.0), note
    except (LearnerSilent, LearnerRefused):
        return snapshot, note


def _announce(console: Console, config: Config, folder: RunFolder) -> None:
    for line in folder.notes:
        console.print(line, highlight=False)
    servers = len(config.server.urls) or config.server.count
    console.print(
        f"starting {servers} vLLM server(s), the learner and {config.actor.count} actor(s); "
        f"the server needs about half a minute · run folder {folder.path} · logs {folder.logs}",
        highlight=False,
    )


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


class _Signals:
    """Counts Ctrl-C and SIGTERM, so that the order of the end is ours."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.count += 1
