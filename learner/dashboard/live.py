"""Where a run is shown: the live page on a terminal, log lines anywhere else."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console

from tools.progress import Pace

from .app import App
from .plain import plain_lines, progress_line
from .screen import Screen

try:
    from .keys import read_keys, single_keys
except ImportError:  # no POSIX terminal: the page works, the keys do not
    single_keys = None  # type: ignore[assignment]

#: Seconds between two pictures; the share of one core that drawing may take; the longest pause for its sake.
REFRESH_S, MAX_LOAD, SLOWEST_S = 0.5, 0.025, 3.0

#: In a note that only counts on, which is no news.
_DURATION = re.compile(r"\d+ s\b")

#: Seconds between two looks at the window's size.
_LOOK_S = 0.1


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


def open_view(console: Console | None = None, leave: str = "leave", app: App | None = None) -> View:
    """The live page on a terminal, log lines anywhere else. ``leave``: what the key q means to the caller."""
    console = console or Console()
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveView(console, app or App(leave)) if live else PlainView(console)


class LiveView:
    """The page in the alternate screen. Whatever ends the ``with`` block, the terminal is as before.

    Ctrl-C stays a KeyboardInterrupt. A process that may be ended by SIGTERM must turn it into an
    exception (``run_dashboard`` does).
    """

    def __init__(self, console: Console, app: App):
        self._app = app
        self._screen = Screen(console)
        self._keys: int | None = None
        self._stack = ExitStack()
        self._note = ""
        self._due = 0.0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if single_keys is not None and sys.stdin and sys.stdin.isatty():
                self._keys = stack.enter_context(single_keys(sys.stdin.fileno()))
            stack.enter_context(self._screen)
            self._draw()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def update(self, snapshot: dict[str, Any], note: str = "") -> None:
        urgent, self._note = note != self._note or self._app.moved, note
        self._app.observe(snapshot, note)
        self._app.moved = False
        if urgent or time.monotonic() >= self._due:
            self._draw()

    def wait(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not self._app.over and (left := end - time.monotonic()) > 0:
            keys = self._read(min(left, _LOOK_S))
            for key in keys:
                self._app.key(key)
            if self._app.moved:  # the caller has another picture to show
                return True
            if keys or self._screen.resized:
                self._draw()
        return not self._app.over

    def _read(self, timeout_s: float) -> list[str]:
        if self._keys is not None:
            try:
                return read_keys(self._keys, timeout_s)
            except EOFError:  # the terminal has no more to say; who watches it may still look
                self._keys = None
        time.sleep(timeout_s)
        return []

    def _draw(self) -> None:
        start, size = time.thread_time(), self._screen.console.size
        self._screen.draw(self._app.lines(size.width, size.height))
        # A page that is dear to draw (a large window, a busy machine) is drawn less often.
        pause = (time.thread_time() - start) / MAX_LOAD
        self._due = time.monotonic() + min(max(pause, REFRESH_S * 0.9), SLOWEST_S)


class PlainView:
    """Log lines for files, pipes and CI."""

    def __init__(self, console: Console):
        self._console = console
        self._before: dict[str, Any] | None = None
        self._note = ""
        self._pace = Pace()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, snapshot: dict[str, Any], note: str = "") -> None:
        lines = plain_lines(self._before, snapshot)
        if note and _DURATION.sub("", note) != _DURATION.sub("", self._note):
            lines.append(note)
        if lines:
            self._pace = Pace()
        elif self._pace.due():  # what takes long says how far it is
            lines.append(progress_line(snapshot))
        self._before, self._note = snapshot, note
        for line in lines:
            self._console.out(line, highlight=False)

    def wait(self, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return True
