"""Who waits for what, in words: judged without a clock, then over a live gateway."""

from __future__ import annotations

import logging
import time

import pytest

from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway, WaitTimeout
from learner.gateway.watchdog import Watchdog, describe_servers
from tests.wire_samples import config, free_port, tasks

URL = "http://127.0.0.1:8100"


def told(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.name == "rollway.watchdog"]


def run(dog: Watchdog, seconds: range, phase: str, mark=0, tokens=0) -> None:
    for now in seconds:
        dog.look(float(now), phase, mark, tokens, lambda: "2 actors hold 16 leases")


def test_silence_is_told_at_the_limit_and_whenever_it_has_doubled(caplog):
    caplog.set_level(logging.INFO)
    dog = Watchdog(45.0)
    run(dog, range(0, 45), "wait")
    assert dog.message == "" and told(caplog) == []
    run(dog, range(45, 200), "wait")
    says = "no group for {} s, no tokens sampled meanwhile: 2 actors hold 16 leases"
    assert told(caplog) == [says.format(45), says.format(90), says.format(180)]
    assert dog.message == says.format(199)  # what is shown is of now
    run(dog, range(200, 202), "wait", mark=1)
    assert dog.message == "" and told(caplog)[-1] == "it goes on after 200 s"


def test_it_tells_whether_tokens_flow_and_what_the_phase_waits_for():
    dog = Watchdog(45.0)
    dog.look(0.0, "eval", 0, 100, str)
    dog.look(60.0, "eval", 0, 350, lambda: "…")
    assert dog.message == "no evaluation episode for 60 s, 250 tokens sampled meanwhile: …"
    dog.look(61.0, "push", 0, 350, str)
    dog.look(120.0, "push", 0, 10, lambda: "…")  # an actor with its count has left
    assert dog.message == "no push is through for 59 s, no tokens sampled meanwhile: …"


def test_work_of_its_own_is_told_only_where_it_takes_longer_than_ever(caplog):
    dog = Watchdog(45.0)
    at = 0
    for _ in range(3):
        for now in range(at, at + 100):
            run(dog, range(now, now + 1), "update", mark=now)  # groups arrive all the time
        run(dog, range(at + 100, at + 102), "wait")
        at += 102
    assert [text for text in told(caplog) if "update" in text] == [
        "the learner has been in its update for 45 s",
        "the learner has been in its update for 90 s",
    ]  # of the first, not of those that took as long


def test_a_start_and_an_end_are_no_silence(caplog):
    dog = Watchdog(45.0)
    for phase in ("", "start", "done"):
        run(dog, range(1000), phase)
    assert dog.message == "" and told(caplog) == []


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "nothing known about the servers yet"),
        (
            [{"url": URL, "state": "unreachable", "error": "it has not answered for 50 s"}],
            f"server {URL}: it has not answered for 50 s",
        ),
        ([{"url": URL, "state": "updating", "error": None}], f"server {URL}: updating"),
        (
            [{"url": URL, "state": "current", "error": None, "running": 3.0, "waiting": 1.0}] * 2,
            "2 servers answer, 6 requests running and 2 waiting",
        ),
        ([{"url": URL, "state": "excluded", "error": "x"}] * 6, ", ".join([f"server {URL}: x"] * 4) + ", 2 more"),
    ],
)
def test_servers_in_words(rows, says):
    assert describe_servers(rows).startswith(says)


@pytest.fixture
def gateway():
    settings = config(heartbeat_s=0.2, port=free_port())
    settings.gateway.watchdog_s = 1.0
    gateway = Gateway(settings, Ledger(":memory:", tasks(8), 0), "run", {})
    gateway.start()
    gateway.publish("servers", [{"url": URL, "state": "unreachable", "error": "it has not answered for 50 s"}])
    yield gateway
    gateway.stop("over")


def test_a_dashboard_is_shown_it_and_the_time_out_names_it(gateway, caplog):
    gateway.publish("run", {"phase": "wait", "message": "as before"})
    assert gateway.snapshot()["run"]["message"] == "as before"
    deadline = time.monotonic() + 10
    while "no group" not in (message := gateway.snapshot()["run"]["message"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "no actor is connected" in message and "has not answered for 50 s" in message
    assert message.split(":")[1] in told(caplog)[0]
    with pytest.raises(
        WaitTimeout, match=r"waited 0\.1 s for a batch .*no actor is connected.*has not answered for 50 s"
    ):
        gateway.take_batch(2, 0.1)
    gateway.set_version(1)
    deadline = time.monotonic() + 10
    while gateway.snapshot()["run"]["message"] != "as before":
        assert time.monotonic() < deadline
        time.sleep(0.05)
