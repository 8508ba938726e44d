"""Memory that glibc keeps after it was freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Return freed memory to the system, where the C library can.

    Batches differ in size, and what the largest of them took stays with the process, scattered over its heap: a third
    of a small learner's memory. Taking it anew costs a step some percent, so this is for now and then.
    """
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
