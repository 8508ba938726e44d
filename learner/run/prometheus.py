"""The learner's figures for Prometheus: read from the gateway's snapshot when asked, so that training pays nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from configs.schema import MetricsConfig
from learner.dashboard.format import finite
from learner.dashboard.model import Snapshot, dig

#: Field of a step's record → (metric, what it is). The newest step counts.
_STEP = {
    "reward": ("reward", "Mean reward of the newest batch"),
    "entropy": ("entropy_nats", "Policy entropy, nats a token"),
    "kl": ("kl", "KL between the sampling and the trained policy (k1)"),
    "loss": ("loss", "Surrogate loss"),
    "grad_norm": ("grad_norm", "Gradient norm before clipping"),
    "lr": ("learning_rate", "Learning rate"),
    "clip_fraction": ("clip_fraction", "Share of action tokens that were clipped"),
    "ratio_ess": ("ratio_effective_sample_size", "Effective sample size of the importance ratios, as a share"),
    "logprob_mismatch_mean": ("logprob_mismatch", "Mean |log pi - log mu| over action tokens"),
    "staleness_mean": ("staleness_mean_versions", "Mean age of action tokens, versions"),
    "staleness_max": ("staleness_max_versions", "Age of the oldest action token, versions"),
    "truncated": ("truncated_fraction", "Share of episodes that a limit cut"),
    "tokens_per_s": ("tokens_per_second", "Tokens trained on, a second of wall time"),
    "busy": ("learner_busy_fraction", "Share of the step that the update took"),
}

#: Key of the snapshot's queue → (metric, what it is); these only grow.
_COUNTERS = {
    "consumed": ("groups_consumed", "Groups trained on"),
    "duplicates": ("groups_duplicate", "Deliveries refused as duplicates"),
    "stale_dropped": ("groups_stale_dropped", "Groups too old when their turn came, made again"),
    "failed": ("groups_failed", "Units given up after repeated failures"),
    "rejected_frames": ("rejected_frames", "Frames from strangers or of a wrong form"),
}

_SERVER = {
    "running": ("server_requests_running", "Requests that the server generates for"),
    "waiting": ("server_requests_waiting", "Requests that wait in the server's queue"),
    "kv_usage": ("server_kv_cache_usage", "Share of the KV cache in use"),
    "prefix_hit_rate": ("server_prefix_hit_rate", "Share of prompt tokens found in the prefix cache"),
    "tokens_per_s": ("server_tokens_per_second", "Tokens generated a second"),
    "version": ("server_policy_version", "Version of the weights that the server has"),
}


class LearnerCollector(Collector):
    """snapshot: as ``Gateway.snapshot``, called with the step from which the history is wanted."""

    def __init__(self, snapshot: Callable[[int], dict[str, Any]]):
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        s = Snapshot(self._snapshot(0))
        yield from _run(s)
        yield from _newest_step(s)
        yield from _scores(s)
        yield from _queue(s)
        yield from _fleet(s)


class MetricsServer:
    """The endpoint, from ``serve_metrics`` until ``close``."""

    def __init__(self, server: WSGIServer):
        self._server = server

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve_metrics(config: MetricsConfig, snapshot: Callable[[int], dict[str, Any]]) -> MetricsServer | None:
    """Serve at ``metrics.host:metrics.port``; None where the port is 0. Raises ``ValueError``: the port cannot be had."""
    if not config.port:
        return None
    registry = CollectorRegistry()
    registry.register(LearnerCollector(snapshot))
    ProcessCollector(registry=registry)
    try:
        server, _ = start_http_server(config.port, config.host, registry)
    except OSError as error:
        raise ValueError(
            f"metrics.port: {config.host}:{config.port} cannot be had ({error.strerror or error}); choose another"
        ) from None
    return MetricsServer(server)


def _run(s: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily("rollway_run_info", "The run; always 1", labels=["run", "model"])
    info.add_metric([str(s.run.get("id", "")), str(s.run.get("model", ""))], 1)
    yield info
    yield from _gauge("step", "Steps done", s.run.get("step"))
    yield from _gauge("steps_planned", "Steps planned", s.run.get("steps"))
    yield from _gauge("policy_version", "Version of the newest weights", s.run.get("version"))
    phase = GaugeMetricFamily("rollway_learner_phase", "1 for what the learner is doing now", labels=["phase"])
    phase.add_metric([s.phase], 1)
    yield phase
    yield from _gauge("phase_age_seconds", "Seconds since the learner's phase began", s.phase_age)


def _newest_step(s: Snapshot) -> Iterator[Metric]:
    for field, (name, text) in _STEP.items():
        yield from _gauge(name, text, s.last(field))
    seconds = GaugeMetricFamily("rollway_step_seconds", "Seconds of the newest step by phase", labels=["phase"])
    for phase, value in (s.last("seconds") or {}).items():
        _add(seconds, [str(phase)], value)
    yield seconds
    em = GaugeMetricFamily("rollway_train_em", "Exact match of the newest batch", labels=["dataset"])
    for dataset, value in (s.last("em") or {}).items():
        _add(em, [str(dataset)], value)
    yield em


def _scores(s: Snapshot) -> Iterator[Metric]:
    em = GaugeMetricFamily(
        "rollway_eval_em", "Exact match on held-out questions, newest", labels=["dataset", "baseline"]
    )
    for baseline in [None, *s.baselines]:
        for dataset in s.datasets:
            if found := s.eval_points(dataset, baseline):
                em.add_metric([dataset, baseline or ""], found[-1][1])
    yield em


def _queue(s: Snapshot) -> Iterator[Metric]:
    groups = GaugeMetricFamily("rollway_groups", "Groups of the open version by state", labels=["state"])
    for state in ("pending", "leased", "waiting", "taken"):
        _add(groups, [state], s.queue.get(state))
    yield groups
    yield from _gauge("groups_capacity", "Groups that the staleness bound admits", s.queue.get("capacity"))
    yield from _gauge("groups_lost", "Units that nobody would ever issue again; must be 0", s.queue.get("lost"))
    for key, (name, text) in _COUNTERS.items():
        if (value := finite(s.queue.get(key))) is not None:
            yield CounterMetricFamily(f"rollway_{name}", text, value=value)


def _fleet(s: Snapshot) -> Iterator[Metric]:
    yield from _gauge("actors", "Actors connected", len(s.actors))
    heard = GaugeMetricFamily("rollway_actor_silence_seconds", "Seconds since an actor was heard", labels=["actor"])
    for row in s.actors:
        _add(heard, [str(row.get("id", ""))], row.get("age_s"))
    yield heard
    states = GaugeMetricFamily(
        "rollway_server_state", "1 for the state that a server is in", labels=["server", "state"]
    )
    for row in s.servers:
        states.add_metric([str(row.get("url", "")), str(row.get("state", ""))], 1)
    yield states
    for field, (name, text) in _SERVER.items():
        family = GaugeMetricFamily(f"rollway_{name}", text, labels=["server"])
        for row in s.servers:
            _add(family, [str(row.get("url", ""))], dig(row, field))
        yield family


def _gauge(name: str, text: str, value: Any) -> Iterator[Metric]:
    """Nothing where the value is not a finite number: a gap says more than a 0."""
    if (number := finite(value)) is not None:
        yield GaugeMetricFamily(f"rollway_{name}", text, value=number)


def _add(family: GaugeMetricFamily, labels: list[str], value: Any) -> None:
    if (number := finite(value)) is not None:
        family.add_metric(labels, number)
