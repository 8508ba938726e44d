"""Fairness on one event loop: a crowd of episodes goes through a few at a time."""

from __future__ import annotations

import asyncio
from collections import deque

#: Episodes in one pass of the loop. A turn takes a fraction of a millisecond: a pass stays near ten.
WIDTH = 32


class Turnstile:
    """Lets ``width`` coroutines through in one pass of the event loop, in the order of their coming.

    The servers' answers to thousands of episodes can be there in the same moment. Handled in one
    go they would keep everything else on the loop waiting for seconds: timers, other sockets,
    what the learner says. Where there is no crowd nobody waits.
    """

    def __init__(self, width: int = WIDTH) -> None:
        self._width = self._left = width
        self._queue: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def enter(self) -> None:
        """Go through at once if there is room in this pass, else in a later one."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._left and not self._queue:
            self._left -= 1
            return
        ticket = asyncio.get_running_loop().create_future()
        self._queue.append(ticket)
        await ticket

    def _turn(self) -> None:
        """A new pass."""
        self._left = self._width
        while self._queue and self._left:
            ticket = self._queue.popleft()
            if not ticket.done():  # else its episode was cancelled
                ticket.set_result(None)
                self._left -= 1
        self._turning = self._left < self._width
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)
