"""Strangers at the gateway, over real sockets: what they learn, what they can disturb, and what an honest peer is told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgpack
import psutil
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.link import Link, LinkError
from actors.wire import WireThread
from benchmarks import fuzz_gateway
from benchmarks.attackers import Raw, greeting, make_attackers, zmtp
from benchmarks.garbage import valid
from configs.load import ConfigError, load_config
from configs.security import is_loopback
from learner.dashboard import DashboardClient, LearnerRefused
from learner.gateway.doorkeeper import Doorkeeper, frame_cost
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway, StartError
from learner.servers.serving import ServerError, check_address
from protocol import keys as keyfiles
from protocol.codec import ProtocolError, decode, encode
from protocol.keys import DASHBOARD, ClientKeys, KeysError, LearnerKeys, make_keys
from protocol.limits import MAX_DEPTH, Limits, TooMuch, check_shape
from protocol.messages import PROTOCOL_VERSION, Goodbye, Heartbeat, Hello, Leases, Reject, StatusRequest
from tests.wire_samples import config, free_port, group_of, tasks

BEAT = 0.2
ROOT = Path(__file__).parents[1]
HELLO = Hello(protocol=PROTOCOL_VERSION, actor_id="stranger", host="h", pid=1)


def open_gateway(port, **options) -> Gateway:
    settings_ = config(heartbeat_s=BEAT, port=port)
    settings_.gateway = settings_.gateway.model_copy(update=options)
    gateway = Gateway(settings_, Ledger(":memory:", tasks(20), 0), "run", {"sampling": {"top_p": 1.0}})
    gateway.start()
    return gateway


@pytest.fixture
def port():
    return free_port()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, "actor")
    return folder


@pytest.fixture(scope="module")
def other_keys(tmp_path_factory):
    """Keys of another learner."""
    folder = tmp_path_factory.mktemp("other") / "keys"
    make_keys(folder, "actor")
    return folder


@contextmanager
def running(port, **options):
    gateway = open_gateway(port, **options)
    try:
        yield gateway
    finally:
        gateway.stop("test over")


@asynccontextmanager
async def linked(port, keys=None, actor_id="actor-0", timeout_s=10.0):
    link = Link(f"tcp://127.0.0.1:{port}", actor_id, BEAT, functools.partial(WireThread, keys=keys))
    await link.connect(timeout_s)
    try:
        yield link
    finally:
        await link.goodbye()


@contextmanager
def dealer(port, keys=None, identity=b"stranger"):
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.setsockopt(zmq.IDENTITY, identity)
    peer.setsockopt(zmq.RCVTIMEO, 5000)
    if keys:
        keys.apply(peer)
    peer.connect(f"tcp://127.0.0.1:{port}")
    try:
        yield peer
    finally:
        context.destroy(linger=0)


async def leases_of(link, count=4):
    """All the leases that there are for an honest actor of a gateway that was just opened."""
    link.update(count, [], {}, {})
    leases = []
    while len(leases) < count:
        event = await asyncio.wait_for(link.next_event(), 10)
        leases += event.leases if isinstance(event, Leases) else []
    link.update(count, [lease.lease_id for lease in leases], {}, {})
    return leases


async def is_served(link, leases=None) -> None:
    """An honest actor's group is taken, in time."""
    leases = leases or await leases_of(link)
    await asyncio.wait_for(link.deliver(group_of(leases.pop())), 10)


async def until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        await asyncio.sleep(0.02)


# ── keys ─────────────────────────────────────────────────────────────────────


async def test_with_keys_actors_work_and_dashboards_look_and_do_nothing_else(port, keys):
    actor, dashboard = ClientKeys.load(keys, "actor"), ClientKeys.load(keys, DASHBOARD)
    with running(port, keys=keys) as gateway:
        async with linked(port, actor) as link:
            await is_served(link)
            with DashboardClient(f"tcp://127.0.0.1:{port}", dashboard) as client:
                shown = await asyncio.to_thread(client.snapshot, 5.0)
            assert [row["id"] for row in shown["actors"]] == ["actor-0"]
            with dealer(port, dashboard) as peer:
                for message in (HELLO, Heartbeat(actor_id="actor-0", capacity=9, held=[]), Goodbye(actor_id="actor-0")):
                    peer.send_multipart(encode(message))
                    answer, _ = decode(peer.recv_multipart())
                    assert isinstance(answer, Reject) and "may only look" in answer.reason
            assert [row["id"] for row in gateway.snapshot()["actors"]] == ["actor-0"]


