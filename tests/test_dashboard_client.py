"""Attaching: over real sockets to stubs and to the real gateway, and on a pseudo-terminal as a person does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from learner.dashboard import DashboardClient, LearnerRefused, LearnerSilent, run_dashboard
from learner.gateway.watchers import PAGE, Watchers
from learner.run.history import NEWEST, SPREAD, History
from protocol.codec import encode
from protocol.messages import Reject, Status
from tests.gateway_stub import GatewayStub, status_at
from tests.synthetic_snapshot import synthetic_snapshot
from tests.terminal import Terminal

ROOT = Path(__file__).parents[1]


def test_client_keeps_the_history_and_asks_for_the_new_steps_only():
    with GatewayStub(status_at(10)) as gateway, DashboardClient(gateway.address) as client:
        assert len(client.snapshot()["history"]) == 10
        gateway.answer = status_at(12)
        assert [r["step"] for r in client.snapshot()["history"]] == list(range(1, 13))
        assert gateway.requests[-1].since_step == 11
        gateway.answer = status_at(5)  # the learner went back to a checkpoint
        assert [r["step"] for r in client.snapshot()["history"]] == list(range(1, 6))


def test_client_gives_up_in_time_and_recovers():
    with GatewayStub(lambda request: None) as gateway, DashboardClient(gateway.address) as client:
        start = time.monotonic()
        with pytest.raises(LearnerSilent, match=gateway.address):
            client.snapshot(timeout_s=0.3)
        assert time.monotonic() - start < 2
        gateway.answer = status_at(3)
        assert client.snapshot()["run"]["step"] == 3


def test_client_passes_a_refusal_on():
    with (
        GatewayStub(lambda request: Reject(reason="another protocol")) as gateway,
        DashboardClient(gateway.address) as client,
        pytest.raises(LearnerRefused, match="another protocol"),
    ):
        client.snapshot()


def answers_of(watchers, state, step):
    """A gateway that has ``step`` steps and shows its watchers what they lack. state: its slow sections."""

    def answer(request):
        watchers.asked(b"one", request.since_step, 0.0)
        snapshot = {**synthetic_snapshot(step), **state}
        snapshot["history"] = [r for r in snapshot["history"] if r["step"] >= request.since_step]
        return Status(snapshot=watchers.news(b"one", snapshot))

    return answer


def test_a_long_history_comes_in_pages_and_then_only_what_is_new_travels():
    state = {name: synthetic_snapshot()[name] for name in ("latest", "evals")}
    steps = 3 * PAGE
    with GatewayStub(answers_of(Watchers(8), state, steps)) as gateway, DashboardClient(gateway.address) as client:
        while len(client.snapshot()["history"]) < steps:
            assert len(gateway.requests) < 10
        first = max(gateway.sent)
        snapshot = client.snapshot()
        assert snapshot["latest"] == state["latest"] and snapshot["evals"] == state["evals"]
        assert gateway.sent[-1] < 3_000 < first < 200_000  # two actors and a server, twice a second
        whole = sum(map(len, encode(Status(snapshot={**synthetic_snapshot(steps), **state}))))
        assert whole > 30 * gateway.sent[-1]


def test_of_very_many_dashboards_those_that_asked_last_are_remembered():
    watchers = Watchers(2)
    for i, name in enumerate((b"a", b"b", b"a", b"c")):
        watchers.asked(name, i, float(i))
    assert watchers.present(3.0) == [(b"a", 2), (b"c", 3)] and watchers.present(9.0) == []


def test_a_history_of_any_length_keeps_its_shape():
    history = History()
    for step in range(1, 20_001):
        history.append({"step": step})
    steps = [record["step"] for record in history.since(0)]
    assert len(steps) <= NEWEST + SPREAD and steps[-NEWEST:] == list(range(20_001 - NEWEST, 20_001))
    gaps = {b - a for a, b in zip(steps, steps[1:-NEWEST], strict=False)}
    assert len(gaps) == 1 and SPREAD / 2 <= len(steps) - NEWEST <= SPREAD  # evenly over all before
    history.append({"step": 19_990})  # the learner went back
    assert history.last_step == 19_990 and history.since(19_989) == [{"step": 19_989}, {"step": 19_990}]
    history.cut(100)
    assert history.last_step <= 100 and len(history) > 0


@pytest.mark.parametrize(
    ("address", "words"),
    [("tcp://127.0.0.1:9", "no learner answers at tcp://127.0.0.1:9"), ("nonsense", "not an address")],
)
def test_no_learner_is_one_clear_line(address, words, capsys):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert run_dashboard(address, connect_s=0.3) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


# ── on a terminal ────────────────────────────────────────────────────────────


@pytest.fixture
def attach():
    opened = []

    def open_(address, **options):
        code = (
            f"import sys; from learner.dashboard import run_dashboard; sys.exit(run_dashboard({address!r}, lost_s=3.0))"
        )
        opened.append(Terminal("-c", code, **{"width": 120, "height": 36, **options}))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda t: t.send(b"q"), 0),
        (lambda t: t.process.send_signal(signal.SIGINT), 0),
        (lambda t: t.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda t: t.process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["q", "SIGINT", "SIGTERM", "SIGHUP"],
)
def test_terminal_is_given_back(attach, end, code):
    with GatewayStub(status_at(4)) as gateway:
        t = attach(gateway.address)
        t.wait_for("pipeline")
        end(t)
        assert t.end() == code and t.given_back()


def test_keys_resize_and_the_crash_of_the_learner(attach):
    with GatewayStub(status_at(4)) as gateway:
        t = attach(gateway.address, width=80, height=24)
        t.wait_for("step 4/60", line=0)
        t.wait_for("help", line=23)
        t.send(b"2")
        t.wait_for("entropy")
        t.send(b"\t")
        t.wait_for("HEALTH")
        t.resize(130, 40)
        t.wait_for("VERSION")
        t.wait_for("help", line=39)
        t.send(b"/actor-1\r")
        t.wait_for("filter: actor-1")
        t.send(b"\x1b")
        t.send(b"?")
        t.wait_for("the pages")
        t.send(b"x")
        t.send(b"p")
        t.wait_for("paused")
        gateway.answer = status_at(9)
        time.sleep(1.2)
        assert "step 4/60" in t.text
        t.send(b"p1")
        t.wait_for("step 9/60")
        gateway.answer = lambda request: None  # kill -9
        t.wait_for("this is the last picture")
        assert t.end() == 1 and t.given_back()
        assert "has not answered for" in t.text


def test_a_small_window_says_what_it_needs_and_a_larger_one_shows_it(attach):
    with GatewayStub(status_at(4)) as gateway:
        t = attach(gateway.address, width=40, height=8)
        t.wait_for("the full page needs 72×20")
        t.resize(100, 30)
        t.wait_for("latest episode")
        t.send(b"q")
        assert t.end() == 0 and t.given_back()


def test_without_colour_the_page_is_whole(attach):
    with GatewayStub(status_at(4)) as gateway:
        t = attach(gateway.address, NO_COLOR="1")
        t.wait_for("▲ servers")
        assert b"38;" not in t.raw and b"48;" not in t.raw
        t.send(b"q")
        assert t.end() == 0


def watch(t, gateway, answers):
    asked = len(gateway.requests)
    while len(gateway.requests) < asked + answers:
        t._read(0.1)


def test_a_slow_link_gets_only_the_lines_that_changed(attach):
    with GatewayStub(status_at(4)) as gateway:
        t = attach(gateway.address)
        t.wait_for("step 4/60")
        t.wait_for("? help")
        watch(t, gateway, answers=2)  # the rest of the first picture
        whole = len(t.raw)
        watch(t, gateway, answers=4)
        assert len(t.raw) - whole < 0.1 * whole  # nothing happened meanwhile: the same picture, not sent again
        t.send(b"q")
        assert t.end() == 0


def test_several_watch_at_once_and_the_end_of_the_run_ends_them(attach):
    def done(request):
        status = status_at(3)(request)
        status.snapshot["run"]["phase"] = "done"
        return status

    with GatewayStub(status_at(3)) as gateway:
        terminals = [attach(gateway.address) for _ in range(2)]
        for t in terminals:
            t.wait_for("step 3/60")
        gateway.answer = done
        for t in terminals:
            t.wait_for("the run is over")
        gateway.answer = lambda request: None
        assert [t.end() for t in terminals] == [0, 0] and all(t.given_back() for t in terminals)


def test_without_a_terminal_there_are_log_lines():
    def done(request):
        status = status_at(3)(request)
        status.snapshot["run"]["phase"] = "done"
        return status if len(gateway.requests) < 2 else None

    with GatewayStub(done) as gateway:
        code = f"import sys; from learner.dashboard import run_dashboard; sys.exit(run_dashboard({gateway.address!r}))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert ran.returncode == 0 and "\x1b" not in ran.stdout
    assert "step 3/60" in ran.stdout and "done" in ran.stdout


def test_dashboard_needs_no_torch():
    modules = "learner.dashboard.replay, learner.run.folder, learner.run.summary, learner.run.transcript"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ran.stdout.strip() == "False", ran.stderr
