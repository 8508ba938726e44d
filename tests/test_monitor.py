"""Dead, hung, busy, back: what becomes of servers, judged without a clock and then over real sockets."""

from __future__ import annotations

import time

import pytest

from configs.schema import Config
from learner.servers import monitor as monitors
from learner.servers.health import Health
from learner.servers.monitor import ServerMonitor
from learner.weights.push import WeightPusher
from tests.weight_server import StandIn, policy, same


def test_slow_is_well_and_silent_is_not():
    health = Health.unseen(30.0, 0.0)
    health.answer(2.0, tokens=10, running=3, generating=True)
    health.no_answer(refused=False)
    assert health.problem(31.0) is None
    assert health.problem(33.0) == "it has not answered for 31 s"
    health.answer(40.0, tokens=11, running=3, generating=True)
    assert health.problem(40.0) is None


def test_nobody_listening_is_told_at_once_and_a_smaller_count_is_another_process():
    health = Health.unseen(30.0, 0.0)
    health.answer(1.0, tokens=10, running=0, generating=True)
    health.no_answer(refused=True)
    assert "refuses connections" in health.problem(1.0)
    health.answer(2.0, tokens=0, running=0, generating=True)
    assert health.restarted and health.problem(2.0) is None


def test_an_engine_that_hangs_behind_a_healthy_server_is_noticed_and_only_a_token_clears_it():
    health = Health.unseen(30.0, 0.0)
    for now in range(0, 34, 2):
        health.answer(float(now), tokens=5, running=4, generating=True)
    assert health.problem(32.0) == "it has generated nothing for 32 s, though requests run"
    health.answer(36.0, tokens=5, running=4, generating=False)  # excluded by now
    assert health.problem(36.0)
    health.answer(38.0, tokens=6, running=4, generating=False)
    assert health.problem(38.0) is None


def test_idle_or_held_by_a_push_is_not_hung():
    health = Health.unseen(30.0, 0.0)
    for now in range(0, 100, 2):
        health.answer(float(now), tokens=5, running=0, generating=True)
    for now in range(100, 200, 2):
        health.answer(float(now), tokens=5, running=4, generating=False)
    assert health.problem(200.0) is None


class Board:
    """What the gateway is told."""

    def __init__(self):
        self.rows, self.servers = {}, []

    def publish(self, section, rows):
        assert section == "servers"
        self.rows = {row["url"]: row for row in rows}

    def set_servers(self, urls):
        self.servers = list(urls)


@pytest.fixture
def scene(monkeypatch):
    """(two servers, the board, the pusher, look): one push is done; look() is one round of the monitor."""
    for module in ("learner.servers.probe.LOOK_S", "learner.weights.push._LOOK_S"):
        monkeypatch.setattr(module, 0.3)
    servers = [StandIn(), StandIn()]
    urls = [server.url for server in servers]
    board, pusher = Board(), WeightPusher(Config.model_validate({"weights": {"bucket_mb": 1}}), urls)
    monitor = ServerMonitor(board, pusher, urls, silent_s=1.0)
    pusher.push(policy(1), 1)
    board.set_servers(pusher.current_servers())

    def look():
        monitor.look()
        if monitor._mending:
            monitor._mending.result(timeout=20)

    yield servers, board, pusher, look
    pusher.close()
    for server in servers:
        server.close()


def until(condition, look, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        look()
        time.sleep(0.05)


def test_a_stopped_server_is_taken_off_brought_up_to_date_and_only_then_listed(scene):
    (good, hung), board, pusher, look = scene
    look()
    assert board.servers == [good.url, hung.url] and board.rows[hung.url]["state"] == "current"
    hung.awake.clear()
    look()
    assert hung.url in board.servers and board.rows[hung.url]["state"] == "unreachable"  # slow is not dead
    until(lambda: hung.url not in board.servers, look)
    pusher.push(policy(2), 2)
    hung.awake.set()
    until(lambda: hung.url in board.servers, look)
    assert same(hung, policy(2)) and hung.version == "2" and not hung.paused


def test_an_engine_that_stands_still_is_taken_off_until_it_moves(scene):
    (good, stuck), board, _, look = scene
    stuck.running, stuck.tokens = 4, 100
    until(lambda: stuck.url not in board.servers, look)
    assert board.servers == [good.url] and "generated nothing" in board.rows[stuck.url]["error"]
    stuck.tokens = 101
    until(lambda: stuck.url in board.servers, look)


def test_a_server_that_is_started_again_between_two_looks_gets_the_weights(scene):
    (_, again), board, _, look = scene
    again.tokens = 50
    look()
    again.tokens, again.version, again.weights, again.group = 0, "default", {}, None
    look()
    assert same(again, policy(1)) and again.url in board.servers


def test_a_look_that_fails_is_not_the_last_one(scene, monkeypatch):
    servers, board, pusher, _ = scene
    monkeypatch.setattr(monitors, "INTERVAL_S", 0.02)
    monitor = ServerMonitor(board, pusher, [server.url for server in servers], silent_s=1.0)
    looks = []

    def broken():
        looks.append(None)
        raise OSError("no more threads")

    monkeypatch.setattr(monitor, "look", broken)
    monitor.start()
    deadline = time.monotonic() + 5
    while len(looks) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    monitor.stop()
    assert len(looks) >= 3
