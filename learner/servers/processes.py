"""Child processes that leave nothing behind: logs, restarts with a limit, and a clean end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from configs.logs import failure
from learner.servers.causes import cause

_PR_SET_PDEATHSIG = 1
#: Seconds between two looks at whether processes have ended, and the longest wait for one that was killed.
_LOOK_S, _KILLED_S = 0.05, 5.0


def _die_with_parent() -> None:
    """In the child, before exec: the kernel ends it when its parent dies, however that happens (Linux only)."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Child:
    """One named process. ``useful`` is for its owner to set, once this process has done what it is there for.

    in_vain: starts in a row that ended before it was useful.
    """

    name: str
    argv: list[str]
    env: dict[str, str]
    log_path: Path
    process: subprocess.Popen | None = None
    useful: bool = False
    in_vain: int = 0
    started_at: float = 0.0
    _died_at: float | None = None
    _ended_at: float = 0.0
    _log_start: int = 0

    def start(self) -> None:
        """In a session of its own: the terminal's Ctrl-C reaches only the parent, which decides the order.

        What a former process left behind in its session, such as an engine that was stopped, is killed first.
        """
        self.sweep()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.argv,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.useful = False
        self.started_at, self._died_at = time.monotonic(), None

    def sweep(self) -> None:
        """Kill what is left of its session after its end."""
        if self.exit_code is None:
            return
        for process in psutil.process_iter(["pid", "create_time"]):
            # Older than the end that was noticed: the number may be another session's by now.
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.process.pid and process.info["create_time"] < self._ended_at:
                    process.kill()

    @property
    def exit_code(self) -> int | None:
        """None while it runs (or was never started)."""
        code = self.process.poll() if self.process else None
        if code is not None and self._died_at is None:
            self._died_at, self._ended_at = time.monotonic(), time.time()
            self.in_vain = 0 if self.useful else self.in_vain + 1
        return code

    @property
    def age_s(self) -> float:
        """Seconds since its last start."""
        return time.monotonic() - self.started_at

    @property
    def dead_for_s(self) -> float:
        """Seconds since its end was noticed, 0 while it runs."""
        return time.monotonic() - self._died_at if self._died_at else 0.0

    def how_it_ended(self) -> str:
        """Its exit code, in words where a signal ended it."""
        code = self.exit_code
        if code is not None and code < 0:
            memory = ", as the system does for want of memory" if code == -signal.SIGKILL else ""
            return f"ended by {signal.Signals(-code).name}{memory}"
        return f"exit code {code}"

    def last_words(self) -> str:
        """Why it ended, for an error message: its own error line, else what its log names as the cause."""
        lines = self.last_lines()
        errors = [message for line in lines if (message := failure(line))]
        return errors[-1] if errors else cause(lines)

    def last_lines(self, count: int = 200) -> list[str]:
        """The last lines that are not empty of what it wrote since its start, ``count`` at most."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - (64 << 10)))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            return [line for line in lines if line][-count:]
        return []


def terminate(children: list[Child], grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """SIGTERM to all, SIGKILL to whole trees after ``grace_s`` seconds or once in a ``hurry``. Returns when none is left."""
    trees: list[psutil.Process] = []
    for child in children:
        if child.process and child.exit_code is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(child.process.pid)
                trees += [*parent.children(recursive=True), parent]
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
    _await_ends(children, trees, grace_s, hurry)
    for process in filter(_runs, trees):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _await_ends(children, trees, _KILLED_S)
    for child in children:
        if child.process:
            # A process is called a zombie already when only its main thread has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(_KILLED_S)
        child.sweep()


def _await_ends(
    children: list[Child], trees: list[psutil.Process], limit_s: float, hurry: Callable[[], bool] = lambda: False
) -> None:
    deadline = time.monotonic() + limit_s
    while any(_runs(process) for process in trees) and time.monotonic() < deadline and not hurry():
        for child in children:
            _ = child.exit_code  # reaps it; psutil would do so as well, and keep the code to itself
        time.sleep(_LOOK_S)


def _runs(process: psutil.Process) -> bool:
    """False also for a dead one that its parent has not looked at yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
