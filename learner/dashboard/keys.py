"""Single keys from a terminal, by name."""

from __future__ import annotations

import os
import re
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: The longest wait for the rest of an escape sequence, seconds: slow links tear them.
_REST_S = 0.05

_TORN = re.compile(rb"\x1b(?:[\[O][0-9;]*)?$")

#: What terminals send for the keys that are no characters.
_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "pgup", b"\x1b[6~": "pgdn", b"\x1b[H": "home", b"\x1b[F": "end",
    b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1bOH": "home", b"\x1bOF": "end", b"\x1b[Z": "backtab",
    b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace", b"\x08": "backspace", b"\x1b": "esc",
}  # fmt: skip


@contextmanager
def single_keys(descriptor: int) -> Iterator[int]:
    """Unechoed, each as it is pressed. Ctrl-C stays an interrupt.

    Ctrl-Z and Ctrl-S are off: they would freeze a run behind a dead picture.
    """
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


def read_keys(descriptor: int, timeout_s: float) -> list[str]:
    """Names of the keys pressed, none after ``timeout_s`` seconds. Raises ``EOFError`` at the end of input."""
    if not select.select([descriptor], [], [], timeout_s)[0]:
        return []
    data = os.read(descriptor, 1024)
    if not data:
        raise EOFError
    while _TORN.search(data) and select.select([descriptor], [], [], _REST_S)[0]:
        data += os.read(descriptor, 1024)
    return list(named(data))


def named(data: bytes) -> Iterator[str]:
    """Bytes from a terminal as names: ``up``, ``pgdn``, ``esc``, …, or the character; unknown sequences are skipped."""
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
