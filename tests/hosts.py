"""Hosts for tests: network namespaces on one switch, each with a loopback and an address of its own. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SUBNET = "10.77.0"


class NotPermitted(Exception):
    """Namespaces cannot be had here; the text says why."""


class Hosts:
    """``with Hosts(names) as hosts``: files and processes are shared, as on a cluster; networks are not."""

    def __init__(self, names: Iterable[str]):
        self.address = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 1)}
        self._prefix = f"rollway-{os.getpid()}"  # of the namespaces, so that two runs of the tests do not meet
        self._made: list[str] = []
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> Hosts:
        if not shutil.which("ip"):
            raise NotPermitted("there is no `ip` (package iproute2)")
        try:
            switch = self._add("switch")
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for number, (name, address) in enumerate(self.address.items(), 1):
                host = self._add(name)
                port = f"port{number}"
                _ip("-n", host, "link", "set", "lo", "up")
                _ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
                _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", host, "link", "set", "eth0", "up")
                _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        except NotPermitted:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:  # also what a launcher that was killed has left
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=10)
            for pid in map(int, found.stdout.split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.kill()
            process.wait(10)
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)

    def on(self, host: str, argv: Sequence[Any]) -> list[str]:
        """The command line that runs ``argv`` there; the process stays the same one."""
        return ["ip", "netns", "exec", f"{self._prefix}-{host}", *map(str, argv)]

    def start(self, host: str, argv: Sequence[Any], log: Path, env: dict[str, str] | None = None) -> subprocess.Popen:
        """Start ``argv`` there with its output in ``log``; it is killed in the end."""
        with log.open("ab") as sink:
            command = self.on(host, argv)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )
        self._started.append(process)
        return process

    def run(self, host: str, argv: Sequence[Any], timeout_s: float) -> subprocess.CompletedProcess:
        return subprocess.run(self.on(host, argv), capture_output=True, text=True, timeout=timeout_s)

    def _add(self, name: str) -> str:
        name = f"{self._prefix}-{name}"
        _ip("netns", "add", name)
        self._made.append(name)
        return name


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise NotPermitted(f"ip {' '.join(words)}: {done.stderr.strip()}")
