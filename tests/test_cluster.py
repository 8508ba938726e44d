"""What a supervisor does when its processes die, hang or have to end at once: real processes, no engines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from configs.schema import Config
from learner.servers import cluster as clusters
from learner.servers.cluster import Cluster, StartError
from learner.servers.processes import Child, terminate
from learner.servers.serving import server_urls
from tests.wire_samples import free_port

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """(name, code) → a started Child in a cluster; all of them end with the test."""
    monkeypatch.setattr(clusters, "LONGEST_PAUSE_S", 0.0)
    cluster = Cluster(Config.model_validate({"server": {"port": free_port()}}), tmp_path / "logs")

    def start(name: str, code: str) -> Child:
        cluster._start(name, [sys.executable, "-c", code], {})
        return cluster.children[name]

    start.cluster = cluster
    yield start
    cluster.stop(0.0)


def await_end(child: Child) -> None:
    child.process.wait(timeout=10)
    assert child.exit_code is not None


def await_pid(path) -> psutil.Process:
    deadline = time.monotonic() + 10
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return psutil.Process(int(path.read_text()))


def gone(process: psutil.Process, limit_s: float = 5.0) -> bool:
    deadline = time.monotonic() + limit_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_what_dies_is_started_again_and_told(make):
    actor = make("actor-0", SLEEP)
    assert make.cluster.revive() == []
    first = actor.process.pid
    actor.process.kill()
    await_end(actor)
    [event] = make.cluster.revive()
    assert "actor-0 had died (ended by SIGKILL, as the system does for want of memory); started again" in event
    assert actor.process.pid != first and actor.exit_code is None


def test_the_limit_counts_starts_in_vain_and_tells_the_end_of_the_log(make):
    server = make("server-0", "print('loading'); raise SystemExit('no memory left')")
    for _ in range(clusters.MOST_IN_VAIN):
        await_end(server)
        make.cluster.revive()
    await_end(server)
    with pytest.raises(StartError) as error:
        make.cluster.revive()
    text = str(error.value)
    assert f"server-0 died {clusters.MOST_IN_VAIN + 1} times in a row before it was of use" in text
    assert "exit code 1" in text and str(server.log_path) in text
    assert "loading" in text and "no memory left" in text and "run.resume=true" in text


def test_a_useful_life_clears_the_count(make):
    learner = make("learner", "raise SystemExit(1)")
    for _ in range(clusters.MOST_IN_VAIN + 2):
        learner.useful = True
        await_end(learner)
        assert make.cluster.revive()
    assert learner.in_vain == 0


def test_what_a_restart_would_not_mend_ends_the_run_at_once(make):
    await_end(make("actor-0", "print('error: no such environment'); raise SystemExit(3)"))
    with pytest.raises(StartError, match=r"actor-0: no such environment \(exit code 3"):
        make.cluster.revive()


def test_an_actor_that_was_sent_away_is_not_missed_at_once_and_a_learner_that_is_through_never(make, monkeypatch):
    await_end(make("learner", ""))
    actor = make("actor-0", "")
    await_end(actor)
    assert make.cluster.revive() == []
    monkeypatch.setattr(clusters, "SETTLE_S", 0.0)
    [event] = make.cluster.revive()
    assert event.startswith("actor-0 had died (exit code 0)")


def test_pauses_grow(tmp_path):
    child = Child("server-0", [], {}, tmp_path / "log")
    pauses = []
    for child.in_vain in range(7):
        pauses.append(clusters._pause_s(child))
    assert pauses == [0, 0, 2, 4, 8, 16, 16]


def test_who_has_been_of_use_is_read_from_the_snapshot(make):
    actor, server, learner = make("actor-0", SLEEP), make("server-0", SLEEP), make("learner", SLEEP)
    row = {"id": "actor-0", "pid": actor.process.pid, "held": 0}
    servers = [{"url": server_urls(make.cluster.config)[0], "state": "current", "silent_s": 0.0}]

    def seen(version=4, **changes):
        make.cluster.saw({"actors": [row | changes], "servers": servers, "run": {"version": version}})
        return actor.useful, server.useful, learner.useful

    assert seen() == (False, False, False)
    assert seen(held=1, pid=1) == (False, False, False)  # a row about the process before
    assert seen(held=1) == (True, False, False)
    server.started_at -= 2 * clusters.STALE_S
    assert seen() == (True, True, False)
    assert seen(version=5) == (True, True, True)
    make.cluster.saw({})  # before there is anything to see


def test_a_server_that_hangs_for_longer_than_a_start_may_take_is_killed_and_started_again(make):
    server = make("server-0", SLEEP)
    server.process.send_signal(signal.SIGSTOP)
    limit = make.cluster.config.server.start_timeout_s
    row = {"url": server_urls(make.cluster.config)[0], "state": "unreachable", "silent_s": limit - 1}
    server.started_at -= 2 * limit
    make.cluster.saw({"servers": [row]})
    assert server.exit_code is None
    make.cluster.saw({"servers": [row | {"silent_s": limit + 1}]})
    await_end(server)
    assert "server-0 had died" in make.cluster.revive()[0]
    make.cluster.saw({"servers": [row | {"silent_s": limit + 1}]})  # still about the one before
    assert server.exit_code is None


def test_a_server_that_has_stopped_listening_is_killed_and_one_that_loads_is_not(make, monkeypatch, tmp_path):
    """As vLLM's API server does when its engine is gone: the socket is closed, the process stays."""
    monkeypatch.setattr(clusters, "LISTEN_S", 0.0)
    monkeypatch.setattr(clusters, "DEAF_S", 0.3)
    port, shut = make.cluster.config.server.port, tmp_path / "shut"
    code = (
        "import pathlib, socket, time; print('loading', flush=True); time.sleep(0.5)\n"
        f"s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True)\n"
        f"while not pathlib.Path({str(shut)!r}).exists(): time.sleep(0.02)\n"
        "s.close(); time.sleep(60)"
    )
    server = make("server-0", code)
    deadline = time.monotonic() + 10
    while server.last_words() != "up" or time.monotonic() < deadline - 9:
        make.cluster.revive()
        assert server.exit_code is None and time.monotonic() < deadline
        time.sleep(0.05)
    shut.touch()
    first = server.process.pid
    while server.process.pid == first:
        make.cluster.revive()
        assert time.monotonic() < deadline + 5
        time.sleep(0.05)
    assert server.exit_code is None  # the new one loads


