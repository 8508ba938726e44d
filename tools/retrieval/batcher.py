"""Many small requests become few large searches: whatever arrived while one search ran is the next one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cachetools import LRUCache

from tools.retrieval.hits import Hits, Searcher
from tools.retrieval.metrics import Metrics

log = logging.getLogger("rollway.retriever")

#: (query, k)
Key = tuple[str, int]


class Overloaded(Exception):
    """As many queries wait as may wait."""


class Batcher:
    """One searching thread, a queue in front of it, a cache in front of that.

    Episodes of one group tend to ask the same thing at the same time: a query that is waiting or being searched
    is not searched again. max_batch, max_waiting, cache_entries: see ``RetrieverConfig``.
    """

    def __init__(self, searcher: Searcher, metrics: Metrics, max_batch: int, max_waiting: int, cache_entries: int):
        self._searcher, self._metrics = searcher, metrics
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._cache: LRUCache[Key, Hits] | None = LRUCache(cache_entries) if cache_entries else None
        self._queue: deque[Key] = deque()
        self._pending: dict[Key, asyncio.Future[Hits]] = {}
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "search")
        self._batch_started: float | None = None
        metrics.watch_queue(lambda: len(self._queue))

    @property
    def busy_s(self) -> float:
        """How long the present search has been running, seconds; 0 between two."""
        return 0.0 if self._batch_started is None else time.monotonic() - self._batch_started

    async def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The hits of each query. The caller sets the time limit.

        Raises ``Overloaded``, and whatever the searcher raised.
        """
        found: dict[str, Hits] = {}
        missing: list[Key] = []
        for query in dict.fromkeys(queries):
            hits = self._cache.get((query, k)) if self._cache is not None else None
            if hits is not None:
                found[query] = hits
            else:
                missing.append((query, k))
        new = [key for key in missing if key not in self._pending]
        if len(self._queue) + len(new) > self._max_waiting:
            raise Overloaded(f"{len(self._queue)} queries are waiting, {self._max_waiting} may")
        self._metrics.count_queries(cached=len(queries) - len(missing), shared=len(missing) - len(new), new=len(new))
        for key in new:
            self._pending[key] = asyncio.get_running_loop().create_future()
            self._queue.append(key)
        futures = {key: self._pending[key] for key in missing}
        if futures:
            self._arrived.set()
            await asyncio.wait(futures.values())  # unlike gather, cancels nothing that others wait for
        found |= {query: future.result() for (query, _), future in futures.items()}
        return [found[query] for query in queries]

    async def run(self) -> None:
        """Search what arrives, until cancelled."""
        try:
            while True:
                await self._arrived.wait()
                while self._queue:
                    await self._search_batch(self._next_batch())
                self._arrived.clear()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _next_batch(self) -> list[Key]:
        """The oldest queries that share the oldest one's ``k``, which is as a rule everybody's."""
        k, others, batch = self._queue[0][1], [], []
        while self._queue and len(batch) < self._max_batch:
            key = self._queue.popleft()
            (batch if key[1] == k else others).append(key)
        self._queue.extendleft(reversed(others))
        return batch

    async def _search_batch(self, batch: list[Key]) -> None:
        self._batch_started = time.monotonic()
        try:
            answers = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._searcher.search, [query for query, _ in batch], batch[0][1]
            )
            answered = list(zip(batch, answers, strict=True))
        except Exception as error:
            log.exception("a search of %d queries failed", len(batch))
            for key in batch:
                self._pending.pop(key).set_exception(error)
        else:
            for key, hits in answered:
                if self._cache is not None:
                    self._cache[key] = hits
                self._pending.pop(key).set_result(hits)
        finally:
            self._metrics.observe_batch(len(batch), self.busy_s)
            self._batch_started = None
