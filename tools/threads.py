"""Blocking code off the event loop, in threads that can be given up.

``concurrent.futures.ThreadPoolExecutor`` will not do: a call that hangs keeps its worker
for ever, a few of them block the pool, and the interpreter waits for them at exit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class GivenUp(Exception):
    """The call reached its time limit; its thread was abandoned."""


class TooManyHung(Exception):
    """So many abandoned calls still run that no new thread is started for more of them."""


class BlockingCalls:
    """Runs plain functions in daemon threads, at most ``size`` of them awaited at a time.

    A call whose wait ends early (time limit, cancellation) is *abandoned*: its place is
    free at once, its thread lives until the function returns. ``abandoned`` counts those
    that still run; beyond ``max_abandoned`` new calls are refused, so threads stay bounded.
    """

    def __init__(self, size: int = 32, max_abandoned: int = 128):
        self.size, self.max_abandoned = size, max_abandoned
        self.abandoned = 0
        self._lock = threading.Lock()
        self._idle = 0
        self._jobs: queue.SimpleQueue[tuple[Future, Callable[[], Any]]] = queue.SimpleQueue()
        # Semaphores belong to one event loop; a process may run several, one after another.
        self._places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def run(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """The function's value; raises what it raised (``SystemExit`` and the like as ``RuntimeError``).

        timeout_s: seconds from the moment a thread has it; waiting for a place does not count.
        Raises ``GivenUp`` at the limit, ``TooManyHung`` where no thread is to be had.
        """
        places = self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.size))
        async with places:
            if self.abandoned >= self.max_abandoned:
                raise TooManyHung(f"{self.abandoned} earlier calls hang and were given up")
            future = self._submit(function)
            waiter = asyncio.wrap_future(future)
            try:
                await asyncio.wait({waiter}, timeout=timeout_s)
            finally:
                if not waiter.done():  # the time limit, or we are being cancelled
                    self._abandon(future)
                    waiter.cancel()
            if waiter.cancelled():
                raise GivenUp(f"no answer after {timeout_s:g} s")
            value, error = waiter.result()
            if error is not None:
                raise error
            return value

    def _submit(self, function: Callable[[], Any]) -> Future:
        future: Future = Future()
        future.set_running_or_notify_cancel()  # from here on nobody but the thread settles it
        with self._lock:
            start, self._idle = self._idle == 0, max(0, self._idle - 1)
        self._jobs.put((future, function))
        if start:
            threading.Thread(target=self._work, name="blocking-call", daemon=True).start()
        return future

    def _abandon(self, future: Future) -> None:
        with self._lock:
            self.abandoned += 1
        future.add_done_callback(self._came_back)

    def _came_back(self, _: Future) -> None:
        with self._lock:
            self.abandoned -= 1

    def _work(self) -> None:
        while True:
            future, function = self._jobs.get()
            # A failure travels as a value: futures give StopIteration and cancellation meanings of their own.
            try:
                outcome = (function(), None)
            except Exception as error:
                outcome = (None, error)
            except BaseException as error:  # sys.exit() of a tool must not reach, and end, the event loop
                outcome = (None, RuntimeError(f"{type(error).__name__}: {error}"))
            future.set_result(outcome)
            del future, function, outcome  # an idle thread keeps nothing alive
            with self._lock:
                self._idle += 1
