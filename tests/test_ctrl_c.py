"""Ctrl-C in a real terminal on a real run: once saves and leaves, twice leaves at once. Nothing is left in either case."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.wire_samples import free_port

ROOT = Path(__file__).parents[1]
SMALL = [
    "run.steps=1000", "learner.groups=4", "learner.mini_batches=1", "eval.every=0", "eval.final_size=2", "baselines=[]",
    "checkpoint.every=1000",
]  # fmt: skip

pytestmark = pytest.mark.timeout(500)


class Terminal:
    """A run in a pseudo-terminal of its own, as a person has it: Ctrl-C goes to the foreground process group."""

    def __init__(self, folder: Path):
        self.folder, self.screen = folder, b""
        self.ports = free_port(), free_port()
        argv = [f"run.dir={folder}", *SMALL, f"gateway.port={self.ports[0]}", f"server.port={self.ports[1]}"]
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            os.execve(sys.executable, [sys.executable, "run.py", *argv], {**os.environ, "TERM": "xterm-256color"})
        self.process = psutil.Process(pid)
        self.before = termios.tcgetattr(self.terminal)
        self.tree: set[psutil.Process] = set()

    def until(self, condition: Callable[[], bool], limit_s: float) -> float:
        """Read the screen until the condition holds; seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < limit_s, self.screen[-3000:].decode(errors="replace")
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self.terminal, 1 << 16)
                except OSError:  # the run has closed it
                    time.sleep(0.1)
        return time.monotonic() - began

    def await_steps(self, count: int) -> None:
        log = self.folder / "logs" / "learner.log"
        self.until(lambda: log.exists() and log.read_text().count("rollway.learner: step ") >= count, 300)
        self.tree = set(self.process.children(recursive=True))
        assert len(self.tree) >= 4  # server, its engine, learner, actors

    def press_ctrl_c(self) -> None:
        os.write(self.terminal, b"\x03")

    def is_over(self) -> bool:
        return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE

    def close(self) -> int:
        """The exit code."""
        left = [process for process in {self.process, *self.tree} if process.is_running()]
        for process in left:
            if process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
        _, status = os.waitpid(self.process.pid, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path / "run")
    yield terminal
    if terminal.process.is_running():
        terminal.close()


def alive(processes: set[psutil.Process]) -> list[str]:
    found = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:100])
        except psutil.NoSuchProcess:
            continue
    return found


def ends_well(terminal: Terminal) -> None:
    assert alive(terminal.tree) == []
    after = termios.tcgetattr(terminal.terminal)
    assert after == terminal.before
    screen = terminal.screen
    assert screen.rfind(b"\x1b[?1049l") > screen.rfind(b"\x1b[?1049h") >= 0  # back from the alternate screen
    assert screen.rfind(b"\x1b[?25h") > screen.rfind(b"\x1b[?25l")  # with a cursor


def test_once_everything_is_saved_and_down_in_15_seconds(terminal):
    terminal.await_steps(2)
    terminal.press_ctrl_c()
    took = terminal.until(terminal.is_over, 15)
    print(f"\nCtrl-C once: down after {took:.1f} s")
    ends_well(terminal)
    assert terminal.close() == 130
    folder, screen = terminal.folder, terminal.screen.decode(errors="replace")
    steps = json.loads((folder / "summary.json").read_text())["steps"]
    assert (folder / "checkpoints" / "latest").read_text().strip() == f"checkpoint-{steps}" and steps >= 2
    assert (folder / "export" / "model.safetensors").is_file()
    assert "run.resume=true" in screen and "Traceback" not in screen


def test_twice_it_is_down_at_once(terminal):
    terminal.await_steps(1)
    learner = next(p for p in terminal.tree if "--role learner" in " ".join(p.cmdline()))
    learner.suspend()  # one that cannot finish: only the second Ctrl-C ends this before the patience does
    terminal.press_ctrl_c()
    time.sleep(1.0)
    terminal.press_ctrl_c()
    took = terminal.until(terminal.is_over, 5)
    print(f"\nCtrl-C twice: down {took:.1f} s after the second")
    ends_well(terminal)
    assert terminal.close() == 130
