"""What can become slow without anybody noticing. Counts where they tell it, ratios with wide margins; no absolute times."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import zmq

from actors.episode import Sampling, run_episode
from actors.pool import Pool
from actors.sampler import Sampled
from actors.turnstile import WIDTH, Turnstile
from benchmarks import dispatch
from benchmarks.actor_load import __main__ as actor_load
from benchmarks.dispatch import Run, make_tasks
from benchmarks.transport import __main__ as transport
from benchmarks.transport import ways
from benchmarks.transport.samples import as_lists, from_lists, group, trajectory
from configs.schema import SamplingConfig
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from protocol.codec import decode, encode, encode_group
from protocol.messages import PROTOCOL_VERSION, Heartbeat, Hello, Pong
from tests.actor_cases import CHAT, LIMITS, TASK, OneTurn, lease
from tests.wire_samples import assert_same, config, free_port, tasks


def cpu(work: Callable[[], object], times: int = 5) -> float:
    """The least CPU time of several calls, seconds: what disturbs only adds to it."""
    work()
    took = []
    for _ in range(times):
        before = time.thread_time()
        work()
        took.append(time.thread_time() - before)
    return min(took)


def test_a_group_is_packed_and_read_several_times_faster_than_pickled_or_json_lists():
    made = group()
    lists = as_lists(made)
    ours = cpu(lambda: decode(encode_group("a", made)))
    assert cpu(lambda: from_lists(pickle.loads(pickle.dumps(lists)))) > 3 * ours
    assert cpu(lambda: from_lists(json.loads(json.dumps(lists)))) > 5 * ours


def test_a_group_that_came_from_the_wire_is_written_down_as_it_came(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.sqlite", tasks(1), 0)
    seq = ledger.lease().seq
    _, came = decode(encode_group("a", group()))
    monkeypatch.setattr("learner.gateway.ledger.encode_group", lambda *args: pytest.fail("encoded once more"))
    assert ledger.deliver(seq, "a", came)
    assert_same(ledger.group(seq), came)
    ledger.close()


async def test_a_crowd_leaves_room_for_others_on_the_loop():
    turnstile, through, others = Turnstile(), [], []

    async def one(number: int) -> None:
        await turnstile.enter()
        through.append(number)

    async def bystander() -> None:
        while True:
            others.append(len(through))
            await asyncio.sleep(0)

    watching = asyncio.create_task(bystander())
    await asyncio.gather(*(one(number) for number in range(50 * WIDTH)))
    watching.cancel()
    assert through == list(range(50 * WIDTH))
    assert max(b - a for a, b in zip(others, others[1:])) <= 2 * WIDTH


async def test_who_is_cancelled_at_the_turnstile_takes_nobodys_place():
    turnstile = Turnstile(width=1)
    first, gone, stays = (asyncio.create_task(turnstile.enter()) for _ in range(3))
    await asyncio.sleep(0)
    assert first.done() and not gone.done()
    gone.cancel()
    async with asyncio.timeout(5):
        await stays
        await turnstile.enter()
    assert gone.cancelled()


async def test_an_episode_that_waits_for_its_server_is_small():
    """Its own part: what HTTP needs comes on top."""
    count, release = 300, asyncio.Event()

    class Waiting:
        async def generate(self, ids, **options):
            del ids
            await release.wait()
            return Sampled([CHAT.eot_id], [-0.5], [0], "stop")

    def episode(number: int):
        sampling = Sampling(1.0, 1.0)
        return run_episode(OneTurn(), CHAT, Waiting(), TASK, number, LIMITS, sampling, key=str(number))

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        playing = [asyncio.create_task(episode(number)) for number in range(count)]
        for _ in range(5 + count // WIDTH):
            await asyncio.sleep(0.01)
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    release.set()
    await asyncio.gather(*playing)
    assert each < 20_000


async def test_the_prompt_of_a_group_is_tokenised_once():
    class AtOnce:
        async def generate(self, ids, **options):
            return Sampled([CHAT.eot_id], [-0.5], [0], "stop")

    groups = []

    async def deliver(made):
        groups.append(made)

    async def fail(lease_id, reason):
        pytest.fail(reason)

    before = CHAT._encode_prompt.cache_info()
    work = Pool({"main": OneTurn}, CHAT, AtOnce(), LIMITS, SamplingConfig(), 0, deliver=deliver, fail=fail)
    work.start(lease(size=8))
    async with asyncio.timeout(30):
        while not groups:
            await asyncio.sleep(0.01)
    after = CHAT._encode_prompt.cache_info()
    assert after.misses - before.misses <= 1 and after.hits - before.hits >= 7


def test_the_ledger_does_the_same_work_for_a_group_however_long_the_run_is(tmp_path):
    """Counted in steps of SQLite's machine."""
    all_tasks = make_tasks(2000)
    members = {"episodes": [trajectory(seed, tokens=20) for seed in range(2)]}
    steps = []
    for grown in (0, 20_000):
        run = Run(tmp_path / f"{grown}.sqlite", all_tasks, grown)
        run.one_step(members)
        count = [0]

        def tick(count=count) -> int:
            count[0] += 1
            return 0

        run.ledger._db.set_progress_handler(tick, 1)
        run.one_step(members)
        run.ledger._db.set_progress_handler(None, 1)
        steps.append(count[0])
        run.ledger.close()
    assert steps[1] < 1.3 * steps[0]


def test_messages_do_not_each_make_the_gateway_go_through_all_leases(tmp_path, monkeypatch):
    port = free_port()
    gateway = Gateway(config(heartbeat_s=5.0, port=port), Ledger(tmp_path / "l.sqlite", tasks(4), 0), "run", {})
    ticks = []
    tick = gateway._dispatcher.tick
    monkeypatch.setattr(gateway._dispatcher, "tick", lambda now: ticks.append(now) or tick(now))
    gateway.start()
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.IDENTITY, b"a")
            socket.setsockopt(zmq.RCVTIMEO, 10_000)
            socket.connect(f"tcp://127.0.0.1:{port}")
            socket.send_multipart(encode(Hello(protocol=PROTOCOL_VERSION, actor_id="a", host="h", pid=1)))
            before, pongs = len(ticks), 0
            for _ in range(200):
                socket.send_multipart(encode(Heartbeat(actor_id="a", capacity=0, held=[])))
                while not isinstance(decode(socket.recv_multipart())[0], Pong):
                    pass
                pongs += 1
    finally:
        gateway.stop("over")
    assert pongs == 200 and len(ticks) - before < 100


def test_the_load_benchmark(capsys):
    assert actor_load.main(["--quick", "--only", "tool calls"]) == 0
    assert "actor 104, tool calls" in capsys.readouterr().out


def test_the_transport_benchmark(tmp_path):
    with ExitStack() as stack:
        for receive, send in ((ways.receive_raw, ways.send_raw), (ways.receive_rollway, ways.send_rollway)):
            port = free_port()
            way = transport.Way(
                transport.Process.start(stack, receive, port, ":memory:"),
                transport.Process.start(stack, send, port, ":memory:"),
            )
            way.measure(8)
            assert way.rate[0] > 0 and way.cpu_us[0] >= way.receiver_us[0]
    crowd = transport.measure_crowd(tmp_path, actors=10, seconds=1.0)
    assert crowd["leases_held"] > 0 and crowd["answered"] > 0


def test_the_dispatch_benchmark(capsys):
    assert dispatch.main(["--quick", "--tasks", "640"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["cost_growth"] < 3 and result["resume_s"] < 5
