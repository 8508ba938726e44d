"""Gateway and link over real sockets: whole groups across, and every way that the wire breaks."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
import time
from contextlib import asynccontextmanager

import msgpack
import pytest
import zmq

from actors.link import Link, LinkError
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway, Interrupted, StartError, WaitTimeout
from protocol.codec import ProtocolError, decode, encode
from protocol.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Heartbeat,
    Hello,
    Leases,
    Reject,
    Shutdown,
    Status,
    StatusRequest,
)
from tests.wire_samples import assert_same, config, free_port, group_of, tasks

BEAT = 0.2


def make_gateway(port, path=":memory:", task_count=20, **options) -> Gateway:
    settings = config(heartbeat_s=BEAT, port=port, **options)
    gateway = Gateway(settings, Ledger(path, tasks(task_count), 0), "run", {"sampling": {"top_p": 1.0}})
    gateway.start()
    return gateway


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def gateway(port):
    gateway = make_gateway(port)
    yield gateway
    gateway.stop("test over")


@asynccontextmanager
async def linked(port, actor_id="actor-0", timeout_s=5.0):
    link = Link(f"tcp://127.0.0.1:{port}", actor_id, BEAT)
    welcome = await link.connect(timeout_s)
    try:
        yield link, welcome
    finally:
        await link.goodbye()


@asynccontextmanager
async def raw_peer(port, identity=b"stranger"):
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.setsockopt(zmq.IDENTITY, identity)
    peer.setsockopt(zmq.RCVTIMEO, 5000)
    peer.connect(f"tcp://127.0.0.1:{port}")
    try:
        yield peer
    finally:
        context.destroy(linger=0)


async def ask(peer, message):
    peer.send_multipart(encode(message))
    return decode(await asyncio.to_thread(peer.recv_multipart))[0]


async def leases_of(link, count):
    """The next ``count`` leases, in order of their issue."""
    leases = []
    while len(leases) < count:
        event = await asyncio.wait_for(link.next_event(), 5)
        assert isinstance(event, Leases), event
        leases += event.leases
    return leases


async def until(condition, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        await asyncio.sleep(0.01)


async def die(gateway):
    """Be gone without a word, as after kill -9."""
    gateway._dispatcher.shutdown = lambda reason: []
    await asyncio.to_thread(gateway.stop, "")


def report(link, capacity=4, held=(), **stats):
    link.update(capacity, list(held), {}, stats)


# ── the way it should go ─────────────────────────────────────────────────────


async def test_groups_cross_unchanged_and_are_consumed_once(port, gateway):
    gateway.set_servers(["http://server"])
    async with linked(port) as (link, welcome):
        assert welcome.config == {"sampling": {"top_p": 1.0}} and welcome.servers == ["http://server"]
        report(link)
        leases = await leases_of(link, 4)
        sent = [group_of(lease, version=0) for lease in leases]
        report(link, held=[lease.lease_id for lease in leases])
        await asyncio.gather(*(link.deliver(group) for group in reversed(sent)))
        received = await asyncio.to_thread(gateway.take_batch, 2, 5.0)
        for left, right in zip(sent, received, strict=False):
            assert_same(left, right)
        gateway.commit(1)
        gateway.set_version(1)
        gateway.checkpointed(1)
        await until(lambda: link.version == 1)
        assert link.servers == ["http://server"] and link.learner_age_s < 1
    assert gateway.audit() == {"consumed": 2, "duplicates": 0, "lost": 0, "stale_dropped": 0}


async def test_evaluation_while_training_is_paused(port, gateway):
    gateway.pause_training(True)
    wanted = tasks(3)
    result = asyncio.create_task(asyncio.to_thread(gateway.evaluate, wanted, 0, 5.0))
    async with linked(port) as (link, _):
        report(link)
        for lease in await leases_of(link, 3):
            assert lease.purpose == "eval"
            episode = group_of(lease)
            episode.trajectories[0].facts["task_id"] = lease.task.task_id
            await link.deliver(episode)
        assert [t.facts["task_id"] for t in await result] == [task.task_id for task in wanted]
    assert gateway.snapshot()["queue"]["leased"] == 0


async def test_a_dashboard_is_shown_the_end_though_it_did_not_ask_again(port, gateway):
    gateway.append_history({"step": 1})
    async with raw_peer(port, b"dashboard") as peer:
        await ask(peer, StatusRequest(protocol=PROTOCOL_VERSION, since_step=2))
        gateway.publish("run", {"phase": "done"})
        await asyncio.to_thread(gateway.stop, "over")
        last = decode(await asyncio.to_thread(peer.recv_multipart))[0]
    assert last.snapshot["run"]["phase"] == "done" and last.snapshot["history"] == []


async def test_status_shows_everything_and_history_from_a_step_on(port, gateway):
    gateway.publish("run", {"phase": "wait", "step": 1})
    gateway.publish("run", {"phase": "update"})
    gateway.publish("latest", {"text": "…"})
    gateway.publish("servers", [{"url": "http://server"}])
    for step in range(5):
        gateway.append_history({"step": step})
    async with linked(port) as (link, _), raw_peer(port, b"dashboard") as peer:
        report(link, tokens_per_s=5.0)
        await leases_of(link, 4)
        status = await ask(peer, StatusRequest(protocol=PROTOCOL_VERSION, since_step=3))
        assert isinstance(status, Status)
        shown = status.snapshot
        assert abs(shown["run"].pop("now") - time.time()) < 5
        assert shown["run"] == {"phase": "update", "step": 1}
        assert shown["history"] == [{"step": 3}, {"step": 4}]
        assert (
            shown["servers"] == [{"url": "http://server"}] and shown["latest"] == {"text": "…"} and shown["evals"] == []
        )
        assert shown["queue"].items() >= {
            "pending": 16, "leased": 4, "waiting": 0, "taken": 0, "capacity": 4, "consumed": 0, "duplicates": 0,
            "lost": 0, "stale_dropped": 0, "failed": 0, "epoch": 0, "rejected_frames": 0,
        }.items()  # fmt: skip
        (row,) = shown["actors"]
        assert row.keys() == {"id", "host", "pid", "age_s", "held", "evaluating", "capacity", "stats"}
        assert (row["id"], row["held"], row["capacity"], row["stats"]) == ("actor-0", 4, 4, {"tokens_per_s": 5.0})
    with pytest.raises(KeyError):
        gateway.publish("nonsense", {})


async def test_stop_tells_actors_why(port, gateway):
    async with linked(port) as (link, _):
        await asyncio.to_thread(gateway.stop, "the run is over")
        assert await asyncio.wait_for(link.next_event(), 20) == Shutdown(reason="the run is over")


# ── strangers ────────────────────────────────────────────────────────────────


async def test_strangers_are_rejected_counted_and_harmless(port, gateway):
    impostor = Hello(protocol=PROTOCOL_VERSION, actor_id="somebody-else", host="h", pid=1)
    garbage = [
        [b""],
        [b"\x93garbage", b"x" * 100],
        [b"\0" * 50_000] * 7,
        [msgpack.packb({"type": "ack", "lease_id": "x"})],  # not for us to hear
        encode(impostor),
        [msgpack.packb({"type": "hello", "protocol": 99})],
    ]
    async with linked(port) as (link, _), raw_peer(port) as peer:
        for frames in garbage:
            peer.send_multipart(frames)
            answer, _ = decode(await asyncio.to_thread(peer.recv_multipart))
            assert isinstance(answer, Reject)
        assert "run the same release of Rollway" in answer.reason
        with socket.create_connection(("127.0.0.1", port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        assert gateway.snapshot()["queue"]["rejected_frames"] == len(garbage)
        report(link)
        assert await leases_of(link, 4)
        assert [row["id"] for row in gateway.snapshot()["actors"]] == ["actor-0"]


async def test_a_rejected_actor_learns_why(port, gateway, monkeypatch):
    monkeypatch.setattr("protocol.messages.PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    words = f"rejects this actor: protocol version {PROTOCOL_VERSION + 1} met version {PROTOCOL_VERSION}"
    with pytest.raises(LinkError, match=words):
        await Link(f"tcp://127.0.0.1:{port}", "actor-0", BEAT).connect(5.0)


# ── what breaks ──────────────────────────────────────────────────────────────


def test_a_port_in_use_is_one_clear_line(port, gateway):
    with pytest.raises(StartError) as error:
        make_gateway(port)
    assert f"cannot listen on tcp://127.0.0.1:{port}: Address already in use" in str(error.value)
    assert "gateway.port" in str(error.value) and "\n" not in str(error.value)


async def test_a_learner_that_is_not_there(port):
    with pytest.raises(LinkError, match=f"no learner answers at tcp://127.0.0.1:{port} after 0.3 s: start it with"):
        await Link(f"tcp://127.0.0.1:{port}", "actor-0", BEAT).connect(0.3)
    assert "link" not in [thread.name for thread in threading.enumerate()]


async def test_a_batch_that_does_not_come_says_who_waits_for_what(port, gateway):
    with pytest.raises(WaitTimeout, match=r"waited 0\.1 s for a batch of 2 groups: .*no actor is connected"):
        gateway.take_batch(2, 0.1)
    async with linked(port) as (link, _):
        report(link)
        leases = await leases_of(link, 4)
        await link.deliver(group_of(leases[0]))
        with pytest.raises(WaitTimeout, match=r"1 groups delivered, 3 leased to actor-0 \(last heard 0 s ago\)"):
            gateway.take_batch(2, 0.1)


def work_until_killed(port):
    async def work():
        link = Link(f"tcp://127.0.0.1:{port}", "doomed", BEAT)
        await link.connect(10.0)
        held = []
        while True:
            report(link, held=held)
            event = await link.next_event()
            held += [lease.lease_id for lease in event.leases]

    asyncio.run(work())


async def test_a_killed_actor_is_noticed_and_its_units_go_elsewhere(port, gateway):
    process = multiprocessing.get_context("spawn").Process(target=work_until_killed, args=(port,))
    process.start()
    try:
        await until(lambda: gateway.snapshot()["queue"]["leased"] == 4, 30)
    finally:
        process.kill()
        process.join()
    began = time.monotonic()
    async with linked(port) as (link, _):
        report(link)
        leases = await leases_of(link, 4)
        assert time.monotonic() - began < 5 * BEAT + 3  # a loaded machine
        assert [row["id"] for row in gateway.snapshot()["actors"]] == ["actor-0"]
        for lease in leases:
            await link.deliver(group_of(lease))
    assert len(gateway.take_batch(2, 5.0)) == 2
    assert gateway.snapshot()["queue"]["reissued"] == 4


async def test_heartbeats_continue_while_the_event_loop_is_blocked(port, gateway):
    async with linked(port) as (link, _):
        report(link)
        leases = await leases_of(link, 4)
        report(link, held=[lease.lease_id for lease in leases])
        time.sleep(12 * BEAT)  # blocks the loop on purpose, for longer than silence is borne
        queue = gateway.snapshot()["queue"]
        assert (queue["leased"], queue["reissued"]) == (4, 0)


async def test_a_restarted_learner_is_found_again_and_gets_the_group(port, tmp_path):
    first = make_gateway(port, tmp_path / "ledger.sqlite")
    async with linked(port, timeout_s=20.0) as (link, _):
        report(link)
        leases = await leases_of(link, 4)
        report(link, held=[lease.lease_id for lease in leases])
        await die(first)
        delivery = asyncio.create_task(link.deliver(group_of(leases[0])))
        await asyncio.sleep(3 * BEAT)
        assert not delivery.done()
        second = await asyncio.to_thread(make_gateway, port, tmp_path / "ledger.sqlite")
        try:
            await asyncio.wait_for(delivery, 10)
            died = {lease.lease_id for lease in leases[1:]}  # with the learner
            while died:
                match await asyncio.wait_for(link.next_event(), 5):
                    case Cancel(lease_ids=lease_ids):
                        died -= {*lease_ids}
            report(link, capacity=9)
            await until(lambda: second.snapshot()["queue"]["leased"] == 3)
            await link.deliver(group_of(leases[0]))
            assert second.audit()["duplicates"] == 1
        finally:
            await asyncio.to_thread(second.stop, "over")


async def test_a_lost_group_is_sent_again_and_held_until_acknowledged(port, gateway, monkeypatch):
    hear, lost = gateway._dispatcher.on_message, []

    def lose_the_first(actor_id, message, group, now):
        if group is None or lost:
            return hear(actor_id, message, group, now)
        lost.append(group)
        return []

    monkeypatch.setattr(gateway._dispatcher, "on_message", lose_the_first)
    async with linked(port) as (link, _):
        report(link)
        leases = await leases_of(link, 4)
        report(link, held=[lease.lease_id for lease in leases[1:]])  # the link itself vouches for the first
        await asyncio.wait_for(link.deliver(group_of(leases[0])), 10)
        queue = gateway.snapshot()["queue"]
        assert (len(lost), queue["waiting"], queue["reissued"], queue["duplicates"]) == (1, 1, 0, 0)


async def test_another_run_at_the_same_address_is_noticed(port):
    first = make_gateway(port)
    async with linked(port, timeout_s=20.0) as (link, _):
        await die(first)
        second = await asyncio.to_thread(make_gateway, port)
        try:
            with pytest.raises(LinkError, match="another run"):
                await asyncio.wait_for(link.next_event(), 10)
        finally:
            await asyncio.to_thread(second.stop, "over")


async def test_a_learner_that_stays_away_ends_every_wait(port):
    gateway = make_gateway(port)
    async with linked(port, timeout_s=0.5) as (link, _):
        report(link)
        leases = await leases_of(link, 4)
        await die(gateway)
        with pytest.raises(LinkError, match=r"silent for 0\.5 s"):
            await asyncio.wait_for(link.deliver(group_of(leases[0])), 5)
        with pytest.raises(LinkError):
            await link.next_event()
        with pytest.raises(LinkError):
            await link.deliver(group_of(leases[1]))


async def test_an_invalid_group_fails_at_the_actor(port, gateway):
    async with linked(port) as (link, _):
        report(link)
        lease, *others = await leases_of(link, 4)
        bad = group_of(lease)
        bad.trajectories[0].rewards[-1] = float("nan")
        with pytest.raises(ProtocolError, match="rewards: not finite"):
            await link.deliver(bad)
        report(link, held=[other.lease_id for other in others])
        await link.fail(lease.lease_id, "a reward is NaN")
        (again,) = await leases_of(link, 1)
        assert again.task == lease.task and again.seed != lease.seed


async def test_a_reconnecting_actor_takes_its_name_over(port, gateway):
    async with raw_peer(port, b"actor-0") as peer:
        await ask(peer, Hello(protocol=PROTOCOL_VERSION, actor_id="actor-0", host="h", pid=1))
        await ask(peer, Heartbeat(actor_id="actor-0", capacity=2, held=[]))
        async with linked(port, "actor-0") as (link, _):
            report(link)
            assert len(await leases_of(link, 4)) == 4


def test_stop_is_idempotent_and_works_before_start(port):
    gateway = Gateway(config(port=port), Ledger(":memory:", tasks(2), 0), "run", {})
    gateway.stop("never started")
    gateway = make_gateway(port)
    gateway.stop("once")
    gateway.stop("twice")
    assert "gateway" not in [thread.name for thread in threading.enumerate()]


def test_a_crash_of_the_thread_reaches_the_learner(port, gateway, monkeypatch):
    monkeypatch.setattr(gateway._dispatcher, "tick", lambda now: 1 / 0)
    with pytest.raises(RuntimeError, match=r"thread died.*ZeroDivisionError"):
        gateway.take_batch(1, 10.0)


async def test_an_interrupt_ends_waits_now_and_later(gateway):
    threading.Timer(0.3, gateway.interrupt).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        await asyncio.to_thread(gateway.take_batch, 1, 30.0)
    with pytest.raises(Interrupted):
        gateway.take_batch(1, 30.0)
    assert time.monotonic() - began < 5


async def test_a_learner_that_crashes_does_not_send_its_actors_away(port):
    gateway = make_gateway(port)
    async with linked(port) as (link, _):
        await asyncio.to_thread(gateway.stop, "crashed", dismiss=False)
        event = asyncio.ensure_future(link.next_event())
        await asyncio.sleep(1.0)
        assert not event.done() or isinstance(event.result(), Leases)
        event.cancel()
