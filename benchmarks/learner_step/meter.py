"""What an update costs its process: CPU time, clock, peak memory. Only the standard library: the peer's Python runs it too.

A measured process answers each line of its stdin with one line of JSON. Whatever libraries print
goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter:
    """Make it when everything is imported and before there is a model: memory counts from there."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._idle = _kib("VmRSS")

    def ready(self, **facts: Any) -> None:
        """Everything that updates need is there."""
        self._say(facts)

    def await_order(self) -> dict[str, Any] | None:
        """The next order, whose work begins now; None when there are no more."""
        line = sys.stdin.readline()
        if not line:
            return None
        _CLEAR.write_text("5")  # VmHWM starts again at VmRSS
        self._cpu, self._clock = time.process_time(), time.monotonic()
        return json.loads(line)

    def done(self) -> None:
        """The work of the last order is done."""
        cpu, clock = time.process_time() - self._cpu, time.monotonic() - self._clock
        self._say({"cpu_s": cpu, "clock_s": clock, "peak_mib": (_kib("VmHWM") - self._idle) / 1024})

    def _say(self, facts: dict[str, Any]) -> None:
        print(json.dumps(facts), file=self._answers, flush=True)


def _kib(field: str) -> int:
    return int(_STATUS.read_text().split(f"{field}:")[1].split()[0])
