"""Ctrl-C and SIGTERM as a count that loops look at: an exception out of a handler may come in the middle of cleaning up."""

from __future__ import annotations

import signal

#: Exit code of what a person, or SIGTERM, stopped.
STOPPED = 130


class Stopped(Exception):
    """A person, or SIGTERM, asked for the end."""


class StopSignals:
    """From now on SIGINT and SIGTERM only add to ``count``: 1 asks for an end in good order, 2 for one at once."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def check(self) -> None:
        """Raise ``Stopped`` once one came."""
        if self.count:
            raise Stopped

    def _note(self, *_: object) -> None:
        self.count += 1
