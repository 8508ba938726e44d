"""The live page: an alternate screen that is always given back, a few keys, two pictures a second."""

from __future__ import annotations

import atexit
import os
import select
import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live

from .page import Page
from .plain import plain_lines

try:
    import termios
except ImportError:  # no POSIX terminal: the page works, the keys do not
    termios = None  # type: ignore[assignment]

#: Seconds between two pictures; the share of one core that drawing may take; the longest pause for its sake.
REFRESH_S, MAX_LOAD, SLOWEST_S = 0.5, 0.025, 3.0


class View(Protocol):
    """What a supervisor shows a run in."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, snapshot: dict[str, Any], note: str = "") -> None:
        """Show this snapshot. ``note`` is a warning for the last line."""

    def wait(self, timeout_s: float) -> bool:
        """Spend ``timeout_s`` seconds on keys; False once the person asked to leave."""


def open_view(console: Console | None = None, leave: str = "leave") -> View:
    """The live page on a terminal, log lines anywhere else. ``leave``: what the key q means to the caller."""
    console = console or Console()
    return LiveView(console, leave) if console.is_terminal and not console.is_dumb_terminal else PlainView(console)


class LiveView:
    """The page in the alternate screen. Whatever ends the ``with`` block, the terminal is as before.

    Keys (where stdin is a terminal): q leaves, p holds the picture, ? help. Ctrl-C stays
    a KeyboardInterrupt; Ctrl-Z and Ctrl-S are off: they would freeze a run behind a dead picture.
    A process that may be ended by SIGTERM must turn it into an exception (``run_dashboard`` does).
    """

    def __init__(self, console: Console | None = None, leave: str = "leave"):
        self._console = console or Console()
        self._leave_means = leave
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._keys = _Keys()
        self._snapshot: dict[str, Any] | None = None
        self._note = ""
        self._paused = self._help = self._leave = False
        self._due = 0.0
        self._size = self._console.size

    def __enter__(self) -> Self:
        # For an exit that skips the ``with`` block (sys.exit in a thread, a hard interpreter end).
        atexit.register(self._restore)
        try:
            self._keys.open()
            self._live.start()
        except BaseException:
            self._restore()
            raise
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        atexit.unregister(self._restore)

    def update(self, snapshot: dict[str, Any], note: str = "") -> None:
        if not self._paused:
            urgent = self._snapshot is None or note != self._note or self._console.size != self._size
            self._snapshot, self._note = snapshot, note
            if urgent or time.monotonic() >= self._due:
                self._draw()

    def wait(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not self._leave and (left := end - time.monotonic()) > 0:
            keys = self._keys.read(left)
            for key in keys:
                self._leave |= key in "qQ"
                self._paused ^= key in "pP"
                self._help = key in "?h" and not self._help  # any key closes it
            if keys:
                self._draw()
        return not self._leave

    def _draw(self) -> None:
        note = "paused: p goes on" if self._paused else self._note
        start, self._size = time.thread_time(), self._console.size
        self._live.update(Page(self._snapshot, note, self._help, self._leave_means), refresh=True)
        # A page that is dear to draw (thousands of steps, a busy machine) is drawn less often.
        pause = (time.thread_time() - start) / MAX_LOAD
        self._due = time.monotonic() + min(max(pause, REFRESH_S * 0.9), SLOWEST_S)

    def _restore(self) -> None:
        try:
            self._live.stop()
        finally:
            self._keys.close()


class PlainView:
    """Log lines for files, pipes and CI."""

    def __init__(self, console: Console):
        self._console = console
        self._before: dict[str, Any] | None = None
        self._note = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, snapshot: dict[str, Any], note: str = "") -> None:
        lines = plain_lines(self._before, snapshot)
        if note and note != self._note:
            lines.append(note)
        self._before, self._note = snapshot, note
        for line in lines:
            self._console.out(line, highlight=False)

    def wait(self, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return True


class _Keys:
    """Single key presses from the terminal; silent where stdin is none."""

    def __init__(self) -> None:
        self._saved: list[Any] | None = None

    def open(self) -> None:
        if termios is None or not sys.stdin or not sys.stdin.isatty():
            return
        self._saved = termios.tcgetattr(sys.stdin)
        quiet = termios.tcgetattr(sys.stdin)
        quiet[3] &= ~(termios.ICANON | termios.ECHO)
        quiet[0] &= ~termios.IXON
        quiet[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)

    def close(self) -> None:
        if self._saved is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)
            self._saved = None

    def read(self, timeout_s: float) -> str:
        """The keys pressed, "" after ``timeout_s`` seconds. Arrows and the like (escape sequences) are none."""
        if self._saved is None:
            time.sleep(timeout_s)
            return ""
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return ""
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys:  # end of input: no more will come
            self.close()
        return "" if keys.startswith(b"\x1b") else keys.decode("ascii", "ignore")
