"""How long the parts of an update take, without making the device wait for the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Spans:
    """Seconds by name, each the sum of its ``with`` blocks.

    On a GPU the marks are CUDA events in the stream: work that was only queued counts
    where it runs, and the host waits once, when ``seconds`` is called.
    """

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._host: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        if self._stream is not None:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(self._stream)
            yield
            last.record(self._stream)
            self._events.append((name, first, last))
        else:
            began = time.perf_counter()
            yield
            self._host[name] = self._host.get(name, 0.0) + time.perf_counter() - began

    def seconds(self, *names: str) -> dict[str, float]:
        """``{name}_s`` for each of ``names``; 0 where no block had it."""
        found = dict.fromkeys(names, 0.0) | self._host
        if self._stream is not None:
            self._stream.synchronize()
            for name, first, last in self._events:
                found[name] += first.elapsed_time(last) / 1000
        return {f"{name}_s": found[name] for name in names}
