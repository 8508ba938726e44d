"""The service's figures for Prometheus, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        prefix = "rollway_retriever"
        self._passages = Gauge(f"{prefix}_passages", "Passages in the index", registry=self._registry)
        self._waiting = Gauge(f"{prefix}_waiting", "Queries that wait for a search", registry=self._registry)
        self._requests = Counter(
            f"{prefix}_requests", "Requests to /retrieve by HTTP status", ["status"], registry=self._registry
        )
        self._queries = Counter(
            f"{prefix}_queries",
            "Queries by where the answer came from: cache, a search that ran already, a new one",
            ["source"],
            registry=self._registry,
        )
        self._request_s = Histogram(
            f"{prefix}_request_seconds", "Time to answer a request", buckets=_SECONDS, registry=self._registry
        )
        self._search_s = Histogram(
            f"{prefix}_search_seconds", "Time to search a batch", buckets=_SECONDS, registry=self._registry
        )
        self._batch = Histogram(
            f"{prefix}_batch_queries", "Queries searched at once", buckets=_BATCHES, registry=self._registry
        )

    def set_passages(self, count: int) -> None:
        self._passages.set(count)

    def watch_queue(self, length: Callable[[], int]) -> None:
        self._waiting.set_function(length)

    def count_queries(self, cached: int, shared: int, new: int) -> None:
        for source, count in (("cache", cached), ("shared", shared), ("search", new)):
            self._queries.labels(source).inc(count)

    def observe_request(self, status: int, seconds: float) -> None:
        self._requests.labels(str(status)).inc()
        self._request_s.observe(seconds)

    def observe_batch(self, queries: int, seconds: float) -> None:
        self._batch.observe(queries)
        self._search_s.observe(seconds)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)