def strangers(keys, other_keys):
    own, foreign = ClientKeys.load(keys, "actor"), ClientKeys.load(other_keys, "actor")
    return {
        "no keys": (None, "it asks for keys"),
        "another learner's keys": (foreign, "it does not accept these keys"),
        "a key that is not on the list": (
            dataclasses.replace(foreign, learner=own.learner),
            "it does not allow this key",
        ),
    }


async def test_strangers_learn_nothing_disturb_nothing_and_are_told_after_their_time_out(port, keys, other_keys):
    with running(port, keys=keys) as gateway:
        async with linked(port, ClientKeys.load(keys, "actor")) as link:
            for stranger, says in strangers(keys, other_keys).values():
                with dealer(port, stranger) as peer:
                    for message in (StatusRequest(protocol=PROTOCOL_VERSION), HELLO):
                        with contextlib.suppress(zmq.Again):  # refused already: nobody to send to
                            peer.send_multipart(encode(message), zmq.NOBLOCK)
                    began = time.monotonic()
                    with pytest.raises(LinkError, match=f"does not let this actor in: {says}"):
                        async with linked(port, stranger, "actor-0", timeout_s=0.6):
                            pass
                    assert 0.5 < time.monotonic() - began < 5
                    refused = pytest.raises(LearnerRefused, match=f"let this dashboard in: {says}")
                    with DashboardClient(f"tcp://127.0.0.1:{port}", stranger) as client, refused:
                        await asyncio.to_thread(client.snapshot, 0.5)
                    assert not peer.poll(0), "a stranger was answered"
            await is_served(link)
            queue = gateway.snapshot()["queue"]
            assert (queue["rejected_frames"], queue["reissued"]) == (0, 0)


async def test_an_actor_with_keys_does_not_trust_a_learner_without(port, keys):
    with running(port), pytest.raises(LinkError, match="does not accept these keys, or has none itself"):
        async with linked(port, ClientKeys.load(keys, "actor"), timeout_s=0.6):
            pass


async def test_a_key_can_be_added_and_shut_out_while_the_learner_runs(port, keys, tmp_path):
    mine = tmp_path / "keys"
    shutil.copytree(keys, mine)
    make_keys(mine, "late")
    allow = mine / "learner" / "actors" / "late.key"
    aside = allow.rename(tmp_path / "late.key")
    late = ClientKeys.load(mine, "late")
    with running(port, keys=mine):
        with pytest.raises(LinkError, match="does not allow this key"):
            async with linked(port, late, timeout_s=0.5):
                pass
        shutil.copy(aside, allow)
        async with linked(port, late) as link:
            await is_served(link)
        allow.unlink()
        with pytest.raises(LinkError, match="does not allow this key"):
            async with linked(port, late, timeout_s=0.5):
                pass


async def test_without_its_authenticator_the_gateway_lets_nobody_in(port, keys, monkeypatch):
    monkeypatch.setattr("learner.gateway.access.Admission.start", lambda self: None)
    monkeypatch.setattr("learner.gateway.access.Admission.is_alive", lambda self: True)
    with running(port, keys=keys), pytest.raises(LinkError):
        async with linked(port, ClientKeys.load(keys, "actor"), timeout_s=1.0):
            pass


