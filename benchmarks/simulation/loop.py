"""An event loop whose clock jumps to the next timer: hours of time-outs in milliseconds, always in one order."""

from __future__ import annotations

import asyncio
from typing import Any


class VirtualLoop(asyncio.BaseEventLoop):
    """No sockets, no threads, no real clock: what runs next follows from what ran before."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Nothing is ready: let time pass until the next timer."""
        if timeout is None:
            raise RuntimeError("the simulation has come to an end: no timer is left")
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
