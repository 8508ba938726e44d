"""What can become slow without anybody noticing. Counts where they tell it, ratios with wide margins; no absolute times."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
import zmq
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from actors.episode import Sampling, run_episode
from actors.pool import Pool
from actors.sampler import Sampled
from actors.turnstile import WIDTH, Turnstile
from benchmarks import dispatch, gpu
from benchmarks.actor_load import __main__ as actor_load
from benchmarks.dispatch import Run, make_tasks
from benchmarks.learner_step import __main__ as learner_step
from benchmarks.learner_step import work
from benchmarks.learner_step.children import Child, ChildFailed
from benchmarks.transport import __main__ as transport
from benchmarks.transport import ways
from benchmarks.transport.samples import as_lists, from_lists, group, trajectory
from benchmarks.weight_sync import __main__ as weight_sync
from benchmarks.weight_sync.wire import Wire
from configs.schema import Config, SamplingConfig
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from learner.policy import logprobs
from learner.policy.engine import PolicyEngine
from learner.weights.transport import Weights
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
            assert way.rate[0] > 0 and way.cpu_us[0] >= 0.99 * way.receiver_us[0]  # a sum, of coarse clocks
    crowd = transport.measure_crowd(tmp_path, actors=10, seconds=3.0)
    assert crowd["leases_held"] > 0 and crowd["answered"] > 0


def test_the_dispatch_benchmark(capsys):
    assert dispatch.main(["--quick", "--tasks", "640"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["cost_growth"] < 3 and result["resume_s"] < 5


class Sizes(TorchDispatchMode):
    """Elements of the largest tensor that any operation gives, and the number of matrix products."""

    largest = products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.products += function in (torch.ops.aten.mm.default, torch.ops.aten.mm.out, torch.ops.aten.addmm_.default)
        self.largest = max([self.largest, *(t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor))])
        return result


def test_the_head_holds_the_logits_of_one_chunk_and_computes_them_twice(monkeypatch):
    tokens, width, vocabulary, chunk = 640, 8, 500, 128
    monkeypatch.setitem(logprobs.CHUNK_LOGITS, "cpu", chunk * vocabulary)
    weight = torch.nn.Parameter(torch.randn(vocabulary, width))
    hidden = torch.randn(tokens, width, requires_grad=True)
    with Sizes() as seen:
        values, _ = logprobs.LogprobHead(weight)(hidden, torch.randint(0, vocabulary, (tokens,)), 0.7)
        values.sum().backward()
    assert seen.largest == chunk * vocabulary
    assert seen.products == 4 * tokens // chunk  # logits, logits again, the gradient of each side


def test_an_update_costs_little_more_than_the_bare_model(tmp_path):
    work.save_model(tmp_path, "tiny")
    learner = {"groups": 1, "mini_batches": 1, "cpu_threads": 1, "micro_tokens": 2048}
    engine = PolicyEngine(Config.model_validate({"model": {"path": str(tmp_path)}, "learner": learner}))
    groups, advantages = work.batch([200] * work.GROUP, engine.vocabulary)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    rows = [
        (torch.from_numpy(t.token_ids).long(), torch.from_numpy(t.action_mask).bool()) for t in groups[0].trajectories
    ]

    def bare() -> None:
        for text, at in rows:
            torch.nn.functional.cross_entropy(lm(input_ids=text[None]).logits[0, :-1][at[1:]], text[at]).backward()

    assert cpu(lambda: engine.update(groups, advantages), times=3) < 2 * cpu(bare, times=3)


def test_the_batch_of_the_update_benchmark_is_lognormal():
    found = sorted(work.lengths(1000))
    assert found[500] == pytest.approx(work.MEDIAN, rel=0.01) and found[990] == pytest.approx(work.P99, rel=0.05)


def test_the_update_benchmark(tmp_path):
    sizes = work.lengths(work.GROUP)
    work.save_model(tmp_path / "model", "tiny")
    work.save_arrays(tmp_path / "batch.npz", *work.batch(sizes, work.MODELS["tiny"][2]))
    with ExitStack() as stack:
        names = ("rollway", "bare")
        arms = {
            n: Child(stack, sys.executable, "benchmarks.learner_step.arms", [n, str(tmp_path)], 1, tmp_path)
            for n in names
        }
        for arm in arms.values():
            arm.answer()
        learner_step.compare(arms, work.GROUP, rounds=1)
    result = learner_step.result(arms, sum(sizes))
    assert result["of_bare_model"] > 0.3 and result["peak_mib"] > 1 and result["vs_trl_tokens"] is None


def test_a_measured_process_that_fails_is_quoted(tmp_path):
    with ExitStack() as stack:
        child = Child(stack, sys.executable, "benchmarks.learner_step.nowhere", ["x"], 1, tmp_path)
        with pytest.raises(ChildFailed, match=r"ended: .*No module named benchmarks"):
            child.answer()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_benchmark_says_that_there_is_no_gpu(capsys):
    assert gpu.main(["--quick"]) == gpu.NO_GPU
    assert "no GPU" in capsys.readouterr().out


def test_the_options_of_the_gpu_benchmark_are_valid(tmp_path):
    assert gpu.update_config(tmp_path, 8192).learner.devices == [0]


def test_flops_of_an_update():
    assert gpu.update_flops(body=1000, head=10, layers=2, width=4, sizes=[3, 5], scored=4) == 6 * (
        1000 * 8 + 10 * 4 + 2 * 4 * (9 + 25)
    )


# ── weights ──────────────────────────────────────────────────────────────────


def test_the_weight_benchmark():
    """Both ways bring the bytes over; buckets cost less than ten broadcasts of the whole."""
    tensors = {f"layer{n}": torch.randn(512, 1024) for n in range(16)} | {
        f"norm{n}": torch.randn(64) for n in range(50)
    }
    with Wire(Weights(tensors, 0, 1 << 20)) as wire:
        flat, bucketed = (min(way() for _ in range(5)) for way in (wire.flat, wire.bucketed))
    assert 0 < bucketed < 10 * flat
    row = weight_sync.Row("30M", 1, 100, flat=0.2, bucketed=0.25, load=0.3, pause=0.6)
    double = weight_sync.Row("135M", 2, 900, flat=2.0, bucketed=2.5, load=3.0, pause=6.0)
    found = weight_sync.result([row, double])
    assert found["model"] == "30M" and found["of_bare_broadcast"] == 0.8 and found["pause_over_floor"] == 1.2