def test_keygen_writes_private_files_tells_where_they_go_and_prints_no_key(tmp_path):
    command = [sys.executable, ROOT / "run.py", "--role", "keygen", f"gateway.keys={tmp_path}/keys"]
    first = subprocess.run(command, capture_output=True, text=True, timeout=60)
    again = subprocess.run([*command, "gateway.key=gpu-7"], capture_output=True, text=True, timeout=60)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    folder = tmp_path / "keys"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "learner/learner.key", "learner/learner.key_secret", "learner/actors/actor.key", "learner/actors/gpu-7.key",
        "learner/dashboards/dashboard.key", "actor/actor.key_secret", "actor/learner.key", "gpu-7/gpu-7.key_secret",
        "gpu-7/learner.key", "dashboard/dashboard.key_secret", "dashboard/learner.key",
    }  # fmt: skip
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in folder.rglob("*"))
    for path in folder.rglob("*.key_secret"):
        _, secret = zmq.auth.load_certificate(path)
        assert secret.decode() not in first.stdout + first.stderr + again.stdout + again.stderr
    assert f"{folder}/actor  copy to" in first.stdout and "gateway.key=gpu-7" in again.stdout
    assert len(LearnerKeys.load(folder).allowed()) == 3


def test_making_keys_again_changes_none(tmp_path):
    make_keys(tmp_path, "actor")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.key*")}
    assert make_keys(tmp_path, "actor") == []
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.key*")}


def test_secrets_are_in_no_repr(keys):
    for part in (ClientKeys.load(keys, "actor"), LearnerKeys.load(keys)):
        assert part.secret.decode() not in repr(part)


def spoil_mode(keys):
    (keys / "learner" / "learner.key_secret").chmod(0o644)


def spoil_secret(keys):
    (keys / "learner" / "learner.key_secret").write_text('public-key = "no"\nsecret-key = "no"\n')


def spoil_allowed(keys):
    (keys / "learner" / "actors" / "actor.key").write_text("hello")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (shutil.rmtree, "learner.key_secret is not there or cannot be read: make keys with"),
        (spoil_mode, "can be read by others: chmod 600"),
        (spoil_secret, "is not a key file"),
        (spoil_allowed, "actor.key is not a key file: remove it"),
    ],
)
def test_bad_keys_stop_the_start_with_one_line(port, keys, tmp_path, spoil, says):
    mine = tmp_path / "keys"
    shutil.copytree(keys, mine)
    spoil(mine)
    with pytest.raises(StartError, match=says) as error:
        open_gateway(port, keys=mine)
    assert "\n" not in str(error.value)
    assert "doorkeeper" not in [thread.name for thread in threading.enumerate()]


def test_a_missing_client_key_says_where_to_get_it(keys):
    with pytest.raises(KeysError, match=r"nobody/nobody\.key_secret is not there.*copy .* from the learner's host"):
        ClientKeys.load(keys, "nobody")
    for name in ("learner", "../x", "", "dashboard"):
        with pytest.raises(KeysError, match=r"gateway\.key"):
            keyfiles.make_keys(keys, name)


# ── addresses ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("[::1]", True)]
    + [(host, False) for host in ("0.0.0.0", "*", "10.0.0.5", "::", "eth0", "learner.example", "")],
)
def test_what_counts_as_loopback(host, loopback):
    assert is_loopback(host) is loopback


def test_a_public_address_needs_keys_or_an_explicit_word(port, keys):
    with pytest.raises(StartError, match=r"--role keygen.*gateway\.keys=keys.*gateway\.insecure=true") as error:
        open_gateway(port, host="0.0.0.0")
    assert "\n" not in str(error.value)
    with running(port, host="0.0.0.0", insecure=True):
        pass
    with running(port, host="0.0.0.0", keys=keys):
        pass
    with pytest.raises(ConfigError, match="exclude each other"):
        load_config(overrides=["gateway.insecure=true", "gateway.keys=keys"])


def test_servers_on_a_public_address_need_an_explicit_word():
    with pytest.raises(ServerError, match=r"no keys for its weight routes.*server\.insecure=true") as error:
        check_address(load_config(overrides=["server.host=0.0.0.0"]))
    assert "\n" not in str(error.value)
    check_address(load_config(overrides=["server.host=0.0.0.0", "server.insecure=true"]))
    check_address(load_config())


def test_the_learner_leaves_with_the_reason(tmp_path):
    command = [sys.executable, ROOT / "run.py", "--role", "server", "server.host=0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: server.host 0.0.0.0 can be reached")


