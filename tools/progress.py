"""How far something long is: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

#: Seconds between two lines where there is no terminal.
LINE_S = 10.0

Say = Callable[[str], None]


class Pace:
    """``due`` is true once in ``every_s`` seconds, for the first time when the first of them are over."""

    def __init__(self, every_s: float = LINE_S):
        self._every_s = every_s
        self._at = time.monotonic() + every_s

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._at:
            return False
        self._at = now + self._every_s
        return True


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int, done: int = 0, say: Say = to_stderr) -> Iterator[Callable[..., None]]:
    """Yields a function that takes how much more is done, and a ``note`` on how it goes.

    done: what an earlier try had finished. say: gets the lines: where it starts if that is not at 0, and how long it
    took; without a terminal how far it is as well.
    """
    if done:
        say(f"{title}: goes on at {done} of {total}")
    started = time.monotonic()
    with _bar(title, total, done) if sys.stderr.isatty() else _lines(title, total, done, say) as advance:
        yield advance
    say(f"{title}: {total - done} done in {time.monotonic() - started:.1f} s")


@contextmanager
def waiting(say: Say = to_stderr) -> Iterator[Say]:
    """Yields a function that is told, as often as one likes, what is waited for."""
    if not sys.stderr.isatty():
        pace = Pace()
        yield lambda text: say(text) if pace.due() else None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as spinner:
        task = spinner.add_task("")
        yield lambda text: spinner.update(task, description=text)


@contextmanager
def _bar(title: str, total: int, done: int) -> Iterator[Callable[..., None]]:
    columns = (
        TextColumn("{task.description:<16}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, completed=done, note="")
        yield lambda count=1, note="": bar.update(task, advance=count, note=note)


@contextmanager
def _lines(title: str, total: int, done: int, say: Say) -> Iterator[Callable[..., None]]:
    pace = Pace()

    def advance(count: int = 1, note: str = "") -> None:
        nonlocal done
        done += count
        if pace.due():
            say(f"{title}: {done} of {total}" + (f", {note}" if note else ""))

    yield advance
