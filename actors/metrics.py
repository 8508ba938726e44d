"""The actor's figures for Prometheus: those of its heartbeats, read by a thread of their own when asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from configs.schema import MetricsConfig

log = logging.getLogger("rollway.actor")

#: How many actors one machine may have with an endpoint each.
PORTS = 64

_COUNTERS = {
    "episodes": "Episodes finished",
    "turns": "Turns that the policy wrote",
    "tokens": "Tokens sampled",
    "groups": "Groups delivered",
    "groups_failed": "Groups handed back as failed",
    "groups_cancelled": "Leases cancelled by the learner",
}

_GAUGES = {
    "in_flight": ("episodes_in_flight", "Episodes running now"),
    "tokens_per_s": ("tokens_per_second", "Tokens sampled a second"),
    "abandoned_threads": ("abandoned_threads", "Blocking calls that outlived their time limit"),
}


class ActorCollector(Collector):
    """``stats``: the newest of ``Pool.stats()``, replaced as a whole by the event loop, never changed."""

    def __init__(self, actor_id: str):
        self._actor = actor_id
        self.stats: dict[str, Any] = {}

    def update(self, stats: dict[str, Any]) -> None:
        self.stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        for key, text in _COUNTERS.items():
            yield self._one(CounterMetricFamily, key, text, stats.get(key, 0))
        for key, (name, text) in _GAUGES.items():
            yield self._one(GaugeMetricFamily, name, text, stats.get(key, 0))
        latency = {("0.5",): stats.get("latency_p50", 0.0), ("0.99",): stats.get("latency_p99", 0.0)}
        yield self._many(GaugeMetricFamily, "request_seconds", "Latency of generation requests", ["quantile"], latency)
        tools = stats.get("tools", {})
        for key in ("calls", "faults"):
            values = {(name,): row[key] for name, row in tools.items()}
            yield self._many(CounterMetricFamily, f"tool_{key}", f"Tool {key} by tool", ["tool"], values)
        times = {(name, q): row[p] for name, row in tools.items() for q, p in (("0.5", "p50"), ("0.99", "p99"))}
        yield self._many(GaugeMetricFamily, "tool_seconds", "Latency of tool calls", ["tool", "quantile"], times)
        faults = {(kind,): n for kind, n in stats.get("faults", {}).items()}
        yield self._many(CounterMetricFamily, "faults", "Faults of tools, requests and episodes", ["kind"], faults)

    def _one(self, family: type[Metric], name: str, text: str, value: float) -> Metric:
        return self._many(family, name, text, [], {(): value})

    def _many(self, family: Any, name: str, text: str, labels: list[str], values: dict[tuple, float]) -> Metric:
        metric = family(f"rollway_actor_{name}", text, labels=["actor", *labels])
        for key, value in values.items():
            metric.add_metric([self._actor, *key], value)
        return metric


def serve_metrics(config: MetricsConfig, actor_id: str) -> ActorCollector:
    """Serve at the first free port after ``metrics.port``; only collect where that is 0.

    It serves until the process ends. Without a free port the actor works all the same and
    its log says so: figures are worth less than episodes.
    """
    collector = ActorCollector(actor_id)
    if not config.port:
        return collector
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    for port in range(config.port + 1, min(config.port + 1 + PORTS, 65536)):
        try:
            start_http_server(port, config.host, registry)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            log.info("metrics for Prometheus at http://%s:%d/metrics", config.host, port)
            return collector
    log.warning("no metrics: no port of %s after metrics.port %d can be had (%s)", config.host, config.port, reason)
    return collector
