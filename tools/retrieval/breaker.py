"""Circuit breaker: a service that does not answer is left alone for a while instead of costing every call its time."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Closed until ``failures`` calls in a row failed, then open for ``pause_s`` seconds; then one call is the probe.

    As in Nygard's *Release It!*. Call ``allow`` before a call and ``record`` after it; one event loop or thread.
    """

    def __init__(self, failures: int, pause_s: float, clock: Callable[[], float] = time.monotonic):
        self._failures, self._pause_s, self._clock = failures, pause_s, clock
        self._in_a_row = 0
        self._closed_at = 0.0

    def allow(self) -> bool:
        """Whether a call may be made now. A probe that never reports back blocks the next for one pause only."""
        if self._in_a_row < self._failures:
            return True
        if self._clock() < self._closed_at:
            return False
        self._closed_at = self._clock() + self._pause_s
        return True

    def record(self, answered: bool) -> None:
        """answered: the service did its part, whatever it said."""
        if answered:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row >= self._failures:
            self._closed_at = self._clock() + self._pause_s
