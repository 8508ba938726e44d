"""How far a long step is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

log = logging.getLogger("rollway.retriever")

#: Seconds between two lines where there is no terminal.
_LINE_S = 30.0


@contextmanager
def progress(title: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yields a function that is called with how much more is done. ``done``: what an earlier run had finished."""
    if done:
        log.info("%s: goes on at %d of %d", title, done, total)
    started = time.monotonic()
    with (_bar if sys.stderr.isatty() else _lines)(title, total, done) as advance:
        yield advance
    log.info("%s: %d done in %.1f s", title, total - done, time.monotonic() - started)


@contextmanager
def _bar(title: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


@contextmanager
def _lines(title: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    due = time.monotonic() + _LINE_S

    def advance(count: int) -> None:
        nonlocal done, due
        done += count
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_S
            log.info("%s: %d of %d", title, done, total)

    yield advance
