"""Episodes, the pool of leases and the actor process, against stand-ins for server and learner."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from actors.chat import ChatFormat
from actors.episode import EpisodeFailed, Limits, Sampling, request_seed, run_episode
from actors.pool import Pool
from actors.sampler import Sampler
from configs.schema import ActorConfig, EnvConfig, ModelConfig, SamplingConfig
from envs.base import StepResult, ToolEnv
from envs.registry import load_env
from protocol.messages import Lease, Task
from tests.canned_learner import CannedLearner
from tests.canned_server import CannedServer, answer
from tests.chat_templates import write_model

QA = load_env("envs.multihop:MultiHopQA", {"process_reward": 0.2})
LIMITS = Limits(max_turns=6, max_tokens=2000, turn_tokens=400)
PAYLOAD = next(t for t in QA.tasks("eval", "hotpot", 50) if len(t["gold_titles"]) == 2)
TASK = Task(task_id=PAYLOAD["id"], dataset="hotpot", payload=PAYLOAD)
REPO = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chat(model) -> ChatFormat:
    return ChatFormat.load(str(model))


def search(title: str) -> str:
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{title}"}}}}</tool_call>'


def turns_of(body: dict, chat: ChatFormat) -> int:
    """How many turns the policy has written before this request."""
    text = chat._tokenizer.decode(body["token_ids"], skip_special_tokens=False)
    return text.count("<|im_start|>assistant") - 1


def policy(chat: ChatFormat, *turns: str, version="0"):
    """A script that writes these turns, one after another, in every episode."""

    def script(body):
        ids = [*chat._encode(turns[min(turns_of(body, chat), len(turns) - 1)]), chat.eot_id]
        limit = body["sampling_params"]["max_tokens"]
        finish = "stop" if len(ids) <= limit else "length"
        return answer(ids[:limit], finish, versions=[(version, 0, len(ids[:limit]))])

    return script


def solver(chat: ChatFormat):
    one, two = PAYLOAD["gold_titles"]
    return policy(chat, f"look {search(one)}", search(two), f"<answer> {PAYLOAD['answers'][0]}</answer>")


def sampler_for(server: CannedServer, version: int = 0) -> Sampler:
    return Sampler(SimpleNamespace(servers=[server.url], version=version), request_timeout_s=60)


async def play(chat, script, env=None, limits=LIMITS, task=TASK, sampling=None, **more):
    async with CannedServer(script) as server, sampler_for(server) as sampler:
        trajectory = await run_episode(
            env or QA(), chat, sampler, task, 5, limits, sampling or Sampling(1.0, 1.0), key="k", **more
        )
    return trajectory, server.requests


# ── one episode ──────────────────────────────────────────────────────────────


async def test_an_episode_is_one_row_of_exactly_what_was_sampled(chat):
    reports = []
    trajectory, requests = await play(chat, solver(chat), on_turn=reports.append)
    trajectory.validate()
    ids, mask = trajectory.token_ids.tolist(), trajectory.action_mask.astype(bool)
    # Every request's prompt is a prefix of the row, and turns start exactly where prompts end.
    assert len(requests) == len(trajectory.turns) == 3
    for request, (start, end) in zip(requests, trajectory.turns.tolist(), strict=True):
        assert ids[:start] == request["token_ids"]
        assert mask[start:end].all() and ids[end - 1] == chat.eot_id
        np.testing.assert_allclose(trajectory.behaviour_logprobs[start:end], -0.5 - 0.01 * np.arange(end - start))
    assert mask.sum() == sum(end - start for start, end in trajectory.turns)
    assert (trajectory.versions[mask] == 0).all() and (trajectory.versions[~mask] == -1).all()
    assert not trajectory.behaviour_logprobs[~mask].any()
    # The first prompt is the template's, the rest between turns is the template's too.
    schema = QA()
    await schema.reset(PAYLOAD, 0)
    tools = [tool.schema() for tool in schema.tools]
    assert ids[: trajectory.turns[0, 0]] == chat.prompt_ids([{"role": "user", "content": PAYLOAD["question"]}], tools)
    between = chat._tokenizer.decode(ids[trajectory.turns[0, 1] : trajectory.turns[1, 0]], skip_special_tokens=False)
    assert between.startswith("\n<|im_start|>user\n<tool_response>\n- " + PAYLOAD["gold_titles"][0])
    # Rewards: each gold passage on the last token of its turn, the outcome on the last of all.
    ends = trajectory.turns[:, 1] - 1
    np.testing.assert_allclose(trajectory.rewards[ends], [0.1, 0.1, 1.0])
    assert trajectory.rewards.sum() == pytest.approx(1.2) and ends[-1] == len(ids) - 1
    assert trajectory.terminated
    facts = trajectory.facts
    assert (facts["task_id"], facts["dataset"], facts["seed"], facts["finish"]) == (TASK.task_id, "hotpot", 5, "done")
    assert facts["outcome_reward"] == 1.0 and facts["process_reward"] == pytest.approx(0.2)
    assert facts["metrics"]["em"] == 1.0 and facts["metrics"]["found"] == 1.0
    assert [(c["turn"], c["name"], c["fault"]) for c in facts["tool_calls"]] == [(0, "search", None), (1, "search", None)]
    assert len(reports) == 3


async def test_requests_are_seeded_by_episode_and_turn_alone(chat):
    _, first = await play(chat, solver(chat))
    _, again = await play(chat, solver(chat))
    seeds = [r["sampling_params"]["seed"] for r in first]
    assert seeds == [r["sampling_params"]["seed"] for r in again] == [request_seed(5, turn) for turn in range(3)]
    assert len({request_seed(s, t) for s, t in itertools.product(range(50), range(8))}) == 400


async def test_a_turn_cut_by_the_limit_runs_no_call_and_is_closed_by_the_environment(chat):
    cut = chat._encode('<tool_call>{"name": "search", "argu')
    end = [*chat._encode("<answer>x</answer>"), chat.eot_id]
    trajectory, _ = await play(
        chat, lambda body: answer(cut, finish="length") if not turns_of(body, chat) else answer(end)
    )
    after = trajectory.turns[0, 1]
    assert trajectory.token_ids[after] == chat.eot_id and trajectory.action_mask[after] == 0
    assert trajectory.facts["tool_calls"] == [] and trajectory.facts["finish"] == "done"


async def test_max_turns_cuts_the_episode_and_scores_it(chat):
    trajectory, requests = await play(chat, policy(chat, search("x")), limits=Limits(3, 2000, 400))
    assert len(requests) == 3 and trajectory.facts["finish"] == "max_turns" and not trajectory.terminated
    assert trajectory.turns[-1, 1] == len(trajectory), "a row ends with an action token"
    assert trajectory.rewards[-1] == pytest.approx(-0.5)


async def test_max_tokens_bounds_every_turn_and_the_row(chat):
    start = len((await play(chat, solver(chat)))[1][0]["token_ids"])
    limits = Limits(6, start + 150, 100)
    trajectory, requests = await play(chat, policy(chat, search("x")), limits=limits)
    assert trajectory.facts["finish"] == "length" and not trajectory.terminated and len(trajectory) <= start + 150
    assert requests[0]["sampling_params"]["max_tokens"] == 100
    _, requests = await play(chat, policy(chat, search("x")), limits=Limits(6, start + 50, 100))
    assert requests[0]["sampling_params"]["max_tokens"] == 50 and len(requests) == 1
    with pytest.raises(EpisodeFailed, match="max_tokens"):
        await play(chat, solver(chat), limits=Limits(6, start, 100))


class OneTurn(ToolEnv):
    """Ends after one turn with the reward and info that it was made with."""

    def __init__(self, reward=0.0, info=None):
        self.reward, self.info = reward, info if info is not None else {"outcome_reward": 1.0}

    @classmethod
    def tasks(cls, split, dataset, limit=None):
        return []

    async def reset(self, task, seed):
        return [{"role": "user", "content": "hi"}]

    async def step(self, text, finish):
        return StepResult(reward=self.reward, done=True, info=self.info)


@pytest.mark.parametrize(
    ("reward", "info"),
    [
        (float("nan"), {"outcome_reward": 1.0}),
        (float("inf"), {"outcome_reward": 1.0}),
        (None, {"outcome_reward": 1.0}),
        ("1", {"outcome_reward": 1.0}),
        (0.0, {"outcome_reward": float("nan")}),
        (0.0, {}),
        (0.0, {"outcome_reward": 1.0, "metrics": {"em": float("nan")}}),
    ],
)
async def test_a_reward_that_is_not_a_finite_number_fails_the_episode(chat, reward, info):
    with pytest.raises(EpisodeFailed, match="not a finite number") as failure:
        await play(chat, policy(chat, "x"), OneTurn(reward, info))
    assert failure.value.kind == "reward"


async def test_a_reward_too_large_for_its_array_fails_the_episode(chat):
    with np.errstate(over="ignore"), pytest.raises(EpisodeFailed, match="rewards"):
        await play(chat, policy(chat, "x"), OneTurn(1e300))


async def test_what_an_environment_raises_fails_the_episode_and_it_is_closed(chat):
    class Broken(OneTurn):
        closed = False

        async def step(self, text, finish):
            raise KeyError("field")

        async def close(self):
            self.closed = True

    env = Broken()
    with pytest.raises(EpisodeFailed, match="KeyError") as failure:
        await play(chat, policy(chat, "x"), env)
    assert failure.value.kind == "environment" and env.closed

    class Forgetful(OneTurn):
        async def step(self, text, finish):
            return None

    with pytest.raises(EpisodeFailed, match="not a StepResult"):
        await play(chat, policy(chat, "x"), Forgetful())


async def test_a_blocking_environment_runs_off_the_loop(chat):
    class Blocking(OneTurn):
        def reset(self, task, seed):
            time.sleep(0.2)
            return [{"role": "user", "content": "hi"}]

        def step(self, text, finish):
            assert threading.current_thread() is not threading.main_thread()
            return StepResult(done=True, info=self.info)

    longest = 0.0

    async def watch():
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - before)

    watcher = asyncio.create_task(watch())
    await play(chat, policy(chat, "x"), Blocking())
    watcher.cancel()
    assert longest < 0.15


# ── the pool ─────────────────────────────────────────────────────────────────


def lease(lease_id="L1", size=4, **more) -> Lease:
    return Lease(lease_id=lease_id, task=TASK, group_size=size, seed=100, **more)


class Desk:
    """Takes what a pool delivers."""

    def __init__(self):
        self.groups, self.failed, self.changes = {}, {}, 0

    async def deliver(self, group):
        self.groups[group.lease_id] = group

    async def fail(self, lease_id, reason):
        self.failed[lease_id] = reason

    def changed(self):
        self.changes += 1


def pool_on(chat, sampler, desk, env=QA, retries=1, sampling=None) -> Pool:
    sampling = sampling or SamplingConfig(temperature=0.8, top_p=0.95)
    return Pool({"main": env}, chat, sampler, LIMITS, sampling, retries, desk.deliver, desk.fail, desk.changed)


async def settled(pool: Pool) -> None:
    async with asyncio.timeout(60):
        while pool.held:
            await asyncio.sleep(0.01)


async def test_a_lease_becomes_a_group_of_seeded_episodes(chat):
    desk = Desk()
    async with CannedServer(solver(chat)) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk)
        pool.start(lease())
        pool.start(lease())  # sent twice, worked on once
        assert pool.held == ["L1"]
        await settled(pool)
        stats = pool.stats()
    [group] = desk.groups.values()
    assert group.task_id == TASK.task_id and [t.facts["seed"] for t in group.trajectories] == [100, 101, 102, 103]
    assert {r["sampling_params"]["temperature"] for r in server.requests} == {0.8}
    assert len({r["sampling_params"]["seed"] for r in server.requests}) == 12
    assert (stats["episodes"], stats["in_flight"], stats["turns"], stats["groups"]) == (4, 0, 12, 1)
    assert stats["tokens"] == sum(int(t.action_mask.sum()) for t in group.trajectories)
    assert stats["tools"]["search"]["calls"] == 8 and stats["tokens_per_s"] > 0 and stats["latency_p99"] > 0
    assert desk.changes == 1 and pool.oldest == {}


async def test_evaluation_is_greedy(chat):
    desk = Desk()
    async with CannedServer(solver(chat)) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk)
        pool.start(lease(size=1, purpose="eval"))
        await settled(pool)
    assert {(r["sampling_params"]["temperature"], r["sampling_params"]["top_p"]) for r in server.requests} == {(0.0, 1.0)}


class FailsAtFirst(OneTurn):
    """The first ``failures`` resets of the process raise."""

    failures = 0

    async def reset(self, task, seed):
        type(self).failures -= 1
        if type(self).failures >= 0:
            raise OSError("no room")
        return await super().reset(task, seed)


async def test_a_failed_member_is_tried_again(chat):
    desk, env = Desk(), type("Env", (FailsAtFirst,), {"failures": 1})
    async with CannedServer(policy(chat, "x")) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk, env, retries=1)
        pool.start(lease())
        await settled(pool)
        assert pool.stats()["faults"] == {"episode.environment": 1}
    assert len(desk.groups["L1"].trajectories) == 4 and not desk.failed


async def test_a_group_that_cannot_be_completed_is_handed_back_whole(chat):
    desk, env = Desk(), type("Env", (FailsAtFirst,), {"failures": 1000})
    async with CannedServer(policy(chat, "x")) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk, env, retries=2)
        pool.start(lease())
        await settled(pool)
        stats = pool.stats()
    assert not desk.groups and "OSError: no room" in desk.failed["L1"]
    assert stats["groups_failed"] == 1 and stats["in_flight"] == 0
    assert 3 <= stats["faults"]["episode.environment"] <= 12


async def test_names_that_a_model_makes_up_take_one_row(chat):
    made_up = "".join(f'<tool_call>{{"name": "tool{i}"}}</tool_call>' for i in range(5))
    desk = Desk()
    async with CannedServer(policy(chat, made_up, "<answer>x</answer>")) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk)
        pool.start(lease(size=1))
        await settled(pool)
        stats = pool.stats()
    assert stats["tools"] == {"(none)": stats["tools"]["(none)"]} and stats["tools"]["(none)"]["faults"] == 5
    assert stats["faults"]["tool.unknown_tool"] == 5


async def test_a_cancelled_lease_stops_and_is_neither_delivered_nor_failed(chat):
    desk = Desk()
    async with CannedServer(solver(chat), delay_s=0.1) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk)
        pool.start(lease("L1"))
        pool.start(lease("L2"))
        async with asyncio.timeout(5):
            while len(pool.oldest) < 2:
                await asyncio.sleep(0.01)
        assert pool.oldest == {"L1": 0, "L2": 0}
        pool.cancel(["L1", "unknown"])
        assert pool.held == ["L2"]
        pool.start(lease("L1", size=1))  # the same lease once more, while the old work winds up
        await settled(pool)
        stats = pool.stats()
    assert len(desk.groups["L1"].trajectories) == 1 and len(desk.groups["L2"].trajectories) == 4
    assert not desk.failed and stats["groups_cancelled"] == 1 and stats["in_flight"] == 0


async def test_a_lease_cancelled_in_the_moment_of_its_failure_is_not_failed(chat):
    trap = asyncio.Event()

    class Trap(OneTurn):
        async def reset(self, task, seed):
            await trap.wait()
            raise OSError("sprung")

    desk = Desk()
    async with CannedServer(solver(chat)) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk, Trap, retries=0)
        pool.start(lease())
        await asyncio.sleep(0.05)
        trap.set()
        pool.cancel(["L1"])
        pool.start(lease(size=2))
        assert pool.held == ["L1"], "held anew"
        await settled(pool)
    assert list(desk.failed) == ["L1"] and desk.changes == 1, "the second time only"


async def test_tokens_of_a_failed_attempt_do_not_age_the_lease(chat):
    class FailsOnce(OneTurn):
        attempts = 0

        async def step(self, text, finish):
            type(self).attempts += 1
            if self.attempts == 2:
                raise OSError
            return StepResult([{"role": "user", "content": "go on"}], done=self.attempts == 4, info=self.info)

    desk, seen = Desk(), []
    versions = iter("3567")
    async with CannedServer(lambda body: answer([1], versions=[(next(versions), 0, 1)])) as server:
        async with sampler_for(server) as sampler:
            pool = pool_on(chat, sampler, desk, FailsOnce)
            count = pool._count

            def record(held, index, report):
                count(held, index, report)
                seen.append(dict(pool.oldest))

            pool._count = record
            pool.start(lease(size=1))
            await settled(pool)
    assert seen == [{"L1": 3}, {"L1": 6}, {"L1": 6}]


async def test_close_stops_everything_in_seconds(chat):
    desk = Desk()
    async with CannedServer(solver(chat), delay_s=30) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk)
        for i in range(10):
            pool.start(lease(f"L{i}", size=8))
        await asyncio.sleep(0.2)
        started = time.perf_counter()
        await pool.close()
        assert time.perf_counter() - started < 2
        assert pool.held == [] and pool.stats()["in_flight"] == 0 and not desk.groups and not desk.failed


async def test_hundreds_of_episodes_are_in_flight_together(chat):
    desk = Desk()
    script = policy(chat, "<answer>x</answer>")
    async with CannedServer(script, delay_s=2) as server, sampler_for(server) as sampler:
        pool = pool_on(chat, sampler, desk)
        for i in range(40):
            pool.start(lease(f"L{i}", size=8))
        await settled(pool)
    assert len(desk.groups) == 40 and server.most_in_flight > 200


# ── the process ──────────────────────────────────────────────────────────────


def share(model: Path) -> dict:
    """What ``Welcome.config`` holds."""
    env = EnvConfig()
    parts = {
        "env": env,
        "sampling": SamplingConfig(),
        "actor": ActorConfig(leases=3, heartbeat_s=0.2),
        "model": ModelConfig(path=str(model)),
    }
    dumped = {name: part.model_dump(mode="json") for name, part in parts.items()}
    return dumped | {"envs": {"main": {"path": env.path, "args": env.args}}}


def spawn(port: int, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "run.py", "--role", "actor", f"gateway.port={port}", "actor.heartbeat_s=0.2", *overrides]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def cpu_seconds(pid: int) -> float:
    """Time on a core so far. The clock on the wall would measure the machine's other work too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ended(process: subprocess.Popen, timeout_s: float) -> tuple[int, str]:
    output, _ = await asyncio.to_thread(process.communicate, timeout=timeout_s)
    return process.returncode, output


