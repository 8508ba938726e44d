"""Small counters that an actor reports with its heartbeats."""

from __future__ import annotations

import os
import time
from collections import deque


class Latencies:
    """Percentiles over the last ``window`` observations, seconds."""

    def __init__(self, window: int = 1024):
        self.count = 0
        self._recent: deque[float] = deque(maxlen=window)

    def add(self, seconds: float) -> None:
        self.count += 1
        self._recent.append(seconds)

    def quantile(self, q: float) -> float:
        """The ``q`` quantile, 0 while nothing was observed."""
        ordered = sorted(self._recent)
        return ordered[round(q * (len(ordered) - 1))] if ordered else 0.0

    def summary(self) -> dict[str, float]:
        """``{"p50", "p99"}``, rounded for people."""
        return {"p50": round(self.quantile(0.5), 5), "p99": round(self.quantile(0.99), 5)}


class Rate:
    """Amount per second over the last ``window_s`` seconds."""

    def __init__(self, window_s: float = 10.0):
        self.window_s = window_s
        self._started = time.monotonic()
        self._events: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, amount: float) -> None:
        self._events.append((time.monotonic(), amount))
        self._sum += amount
        self._forget()

    def per_second(self) -> float:
        self._forget()
        return self._sum / max(1e-3, min(self.window_s, time.monotonic() - self._started))

    def _forget(self) -> None:
        horizon = time.monotonic() - self.window_s
        while self._events and self._events[0][0] < horizon:
            self._sum -= self._events.popleft()[1]


def rss_mb() -> float:
    """Resident memory of this process, MiB."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
