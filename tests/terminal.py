"""A program on a pseudo-terminal, with an emulator that shows what a person would see."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[1]


class Terminal:
    """arguments: of this Python. The program's window has ``width`` × ``height`` cells."""

    def __init__(self, *arguments, width=80, height=24, **env):
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.master, self.slave = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(self.slave)
        # The shell's own settings of these must not decide.
        clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, cwd=ROOT, start_new_session=True,
            env={**clean, "TERM": "xterm-256color", **env},
        )  # fmt: skip

    def resize(self, width, height):
        ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.screen.resize(height, width)

    def send(self, keys):
        os.write(self.master, keys)

    @property
    def text(self):
        return "\n".join(self.screen.display)

    def wait_for(self, words, timeout_s=60.0, line=None):
        """Until ``words`` are on the screen, or in one of its lines."""
        deadline = time.monotonic() + timeout_s
        while words not in (self.text if line is None else self.screen.display[line]):
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} did not appear:\n{self.text}"
            self._read(min(left, 0.2))

    def end(self):
        """The exit code; what the program said last is on the screen."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        code = self.process.wait(timeout=1)
        self._read(0.1)
        return code

    def given_back(self):
        """Whether the screen, the cursor and the keyboard are as they were."""
        screen = self.raw.rindex(b"\x1b[?1049l") > self.raw.rindex(b"\x1b[?1049h")
        cursor = self.raw.rindex(b"\x1b[?25h") > self.raw.rindex(b"\x1b[?25l")
        return screen and cursor and termios.tcgetattr(self.slave) == self.before

    def _read(self, timeout_s):
        while select.select([self.master], [], [], timeout_s)[0]:
            data = os.read(self.master, 65536)
            self.raw += data
            self._stream.feed(data)
            timeout_s = 0

    def close(self):
        self.process.kill()
        self.process.wait(timeout=10)
        os.close(self.slave)
        os.close(self.master)
