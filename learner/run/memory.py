"""Memory that glibc keeps after it was freed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: A learner that has waited for so long has the time to take its memory anew, seconds.
IDLE_S = 5.0


@contextmanager
def given_back_when_idle(after_s: float = IDLE_S) -> Iterator[None]:
    """Around a wait: when it takes longer than ``after_s``, freed memory goes back to the system.

    Batches differ in size, and what the largest of them took stays with the process, scattered over its heap: a third
    of a small learner's memory. Taking it anew costs the next step some percent, so a busy learner keeps it.
    """
    timer = threading.Timer(after_s, give_back)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