def test_nothing_is_left_of_a_session_whose_leader_was_killed(make, tmp_path):
    """As a stopped engine core would stay when its API server dies, with all its memory."""
    note = tmp_path / "pid"
    code = f"import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); "
    code += f"print(c.pid, file=open({str(note)!r}, 'w')); time.sleep(60)"
    server = make("server-0", code)
    engine = await_pid(note)
    engine.send_signal(signal.SIGSTOP)
    server.process.kill()
    await_end(server)
    assert engine.is_running()
    make.cluster.revive()
    assert gone(engine)


def test_a_stubborn_or_stopped_process_is_killed_after_its_grace_and_at_once_in_a_hurry(make):
    deaf = make(
        "server-0", "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    stopped = make("server-1", SLEEP)
    stopped.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while deaf.last_words() != "deaf" and time.monotonic() < deadline:
        time.sleep(0.02)
    hurried = time.monotonic() + 0.5
    terminate([deaf, stopped], 30.0, hurry=lambda: time.monotonic() > hurried)
    assert time.monotonic() - hurried < 3 and deaf.exit_code == stopped.exit_code == -signal.SIGKILL


def test_children_end_with_a_supervisor_that_is_killed(tmp_path):
    note = tmp_path / "pid"
    code = (
        "import sys, time; from pathlib import Path; from learner.servers.processes import Child\n"
        f"child = Child('c', [sys.executable, '-c', {SLEEP!r}], {{}}, Path({str(tmp_path / 'log')!r}))\n"
        f"child.start(); print(child.process.pid, file=open({str(note)!r}, 'w')); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=os.path.dirname(os.path.dirname(__file__)))
    child = await_pid(note)
    parent.kill()
    parent.wait(10)
    assert gone(child)
