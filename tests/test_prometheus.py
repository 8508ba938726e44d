"""The endpoints of learner and actors over real HTTP, and a Grafana dashboard that names nothing else."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.metrics import PORTS
from actors.metrics import serve_metrics as serve_actor
from configs.load import ConfigError, load_config
from configs.schema import Config, MetricsConfig
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from learner.run.prometheus import serve_metrics as serve_learner
from tests.synthetic_snapshot import synthetic_snapshot

ROOT = Path(__file__).parents[1]


@pytest.fixture
def port():
    """A free port below which nothing of ours is: the ephemeral range, so that parallel tests do not meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return min(probe.getsockname()[1], 65000)


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def actor_stats():
    return synthetic_snapshot()["actors"][0]["stats"]


def test_learner(port):
    server = serve_learner(MetricsConfig(port=port), lambda since: synthetic_snapshot())
    try:
        found = scrape(port)
    finally:
        server.close()
    assert found[("rollway_step",)] == 42 and found[("rollway_steps_planned",)] == 60
    assert found[("rollway_step_seconds", ("phase", "wait"))] > 0
    assert found[("rollway_eval_em", ("baseline", "Naive RAG"), ("dataset", "hotpot"))] == pytest.approx(0.27)
    assert found[("rollway_groups_consumed_total",)] == 32 * 42
    assert found[("rollway_server_state", ("server", "http://127.0.0.1:8100"), ("state", "current"))] == 1
    assert found[("process_resident_memory_bytes",)] > 1e6
    with socket.socket() as again:  # given back at once
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_what_was_not_measured_is_missing_and_not_zero(port, tmp_path):
    """A real gateway before the first step."""
    config = Config(run={"dir": tmp_path})
    gateway = Gateway(config, Ledger(":memory:", [], 0), "run", {})
    gateway.publish("run", {"id": 'run <"\\\n>', "phase": "start", "steps": 3})
    server = serve_learner(MetricsConfig(port=port), gateway.snapshot)
    try:
        found = scrape(port)
    finally:
        server.close()
    assert ("rollway_reward",) not in found and ("rollway_step",) not in found
    assert found[("rollway_actors",)] == 0 and found[("rollway_groups_lost",)] == 0
    assert found[("rollway_run_info", ("model", ""), ("run", 'run <"\\\n>'))] == 1


@pytest.mark.parametrize("value", [None, "text", float("nan"), [], {}, -1])
def test_a_snapshot_of_another_release_breaks_nothing(port, value):
    snapshot = {key: value for key in synthetic_snapshot()}
    server = serve_learner(MetricsConfig(port=port), lambda since: snapshot)
    try:
        assert scrape(port)[("rollway_actors",)] == 0
    finally:
        server.close()


def test_actors_share_a_machine(port):
    first, second = (serve_actor(MetricsConfig(port=port), f"actor-{i}") for i in range(2))
    for collector in (first, second):
        collector.update(actor_stats())
    found = [scrape(at) for at in range(port + 1, port + 1 + PORTS) if is_ours(at)]
    actors = {dict(labels)["actor"] for each in found for name, *labels in each if name == "rollway_actor_tokens_total"}
    assert actors == {"actor-0", "actor-1"} and len(found) == 2
    assert found[0][("rollway_actor_tool_calls_total", ("actor", "actor-0"), ("tool", "search"))] == 9800
    key = ("rollway_actor_request_seconds", ("actor", "actor-0"), ("quantile", "0.99"))
    assert found[0][key] == pytest.approx(1.9)
    first.update({**actor_stats(), "tokens": 500_000})
    at = next(at for at in range(port + 1, port + 1 + PORTS) if is_ours(at))
    assert scrape(at)[("rollway_actor_tokens_total", ("actor", "actor-0"))] == 500_000


def is_ours(port):
    try:
        return any(name.startswith("rollway_actor") for name, *_ in scrape(port))
    except OSError:
        return False


def test_off_by_default_and_wrong_ports_are_one_line(port):
    assert serve_learner(Config().metrics, lambda since: {}) is None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ValueError, match=r"metrics\.port: .* cannot be had .*choose another"):
            serve_learner(MetricsConfig(port=port), lambda since: {})
    for taken_port in (5600, 8100):
        with pytest.raises(ConfigError, match=r"metrics\.port .* is the gateway's or a server's"):
            load_config(None, [f"metrics.port={taken_port}"])


def test_the_dashboard_names_only_figures_that_exist(port):
    server = serve_learner(MetricsConfig(port=port), lambda since: synthetic_snapshot())
    try:
        learner = scrape(port)
    finally:
        server.close()
    actor = serve_actor(Config().metrics, "actor-0")
    actor.update(actor_stats())
    samples = {sample.name for family in actor.collect() for sample in family.samples}
    known = {name for name, *_ in learner} | samples
    labels = {label for _, *pairs in learner for label, _ in pairs}
    labels |= {label for family in actor.collect() for sample in family.samples for label in sample.labels}

    dashboard = json.loads((ROOT / "configs" / "grafana-rollway.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(targets) > 30
    for target in targets:
        names = re.findall(r"\b(?:rollway|process)_\w+", target["expr"])
        assert names and set(names) <= known, target["expr"]
        used = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]) + re.findall(r"by \((\w+)\)", target["expr"])
        assert set(used) <= labels | {"instance"}, target
        assert target["expr"].count("(") == target["expr"].count(")") and target["expr"].count("{") == target[
            "expr"
        ].count("}")
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    # Every figure of ours is on some panel, or named in the document as worth an alarm, or is a label's carrier.
    shown = " ".join(target["expr"] for target in targets) + (ROOT / "docs" / "prometheus.md").read_text()
    unseen = {name for name in known if name.startswith("rollway_") and name not in shown}
    assert unseen <= {
        "rollway_run_info", "rollway_steps_planned", "rollway_learner_phase", "rollway_server_state",
        "rollway_actor_turns_total", "rollway_actor_groups_total", "rollway_actor_groups_failed_total",
        "rollway_actor_groups_cancelled_total", "rollway_actor_abandoned_threads", "rollway_actor_tool_faults_total",
        "rollway_actor_tokens_total",
    }  # fmt: skip
