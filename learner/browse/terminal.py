"""The browser on a terminal: alternate screen, single keys, resize; the terminal is given back whatever happens."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from learner.browse.browser import Browser
from learner.browse.library import Library
from learner.run.folder import RunFolderError

#: Seconds between two looks at the terminal's size; and the longest wait for the rest of an escape sequence.
_LOOK_S, _REST_S = 0.2, 0.05

_TORN = re.compile(rb"\x1b(?:[\[O][0-9;]*)?$")

#: What terminals send for the keys that are no characters.
_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "pgup", b"\x1b[6~": "pgdn", b"\x1b[H": "home", b"\x1b[F": "end",
    b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace", b"\x08": "backspace", b"\x1b": "esc",
}  # fmt: skip


def show(library: Library, query: str, console: Console) -> int:
    """Until the person leaves; the exit code. SIGTERM and SIGHUP give the terminal back too."""
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _exit)
    browser = Browser(library, query)
    try:
        with _keys(sys.stdin.fileno()) as descriptor, Live(console=console, screen=True, auto_refresh=False) as live:
            drawn = None
            while not browser.over:
                size = console.size
                if drawn != size:
                    lines = browser.picture(size.width, size.height)
                    live.update(Text("\n").join(lines), refresh=True)
                    drawn = size
                for key in read_keys(descriptor, _LOOK_S):
                    drawn = None
                    _press(browser, key)
    except KeyboardInterrupt:
        return 0
    return 0


def read_keys(descriptor: int, timeout_s: float) -> list[str]:
    """Names of the keys pressed, none after ``timeout_s`` seconds. Raises ``KeyboardInterrupt`` at the end of input."""
    if not select.select([descriptor], [], [], timeout_s)[0]:
        return []
    data = os.read(descriptor, 1024)
    if not data:
        raise KeyboardInterrupt
    # Slow links tear sequences: what may be the beginning of one waits a moment for the rest.
    while _TORN.search(data) and select.select([descriptor], [], [], _REST_S)[0]:
        data += os.read(descriptor, 1024)
    return list(_named(data))


def _named(data: bytes) -> Iterator[str]:
    at = 0
    while at < len(data):
        for size in (4, 3, 1):
            if (name := _KEYS.get(data[at : at + size])) is not None and not (
                size == 1 and data[at : at + 2] == b"\x1b["
            ):
                yield name
                at += size
                break
        else:
            if data[at : at + 1] == b"\x1b":  # a key that we do not know: up to its final byte
                at += 2
                while at < len(data) and not 0x40 <= data[at] <= 0x7E:
                    at += 1
                at += 1
                continue
            size = next((n for n in (1, 2, 3, 4) if _decodes(data[at : at + n])), 1)
            yield data[at : at + size].decode(errors="ignore")
            at += size


def _decodes(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False


def _press(browser: Browser, key: str) -> None:
    try:
        browser.key(key)
    except RunFolderError as error:  # the folder changed under us
        browser.note = str(error)


@contextmanager
def _keys(descriptor: int) -> Iterator[int]:
    """Single keys, unechoed; Ctrl-C stays an interrupt, Ctrl-Z and Ctrl-S are off."""
    saved: list[Any] = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~(termios.ICANON | termios.ECHO)
    quiet[0] &= ~termios.IXON
    quiet[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
