"""Child processes that leave nothing behind: logs, restarts with a limit, and a clean end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """In the child, before exec: the kernel ends it when its parent dies, however that happens (Linux only)."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Child:
    """One named process; ``restarts`` counts how often it was started again."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log_path: Path
    process: subprocess.Popen | None = None
    restarts: int = 0
    _died_at: float | None = None
    _log_start: int = 0

    def start(self) -> None:
        """In a session of its own: the terminal's Ctrl-C reaches only the parent, which decides the order."""
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
        self._died_at = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs (or was never started)."""
        code = self.process.poll() if self.process else None
        if code is not None and self._died_at is None:
            self._died_at = time.monotonic()
        return code

    @property
    def dead_for_s(self) -> float:
        """Seconds since its end was noticed, 0 while it runs."""
        return time.monotonic() - self._died_at if self._died_at else 0.0

    def last_words(self) -> str:
        """Why it ended, for an error message: its own error line, else the last line that it wrote since its start."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(self._log_start)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            return (errors or lines or [""])[-1]
        return ""


def terminate(children: list[Child], grace_s: float) -> None:
    """SIGTERM to all, SIGKILL to whole trees after ``grace_s`` seconds. Returns when none is left."""
    trees = []
    for child in children:
        if child.process and child.exit_code is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(child.process.pid)
                trees += [*parent.children(recursive=True), parent]
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
    _, alive = psutil.wait_procs(trees, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
    for child in children:
        if child.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(timeout=5)