# ── sizes ────────────────────────────────────────────────────────────────────

LIMITS = Limits(tokens=1000)

TOO_MUCH = {
    "large": (b"\xc0" * (LIMITS.header_bytes + 1), "at most"),
    "an array that lies": (b"\xdd\xff\xff\xff\xff", "announces 4294967295 values in 0 bytes"),
    "arrays that would each be allocated": (b"\xdd\x00\x00\x40\x00" * 4000, "more than 17384 values"),
    "a map that lies": (b"\xdf\xff\xff\xff\xff\xc0", "announces"),
    "a text that lies": (b"\xdb\xff\xff\xff\xff\xc0", "cut off"),
    "deep": (b"\x91" * (MAX_DEPTH + 1) + b"\xc0", "nested deeper"),
    "wide": (b"\xdd\x00\x00\xff\xff" + b"\x90" * 65535, "values"),
    "binary": (b"\xc4\x01x", "binary or extension"),
    "extension": (b"\xd4\x05x", "binary or extension"),
    "empty": (b"", "cut off"),
    "cut": (b"\x92\xc0", "announces|cut off"),
    "more than one": (b"\xc0\xc0", "trailing"),
}


@pytest.mark.parametrize(("header", "says"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_headers_that_would_take_too_much_are_refused(header, says):
    with pytest.raises(TooMuch, match=says):
        check_shape(header, LIMITS)
    with pytest.raises(ProtocolError, match=says):
        decode([header], LIMITS)


def test_as_deep_as_allowed_passes():
    check_shape(b"\x91" * MAX_DEPTH + b"\xc0", LIMITS)


JSONLIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=25,
)


@settings(max_examples=100, deadline=None)
@given(JSONLIKE)
def test_whatever_msgpack_writes_of_plain_values_passes(value):
    check_shape(msgpack.packb(value), LIMITS)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_what_passes_is_what_msgpack_reads(data):
    try:
        check_shape(data, LIMITS)
    except TooMuch:
        return
    with suppress(UnicodeDecodeError, TypeError):  # text that is none; a list as a key
        msgpack.unpackb(data, strict_map_key=False)


def test_a_group_larger_than_the_run_allows_is_refused():
    frames = [bytes(frame) for frame in valid_group()]
    decode(frames, LIMITS)
    with pytest.raises(ProtocolError, match="too many, at most 3"):
        decode(frames, Limits(tokens=3))


def valid_group():
    return next(frames for seed in range(99) if len(frames := valid(random.Random(seed), "a")) > 1)


def test_the_budget_must_hold_the_largest_groups(port):
    with pytest.raises(StartError, match=r"gateway\.buffer_mb \(1\) has no room"):
        open_gateway(port, buffer_mb=1)


# ── what a connection may take ───────────────────────────────────────────────


@pytest.mark.parametrize("keyed", [False, True])
async def test_every_byte_of_honest_traffic_is_accounted_for(port, keys, keyed):
    options, own = ({"keys": keys}, ClientKeys.load(keys, "actor")) if keyed else ({}, None)
    with running(port, **options) as gateway:
        async with linked(port, own) as link:
            link.update(4, [], {}, {})
            for _ in range(12):
                event = await asyncio.wait_for(link.next_event(), 10)
                if isinstance(event, Leases):
                    for lease in event.leases:
                        await link.deliver(group_of(lease))
                    gateway.take_batch(2, 5.0)
                    gateway.commit(gateway.snapshot()["queue"]["epoch"])
                    gateway.set_version(1)
            (load,) = gateway._door.keeper.loads().values()
            # What is left is the handshake, and a heartbeat on its way.
            assert load < 1000 * frame_cost(keyed)


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / 2**20


async def besieged(port, raw: Raw, seconds: float) -> float:
    """Let ``raw`` send for a while, an honest actor at work beside it; returns the growth of memory in MiB."""
    async with linked(port) as link:
        leases = await leases_of(link)
        before = peak = resident_mb()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.to_thread(lambda: [raw.act() for _ in range(20)])
            peak = max(peak, resident_mb())
            if leases:
                await is_served(link, leases)
        assert not leases
        raw.close()
    return peak - before


async def test_a_message_without_end_is_cut_off(port):
    with running(port) as gateway:
        endless = Raw("endless", port, b"\x01\x00" * 50_000, 1, greeting())
        assert await besieged(port, endless, 3.0) < 150
        assert gateway._door.keeper.refused > 0


async def test_a_peer_that_asks_and_never_reads_is_answered_no_more(port):
    with running(port) as gateway:
        for step in range(500):
            gateway.append_history({"step": step, "note": "x" * 2000})
        request = zmtp(encode(StatusRequest(protocol=PROTOCOL_VERSION)))
        assert await besieged(port, Raw("deaf", port, request * 10, 1, greeting()), 3.0) < 60


async def test_connections_are_limited_and_silent_ones_dropped(port, monkeypatch):
    monkeypatch.setattr("learner.gateway.router._SILENCE_S", 1.0)
    monkeypatch.setattr("learner.gateway.router.SILENT_BEATS", 0)
    with running(port, max_peers=4) as gateway:
        async with linked(port) as link:
            idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
            await until(lambda: len(gateway._door.keeper.loads()) == 4)
            await until(lambda: len(gateway._door.keeper.loads()) == 1)  # the honest one
            await is_served(link)
            for stranger in idle:
                stranger.close()


async def test_more_actors_than_allowed_are_told_so(port):
    with running(port, max_peers=2) as gateway:
        gateway._door.keeper._max_peers = 99  # as if others had left their connections
        async with linked(port, actor_id="a"), linked(port, actor_id="b"):
            with pytest.raises(LinkError, match=r"gateway\.max_peers \(2\)"):
                async with linked(port, actor_id="c"):
                    pass


async def test_a_dead_guard_stops_the_learner_and_not_the_bounds(port, monkeypatch, caplog):
    monkeypatch.setattr(Doorkeeper, "_look", lambda self, loads: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    died = pytest.raises(RuntimeError, match=r"thread died.*guards the gateway's socket")
    with running(port) as gateway, caplog.at_level(logging.CRITICAL), died:
        gateway.take_batch(1, 5.0)


# ── everything at once ───────────────────────────────────────────────────────


async def test_a_short_siege(port):
    """The same attackers as ``benchmarks.fuzz_gateway``: a few thousand frames, nothing breaks, the honest are served."""
    limits = Limits(tokens=2 * 1024)
    with running(port) as gateway:
        async with linked(port) as link:
            leases = await leases_of(link)
            attackers = make_attackers(f"tcp://127.0.0.1:{port}", port, limits, seed=1)
            sent, end = 0, time.monotonic() + 20.0
            while sent < 4000 and time.monotonic() < end:
                sent += await asyncio.to_thread(lambda: sum(attacker.act() for attacker in attackers))
            await is_served(link, leases)
            for attacker in attackers:
                attacker.close()
        assert sent >= 4000
        assert gateway.snapshot()["queue"]["rejected_frames"] > 50
        assert gateway._crash is None and gateway.audit()["lost"] == 0


def test_the_fuzzer_reports(monkeypatch, capsys):
    monkeypatch.setattr(fuzz_gateway, "_WARM_S", 0.5)
    code = fuzz_gateway.main(["--frames", "1500"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0 and result["frames"] >= 1500, result
    assert (result["crashes"], result["lost"]) == (0, 0) and result["honest_groups"] > 0


def test_nothing_of_ours_unpickles():
    """pickle runs code; torch.load is only used on files of the run folder, as data."""
    for part in ("protocol", "actors", "learner", "envs", "tools", "configs"):
        for path in (ROOT / part).rglob("*.py"):
            text = path.read_text()
            assert "import pickle" not in text and "allow_pickle=True" not in text and "recv_pyobj" not in text, path
            for call in text.split("torch.load(")[1:]:
                assert "weights_only=True" in call.split("\n")[0], path


def test_this_file_leaves_no_keys_behind():
    assert not os.path.exists(ROOT / "keys")
