"""The weight push without vLLM: the bucket plan, a gloo group between threads, HTTP control, and the pusher's
book-keeping against a stand-in server that speaks the same routes and receives over real gloo."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import Config
from learner.weights import weight_backend
from learner.weights.buckets import ALIGN, ALONE, TensorSpec, pack, plan_buckets, unflatten
from learner.weights.control import ControlError, Deadline, NoAnswer, ServerControl
from learner.weights.group import GlooGroup, find_store, local_address, serve_store
from learner.weights.push import WeightPusher
from learner.weights.transport import side_by_side
from tests.weight_server import StandIn, policy, same

# ── buckets ──────────────────────────────────────────────────────────────────


def test_plan_by_hand():
    specs = [
        TensorSpec("a", "float32", (3,)),  # 12 bytes at 0
        TensorSpec("b", "bfloat16", (2, 2)),  # 8 bytes at 16
        TensorSpec("c", "float32", (4,)),  # 16 bytes would end at 48 > 40: the next bucket
        TensorSpec("big", "float32", (100,)),  # 400 bytes: alone, after the others
        TensorSpec("e", "float32", ()),  # 4 bytes at 16, beside c
    ]
    plan = plan_buckets(specs, 40)
    assert [[(s.name, at) for s, at in b.entries] for b in plan] == [
        [("a", 0), ("b", 16)],
        [("c", 0), ("e", 16)],
        [("big", 0)],
    ]
    assert [b.nbytes for b in plan] == [24, 20, 400]
    large = [TensorSpec("a", "int8", (ALONE - 1,)), TensorSpec("b", "int8", (ALONE,)), TensorSpec("c", "int8", (1,))]
    assert [[s.name for s, _ in b.entries] for b in plan_buckets(large, 10 * ALONE)] == [["a", "c"], ["b"]]
    assert plan_buckets([], 40) == []


def test_repeated_name_is_an_error():
    with pytest.raises(ValueError, match="twice"):
        plan_buckets([TensorSpec("a", "float32", (1,))] * 2, 100)


tensors = st.lists(
    st.tuples(
        st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int8]),
        st.lists(st.integers(0, 5), max_size=3),
    ),
    max_size=12,
)


@given(tensors, st.integers(1, 400))
def test_flatten_and_back_is_exact(shapes, bucket_bytes):
    torch.manual_seed(0)
    source = {f"p{i}": torch.randn(shape).mul(50).to(dtype) for i, (dtype, shape) in enumerate(shapes)}
    plan = plan_buckets([TensorSpec.of(n, t) for n, t in source.items()], bucket_bytes)
    back = {}
    for bucket in plan:
        assert bucket.nbytes <= bucket_bytes or len(bucket.entries) == 1
        assert all(start % ALIGN == 0 for _, start in bucket.entries)
        back |= dict(unflatten(bucket, pack(bucket, source)))
    assert back.keys() == source.keys()
    for name, tensor in source.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor)


def test_flatten_refuses_what_was_not_planned():
    bucket = plan_buckets([TensorSpec("a", "float32", (2,))], 100)[0]
    with pytest.raises(ValueError, match="parameter a: planned float32"):
        pack(bucket, {"a": torch.zeros(2, dtype=torch.bfloat16)})


def test_a_lone_parameter_is_sent_from_where_it_lies_and_a_strange_view_of_it_is_not():
    weight = torch.nn.Parameter(torch.randn(6, 4))
    [bucket] = plan_buckets([TensorSpec.of("w", weight)], 10)
    assert pack(bucket, {"w": weight}).data_ptr() == weight.data_ptr()
    turned = weight.detach().reshape(4, 6).T
    [(_, back)] = unflatten(bucket, pack(bucket, {"w": turned}))
    assert torch.equal(back, turned)


# ── group ────────────────────────────────────────────────────────────────────


def pair(timeout_s: float) -> tuple[GlooGroup, GlooGroup]:
    store = serve_store("127.0.0.1", timeout_s)
    with ThreadPoolExecutor(2) as pool:
        trainer = pool.submit(GlooGroup, store, "127.0.0.1", 0, 2, timeout_s)
        worker = pool.submit(
            lambda: GlooGroup(find_store("127.0.0.1", store.port, timeout_s), "127.0.0.1", 1, 2, timeout_s)
        )
        return trainer.result(), worker.result()


def test_broadcast_arrives():
    trainer, worker = pair(10)
    sent, got = torch.arange(1_000_000, dtype=torch.int32), torch.empty(1_000_000, dtype=torch.int32)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(trainer.broadcast, sent), pool.submit(worker.broadcast, got)]:
            done.result()
    assert torch.equal(sent, got)


def test_worker_is_freed_when_the_trainer_leaves():
    trainer, worker = pair(30)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.broadcast, torch.empty(10))
        time.sleep(0.1)
        began = time.monotonic()
        trainer.close()
        with pytest.raises(RuntimeError):
            waiting.result()
    assert time.monotonic() - began < 5


def test_silent_trainer_times_out():
    _trainer, worker = pair(0.5)
    with pytest.raises(RuntimeError, match=r"(?i)timed out"):
        worker.broadcast(torch.empty(10))


def test_loopback_stays_loopback():
    assert local_address("localhost") in ("127.0.0.1", "::1")
    assert local_address("127.0.0.1") == "127.0.0.1"


def test_side_by_side_raises_the_first_error_at_once():
    release = threading.Event()

    def refused():
        raise ValueError("refused")

    began = time.monotonic()
    with pytest.raises(ValueError, match="refused"):
        side_by_side(refused, release.wait, Deadline(20))
    assert time.monotonic() - began < 5
    with pytest.raises(TimeoutError):
        side_by_side(lambda: None, release.wait, Deadline(0.2))
    release.set()
    assert side_by_side(lambda: 1, lambda: 2, Deadline(5)) == (1, 2)


# ── pushes to stand-ins for vLLM ─────────────────────────────────────────────


@pytest.fixture
def two_servers():
    servers = [StandIn(), StandIn()]
    yield servers
    for server in servers:
        server.close()


def pusher_for(servers, timeout_s=10.0) -> WeightPusher:
    config = Config.model_validate({"weights": {"bucket_mb": 1, "timeout_s": timeout_s}})
    return WeightPusher(config, [server.url for server in servers])


def test_push_to_two_servers(two_servers):
    pusher = pusher_for(two_servers)
    assert pusher.current_servers() == []
    report = pusher.push(policy(1), 1)
    assert report.errors() == {} and report.as_record()["servers"] == 2
    assert report.servers[0].nbytes == 4 * (300_000 + 7 + 250_000)
    assert report.servers[0].wire_s <= report.servers[0].paused_s <= report.servers[0].seconds
    for server in two_servers:
        assert same(server, policy(1)) and server.version == "1" and not server.paused
    pusher.push(policy(2), 2)
    for server in two_servers:
        assert same(server, policy(2))
        assert server.calls.count("/init_weight_transfer_engine") == 1
    assert pusher.current_servers() == [s.url for s in two_servers]
    assert pusher.state(two_servers[0].url)["state"] == "current"


def test_half_an_update_excludes_one_server_and_the_next_push_brings_it_back(two_servers):
    good, bad = two_servers
    pusher = pusher_for(two_servers)
    pusher.push(policy(1), 1)
    bad.lose_connection = True
    report = pusher.push(policy(2), 2)
    assert list(report.errors()) == [bad.url] and "connection lost half way" in report.errors()[bad.url]
    assert bad.paused and bad.version == "1"  # a mix: it must not generate
    assert same(good, policy(2)) and not good.paused
    assert pusher.current_servers() == [good.url] and pusher.state(bad.url)["state"] == "excluded"
    bad.lose_connection, bad.calls = False, []
    assert pusher.push(policy(3), 3).errors() == {}
    assert same(bad, policy(3)) and not bad.paused and bad.version == "3"
    assert bad.calls.count("/init_weight_transfer_engine") == 1  # a new group
    assert bad.calls.count("/start_weight_update") == 2  # the half-done update was discarded first


@pytest.mark.parametrize("route", ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"])
def test_no_resume_after_a_refused_step(two_servers, route):
    good, bad = two_servers
    pusher = pusher_for(two_servers)
    pusher.push(policy(1), 1)
    bad.fail_on, bad.calls = {route: 500}, []
    report = pusher.push(policy(2), 2)
    assert "status 500" in report.errors()[bad.url] and "no such luck" in report.errors()[bad.url]
    assert "/resume" not in bad.calls
    assert pusher.current_servers() == [good.url]
    bad.fail_on = {}
    assert pusher.rejoin().errors() == {} and same(bad, policy(2)) and not bad.paused


def test_slow_server_runs_into_the_time_limit(two_servers):
    good, bad = two_servers
    pusher = pusher_for(two_servers, timeout_s=1.0)
    pusher.push(policy(1), 1)
    bad.slow = {"/start_weight_update": 3.0}
    began = time.monotonic()
    report = pusher.push(policy(2), 2)
    assert time.monotonic() - began < 2.5
    assert "no answer" in report.errors()[bad.url]
    assert pusher.current_servers() == [good.url]


def test_a_hanging_excluded_server_does_not_hold_up_the_others(two_servers, monkeypatch):
    monkeypatch.setattr("learner.weights.push._LOOK_S", 0.3)
    good, bad = two_servers
    pusher = pusher_for(two_servers, timeout_s=20.0)
    bad.fail_on = {"/pause": 500}
    pusher.push(policy(1), 1)
    bad.fail_on, bad.slow = {}, {"/weight_info": 3.0}
    began = time.monotonic()
    report = pusher.push(policy(2), 2)
    assert time.monotonic() - began < 2.5 and list(report.errors()) == [bad.url]
    assert pusher.current_servers() == [good.url] and same(good, policy(2))


def test_late_joiner_is_listed_after_it_has_the_weights(two_servers):
    first, late = two_servers
    pusher = pusher_for([first])
    pusher.add_server(late.url)  # nothing to give yet
    assert pusher.current_servers() == []
    assert pusher.state(late.url)["state"] == "waiting"
    pusher.push(policy(1), 1)
    assert set(pusher.current_servers()) == {first.url, late.url}
    other = StandIn()
    pusher.add_server(other.url)
    assert same(other, policy(1)) and other.url in pusher.current_servers()
    other.close()


def test_rejoin_notices_a_restarted_and_a_dead_server(two_servers):
    restarted, dead = two_servers
    pusher = pusher_for(two_servers, timeout_s=5.0)
    with pytest.raises(RuntimeError, match="before the first push"):
        pusher.rejoin()
    pusher.push(policy(1), 1)
    restarted.version, restarted.weights = "default", {}
    dead.close()
    report = pusher.rejoin()
    assert [s.url for s in report.servers] == [restarted.url, dead.url]
    assert list(report.errors()) == [dead.url]
    assert same(restarted, policy(1)) and pusher.current_servers() == [restarted.url]


def test_slow_to_answer_is_not_dead(two_servers, monkeypatch):
    monkeypatch.setattr("learner.weights.push._LOOK_S", 0.3)
    pusher = pusher_for(two_servers)
    pusher.push(policy(1), 1)
    two_servers[0].slow = {"/weight_info": 1.0}
    assert pusher.rejoin().servers == []
    assert len(pusher.current_servers()) == 2


def test_a_server_left_paused_by_a_former_learner_is_taken_over(two_servers):
    server = two_servers[0]
    server.paused = server.active = True  # that learner was killed in the middle of an update
    pusher = pusher_for([server])
    assert pusher.push(policy(1), 5).errors() == {}
    assert same(server, policy(1)) and server.version == "5" and not server.paused


def test_control_errors_say_what_to_do(two_servers):
    server = two_servers[0]
    control = ServerControl(server.url, Deadline(5))
    server.fail_on = {"/pause": 404}
    with pytest.raises(ControlError, match="--role server"):
        control.pause()
    with pytest.raises(ControlError, match="is the server running"):
        ServerControl("http://127.0.0.1:9", Deadline(5)).pause()
    server.slow = {"/resume": 2}
    with pytest.raises(NoAnswer, match="no answer within 0"):
        ServerControl(server.url, Deadline(0.3)).resume()
    with pytest.raises(TimeoutError):
        ServerControl(server.url, Deadline(0)).resume()


def test_backend_follows_the_learners_devices():
    assert weight_backend(Config()) == "gloo"
    assert weight_backend(Config.model_validate({"learner": {"devices": [0]}})) == "nccl"
    assert (
        weight_backend(Config.model_validate({"learner": {"devices": [0]}, "weights": {"backend": "gloo"}})) == "gloo"
    )


def test_a_push_that_waits_for_a_server_gives_it_up_once_it_is_known_to_hang(two_servers):
    """And what the server still does when it wakes up leads to nothing, until it is given the weights anew."""
    good, hung = two_servers
    pusher = pusher_for(two_servers, timeout_s=30.0)
    pusher.push(policy(1), 1)
    hung.awake.clear()
    threading.Timer(0.3, pusher.note_silent, [{hung.url: "it has not answered for 30 s"}]).start()
    began = time.monotonic()
    report = pusher.push(policy(2), 2)
    assert time.monotonic() - began < 3 and report.errors() == {hung.url: "it has not answered for 30 s"}
    assert pusher.current_servers() == [good.url] and same(good, policy(2))
    calls = len(hung.calls)
    pusher.push(policy(3), 3)
    assert len(hung.calls) == calls and same(good, policy(3))  # left alone
    hung.awake.set()
    time.sleep(0.3)
    assert pusher.current_servers() == [good.url]
    pusher.note_silent({})
    assert pusher.rejoin().errors() == {} and same(hung, policy(3)) and not hung.paused
    assert pusher.current_servers() == [good.url, hung.url]


def test_a_push_finds_a_restarted_server_and_gives_it_the_weights(two_servers):
    restarted = two_servers[0]
    pusher = pusher_for(two_servers)
    pusher.push(policy(1), 1)
    restarted.version, restarted.weights, restarted.group = "default", {}, None
    assert pusher.push(policy(2), 2).errors() == {}
    assert same(restarted, policy(2)) and restarted.calls.count("/init_weight_transfer_engine") == 2


def test_a_run_that_stops_waits_for_no_server(two_servers, monkeypatch):
    monkeypatch.setattr("learner.weights.push._STOP_S", 0.5)
    hung = two_servers[1]
    pusher = pusher_for(two_servers, timeout_s=30.0)
    pusher.push(policy(1), 1)
    hung.awake.clear()
    threading.Timer(0.2, pusher.interrupt).start()
    began = time.monotonic()
    assert pusher.push(policy(2), 2).errors() == {hung.url: "the run stops"}
    pusher.close()
    assert time.monotonic() - began < 7