async def test_an_actor_process_is_light_works_and_ends_with_the_run(chat, model):
    async with CannedServer(solver(chat)) as server, CannedLearner(share(model), [server.url]) as learner:
        process = spawn(learner.port)
        try:
            await learner.until(lambda: any(beat.capacity for beat in learner.beats))
            assert cpu_seconds(process.pid) < 4, "ready in under 6 s on a machine that others use too"
            await learner.give(*(lease(f"L{i}") for i in range(3)))
            await learner.until(lambda: len(learner.groups) == 3)
            await learner.until(lambda: learner.beats[-1].held == [])
            assert learner.beats[-1].capacity == 3 and learner.beats[-1].stats["rss_mb"] < 350
            assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
            await learner.shut_down()
            code, output = await ended(process, 30)
            assert code == 0 and "the test is over" in output
            await learner.until(lambda: learner.said_goodbye)
        finally:
            process.kill()
    assert all(t.facts["metrics"]["em"] == 1.0 for group in learner.groups.values() for t in group.trajectories)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_one_signal_hands_the_leases_back_in_seconds(chat, model, number):
    async with CannedServer(solver(chat), delay_s=60) as server:
        async with CannedLearner(share(model), [server.url]) as learner:
            process = spawn(learner.port)
            try:
                await learner.until(lambda: bool(learner.beats))
                await learner.give(lease())
                await learner.until(lambda: learner.beats[-1].held == ["L1"])
                started = time.monotonic()
                os.kill(process.pid, number)
                code, output = await ended(process, 30)
                assert code == 0 and time.monotonic() - started < 10, output
                await learner.until(lambda: learner.said_goodbye)
            finally:
                process.kill()


async def test_no_learner_is_one_clear_line_and_an_exit_code():
    process = spawn(1, "actor.connect_timeout_s=0.5")
    code, output = await ended(process, 60)
    assert code == 1 and "Traceback" not in output
    assert "error: no learner answers at tcp://127.0.0.1:1" in output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": ModelConfig(path="/nowhere/model").model_dump(mode="json")}, "/nowhere/model"),
        ({"envs": {"main": {"path": "envs.multihop:Nope", "args": {}}}}, "Nope"),
        ({"sampling": {"heat": 3}}, "heat"),
    ],
)
async def test_a_configuration_that_cannot_be_carried_out_is_fatal_and_told(model, change, words):
    async with CannedLearner(share(model) | change, []) as learner:
        code, output = await ended(spawn(learner.port), 60)
        assert code == 3 and "error: " in output and words in output and "Traceback" not in output
        await learner.until(lambda: learner.said_goodbye)
