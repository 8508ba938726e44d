"""One episode against a stand-in server: the row holds exactly what was sampled, and the limits hold."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import numpy as np
import pytest

from actors.episode import EpisodeFailed, Limits, Sampling, request_seed, run_episode
from envs.base import StepResult
from tests.actor_cases import CHAT, LIMITS, PAYLOAD, QA, TASK, OneTurn, policy, sampler_for, search, solver, turns_of
from tests.canned_server import CannedServer, answer


async def play(script, env=None, limits=LIMITS, task=TASK, sampling=None, **more):
    async with CannedServer(script) as server, sampler_for(server) as sampler:
        trajectory = await run_episode(
            env or QA(), CHAT, sampler, task, 5, limits, sampling or Sampling(1.0, 1.0), key="k", **more
        )
    return trajectory, server.requests


async def test_an_episode_is_one_row_of_exactly_what_was_sampled():
    reports = []
    trajectory, requests = await play(solver(), on_turn=reports.append)
    trajectory.validate()
    ids, mask = trajectory.token_ids.tolist(), trajectory.action_mask.astype(bool)
    # Every request's prompt is a prefix of the row, and turns start exactly where prompts end.
    assert len(requests) == len(trajectory.turns) == 3
    for request, (start, end) in zip(requests, trajectory.turns.tolist(), strict=True):
        assert ids[:start] == request["token_ids"]
        assert mask[start:end].all() and ids[end - 1] == CHAT.eot_id
        np.testing.assert_allclose(trajectory.behaviour_logprobs[start:end], -0.5 - 0.01 * np.arange(end - start))
    assert mask.sum() == sum(end - start for start, end in trajectory.turns)
    assert (trajectory.versions[mask] == 0).all() and (trajectory.versions[~mask] == -1).all()
    assert not trajectory.behaviour_logprobs[~mask].any()
    # The first prompt is the template's, the rest between turns is the template's too.
    schema = QA()
    await schema.reset(PAYLOAD, 0)
    tools = [tool.schema() for tool in schema.tools]
    assert ids[: trajectory.turns[0, 0]] == CHAT.prompt_ids([{"role": "user", "content": PAYLOAD["question"]}], tools)
    between = CHAT._tokenizer.decode(ids[trajectory.turns[0, 1] : trajectory.turns[1, 0]], skip_special_tokens=False)
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
    assert [(c["turn"], c["name"], c["fault"]) for c in facts["tool_calls"]] == [
        (0, "search", None),
        (1, "search", None),
    ]
    assert len(reports) == 3


async def test_requests_are_seeded_by_episode_and_turn_alone():
    _, first = await play(solver())
    _, again = await play(solver())
    seeds = [r["sampling_params"]["seed"] for r in first]
    assert seeds == [r["sampling_params"]["seed"] for r in again] == [request_seed(5, turn) for turn in range(3)]
    assert len({request_seed(s, t) for s, t in itertools.product(range(50), range(8))}) == 400


async def test_a_turn_cut_by_the_limit_runs_no_call_and_is_closed_by_the_environment():
    cut = CHAT._encode('<tool_call>{"name": "search", "argu')
    end = [*CHAT._encode("<answer>x</answer>"), CHAT.eot_id]
    trajectory, _ = await play(lambda body: answer(cut, finish="length") if not turns_of(body) else answer(end))
    after = trajectory.turns[0, 1]
    assert trajectory.token_ids[after] == CHAT.eot_id and trajectory.action_mask[after] == 0
    assert trajectory.facts["tool_calls"] == [] and trajectory.facts["finish"] == "done"


async def test_max_turns_cuts_the_episode_and_scores_it():
    trajectory, requests = await play(policy(search("x")), limits=Limits(3, 2000, 400))
    assert len(requests) == 3 and trajectory.facts["finish"] == "max_turns" and not trajectory.terminated
    assert trajectory.turns[-1, 1] == len(trajectory), "a row ends with an action token"
    assert trajectory.rewards[-1] == pytest.approx(-0.5)


async def test_max_tokens_bounds_every_turn_and_the_row():
    start = len((await play(solver()))[1][0]["token_ids"])
    limits = Limits(6, start + 150, 100)
    trajectory, requests = await play(policy(search("x")), limits=limits)
    assert trajectory.facts["finish"] == "length" and not trajectory.terminated and len(trajectory) <= start + 150
    assert requests[0]["sampling_params"]["max_tokens"] == 100
    _, requests = await play(policy(search("x")), limits=Limits(6, start + 50, 100))
    assert requests[0]["sampling_params"]["max_tokens"] == 50 and len(requests) == 1
    with pytest.raises(EpisodeFailed, match="max_tokens"):
        await play(solver(), limits=Limits(6, start, 100))


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
async def test_a_reward_that_is_not_a_finite_number_fails_the_episode(reward, info):
    with pytest.raises(EpisodeFailed, match="not a finite number") as failure:
        await play(policy("x"), OneTurn(reward, info))
    assert failure.value.kind == "reward"


async def test_a_reward_too_large_for_its_array_fails_the_episode():
    with np.errstate(over="ignore"), pytest.raises(EpisodeFailed, match="rewards"):
        await play(policy("x"), OneTurn(1e300))


async def test_what_an_environment_raises_fails_the_episode_and_it_is_closed():
    class Broken(OneTurn):
        closed = False

        async def step(self, text, finish):
            raise KeyError("field")

        async def close(self):
            self.closed = True

    env = Broken()
    with pytest.raises(EpisodeFailed, match="KeyError") as failure:
        await play(policy("x"), env)
    assert failure.value.kind == "environment" and env.closed

    class Forgetful(OneTurn):
        async def step(self, text, finish):
            return None

    with pytest.raises(EpisodeFailed, match="not a StepResult"):
        await play(policy("x"), Forgetful())


async def test_a_blocking_environment_runs_off_the_loop():
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
    await play(policy("x"), Blocking())
    watcher.cancel()
    assert longest < 0.15
