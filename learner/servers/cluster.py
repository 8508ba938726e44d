"""The processes of one machine: servers, learner and actors, started, mended and ended as one."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from configs.schema import Config
from learner.launch import leader
from learner.servers.causes import newest
from learner.servers.probe import wait_healthy
from learner.servers.processes import Child, terminate
from learner.servers.serving import ServerError, check_address, check_model, check_port, server_command, server_urls

#: Starts in a row of one process that came to nothing, after which the run is given up.
MOST_IN_VAIN = 5
#: Exit codes of our own roles for what a restart would not mend.
HOPELESS = (2, 3)
#: An actor that left in good order is missed only after this long: the learner may be about to leave as well.
SETTLE_S = 20.0
#: Rows about servers may be this old, so that they may be about a former process.
STALE_S = 10.0
#: The longest pause before another start, seconds.
LONGEST_PAUSE_S = 16.0
#: Seconds between two looks whether a server listens, and after which one that no longer does is killed: when its
#: engine dies, vLLM's API server may close its socket and wait for ever for requests that nobody answers.
LISTEN_S, DEAF_S = 2.0, 5.0
#: Lines of a log that an error shows.
LINES = 8


class StartError(Exception):
    """Something needed cannot be started; the message says what and what to do."""


class Cluster:
    """Processes by name: ``server-0``, …, ``learner``, ``actor-0``, …. ``stop`` ends them all, with their children."""

    def __init__(self, config: Config, logs: Path):
        self.config = config
        self.logs = logs
        self.children: dict[str, Child] = {}
        self._first_version: tuple[int, int] | None = None  # of the learner: its pid, the version it began with
        self._listened: dict[int, float] = {}  # pid of a server → when it was last seen to listen
        self._look_at = 0.0

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
        check_port(self.config.gateway.host, self.config.gateway.port, "gateway")
        self._start("learner", self._role("learner"), {})

    def ask_learner_to_stop(self) -> None:
        """To finish its step, save and leave; nothing where it has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            leader(self.children["learner"].process.pid).terminate()

    def wait_for_servers(self, say: Callable[[str], None]) -> list[str]:
        """Base URLs once all are healthy. A server that exits meanwhile is reported at once.

        say: called four times a second with what is waited for and the newest line of its log;
        what it raises ends the wait.
        """

        def with_log(text: str) -> None:
            line = self.newest_line()
            say(f"{text} · its log: {line}" if line else text)

        urls = server_urls(self.config)
        for index, url in enumerate(urls):
            child = self.children.get(f"server-{index}")
            alive = (lambda child=child: child.exit_code is None) if child else None
            try:
                wait_healthy(url, self.config.server.start_timeout_s, alive, with_log)
            except ServerError as error:
                words = f": {child.last_words()} (log {child.log_path})" if child else ""
                raise StartError(f"{error}{words}") from None
        return urls

    def newest_line(self) -> str:
        """What the first server that does not listen yet logged last; empty where all do, or none is ours."""
        for index in range(self.config.server.count):
            server = self.children.get(f"server-{index}")
            if server and not _listens(self.config.server.host, self.config.server.port + index):
                return newest(server.last_lines())
        return ""

    def saw(self, snapshot: dict[str, Any]) -> None:
        """Note in the learner's newest snapshot which processes have been of use, and end a server that hangs for good.

        An actor is of use once it holds a lease, a server once it has the current weights,
        the learner once it has trained a step.
        """
        for row in snapshot.get("actors") or ():
            actor = self.children.get(row["id"])
            if actor and actor.process.pid == row["pid"] and row["held"]:
                actor.useful = True
        rows = {row["url"]: row for row in snapshot.get("servers") or ()}
        for index, url in enumerate(server_urls(self.config)):
            server, row = self.children.get(f"server-{index}"), rows.get(url)
            if server and row and server.age_s > STALE_S:
                server.useful |= row["state"] == "current"
                if min(row["silent_s"], server.age_s) > self.config.server.start_timeout_s:
                    server.process.kill()  # it hangs for good; ``revive`` does the rest
        learner, version = self.children.get("learner"), (snapshot.get("run") or {}).get("version")
        if learner and version is not None:
            pid = learner.process.pid
            if self._first_version is None or self._first_version[0] != pid:
                self._first_version = pid, version
            learner.useful |= version > self._first_version[1]

    def revive(self) -> list[str]:
        """Start again what died; returns what happened, in words.

        Once a process died ``MOST_IN_VAIN`` times in a row before it was of use, after ever longer
        pauses, or ended for a reason that a restart would not mend, raises StartError.
        """
        events = []
        self._end_deaf_servers()
        for child in self.children.values():
            code = child.exit_code
            # Exit code 0 was told to leave: at the end of the run, or by a learner that then died.
            if code is None or (code == 0 and (child.name == "learner" or child.dead_for_s < SETTLE_S)):
                continue
            if code in HOPELESS:
                raise StartError(f"{child.name}: {child.last_words()} (exit code {code}, log {child.log_path})")
            if child.in_vain > MOST_IN_VAIN:
                raise StartError(_obituary(child))
            if child.dead_for_s < _pause_s(child):
                continue
            how = child.how_it_ended()
            child.start()
            vain = f", after {child.in_vain} starts in vain of at most {MOST_IN_VAIN}" if child.in_vain > 1 else ""
            events.append(f"{child.name} had died ({how}); started again{vain}")
        return events

    def _end_deaf_servers(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LISTEN_S
        for index in range(self.config.server.count):
            server = self.children.get(f"server-{index}")
            if server is None or server.exit_code is not None:
                continue
            pid = server.process.pid
            if _listens(self.config.server.host, self.config.server.port + index):
                self._listened[pid] = now
            elif now - self._listened.get(pid, now) > DEAF_S:  # one that never listened is still loading
                server.process.kill()

    def stop(self, grace_s: float = 5.0, hurry: Callable[[], bool] = lambda: False) -> None:
        """Learner and actors first, so that nobody talks to a server that is gone. In a ``hurry`` all are killed."""
        order = sorted(self.children.values(), key=lambda c: c.name.startswith("server"))
        terminate([c for c in order if not c.name.startswith("server")], grace_s, hurry)
        terminate([c for c in order if c.name.startswith("server")], grace_s, hurry)

    def _role(self, role: str) -> list[str]:
        """This program again, in another role, with the resolved configuration."""
        run = Path(__file__).parents[2] / "run.py"
        return [sys.executable, str(run), "--role", role, "--config", str(self.logs.parent / "config.yaml")]

    def _start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        child = Child(name, argv, env, self.logs / f"{name}.log")
        self.children[name] = child
        child.start()


def _listens(host: str, port: int) -> bool:
    """False only where the connection is refused: a process that is stopped or busy still has its socket."""
    try:
        socket.create_connection((host, port), timeout=0.5).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def _pause_s(child: Child) -> float:
    """None after a useful life or a first failure; then 2, 4, 8, 16 s: what it lacks may come back, such as memory."""
    return 0.0 if child.in_vain < 2 else min(2.0 ** (child.in_vain - 1), LONGEST_PAUSE_S)


def _obituary(child: Child) -> str:
    last = "".join(f"\n    {line}" for line in child.last_lines(LINES))
    return (
        f"{child.name} died {child.in_vain} times in a row before it was of use, the last time {child.how_it_ended()}. "
        f"The end of its log {child.log_path}:{last}\n"
        "Mend what it names, then go on from the last checkpoint with run.resume=true."
    )
