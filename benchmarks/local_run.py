"""A whole run on this machine, ``run.py`` as a person would start it, seen from outside."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil
import requests

from benchmarks.fuzz_gateway import free_port
from learner.dashboard import DashboardClient, LearnerRefused, LearnerSilent
from learner.servers.processes import Child, terminate

RUN = Path(__file__).parents[1] / "run.py"
#: Time that the run gets to end all that it started, seconds.
GRACE_S = 30.0
_PORT = re.compile(r"vllm\.entrypoints.* --port (\d+) ")
_STEP = re.compile(r"rollway\.learner: step (\d+):")


class LocalRun:
    """``with LocalRun(folder, overrides) as run``: a whole run on free ports of its own; nothing of it is left afterwards."""

    def __init__(self, folder: Path, overrides: list[str]):
        self.folder = folder
        self.port, self.server_port = free_port(), free_port()
        ports = [f"gateway.port={self.port}", f"server.port={self.server_port}"]
        argv = [sys.executable, str(RUN), f"run.dir={folder}", *ports, *overrides]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._child = Child("run", argv, {}, folder.with_name(f"{folder.name}.out"))
        self._client = DashboardClient(f"tcp://127.0.0.1:{self.port}")

    def __enter__(self) -> Self:
        self._child.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        terminate([self._child], GRACE_S)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code

    def last_words(self) -> str:
        return self._child.last_words()

    def await_end(self, limit_s: float) -> int | None:
        try:
            return self._child.process.wait(timeout=max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            return None

    def snapshot(self) -> dict[str, Any]:
        """The learner's state, empty while it does not answer."""
        try:
            return self._client.snapshot(timeout_s=1.0)
        except (LearnerSilent, LearnerRefused):
            return {}

    def processes(self, role: str) -> dict[str, psutil.Process]:
        """Live processes of a role by name: ``actor-0``, …, ``server-0``, ``learner``."""
        found = {}
        try:
            children = psutil.Process(self._child.process.pid).children()
        except psutil.NoSuchProcess:
            return {}
        for process in children:
            try:
                line = " ".join(process.cmdline())
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if role == "server" and (port := _PORT.search(line)):
                    found[f"server-{int(port[1]) - self.server_port}"] = process
                elif role == "learner" and "--role learner" in line:
                    found["learner"] = process
                elif role == "actor" and "--role actor" in line:
                    found[process.environ()["ROLLWAY_ACTOR_ID"]] = process
            except (psutil.NoSuchProcess, KeyError):
                continue
        return found

    def weight_version(self) -> str | None:
        """What the server says its weights are: ``default`` after a start, then the policy's versions."""
        try:
            answer = requests.get(f"http://127.0.0.1:{self.server_port}/weight_info", timeout=1.0)
            return str(answer.json()["weight_version"])
        except (requests.RequestException, ValueError, KeyError):
            return None

    def log_size(self) -> int:
        """Where the learner's log ends now; ``trained_since`` looks from there."""
        log = self.folder / "logs" / "learner.log"
        return log.stat().st_size if log.exists() else 0

    def trained_since(self, place: int) -> bool:
        """Whether the learner has logged a step behind ``place`` of its log."""
        with (self.folder / "logs" / "learner.log").open("rb") as log:
            log.seek(place)
            return _STEP.search(log.read().decode(errors="replace")) is not None

    def await_version(self, version: int, limit_s: float) -> bool:
        """True once the policy is at ``version``; False where the run ends or ``limit_s`` pass first."""
        deadline = time.monotonic() + limit_s
        while self.exit_code is None and time.monotonic() < deadline:
            if (self.snapshot().get("run") or {}).get("version", -1) >= version:
                return True
            time.sleep(0.25)
        return False
