"""Agents that use the OpenAI client: what the endpoint answers, and what is written down of it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import numpy as np
import openai
import pytest

from actors.episode import EpisodeFailed, Limits, Sampling, request_seed, run_episode
from actors.openai.endpoint import Endpoint
from actors.openai.errors import ApiError
from actors.openai.player import AgentPlayer
from actors.openai.program import Agents
from actors.openai.reply import Turn
from actors.openai.request import read_request
from actors.pool import Pool
from configs.agent import AgentConfig
from configs.load import ConfigError, load_config
from configs.schema import SamplingConfig
from protocol.messages import Lease
from tests import agent_cases
from tests.actor_cases import CHAT, LIMITS, PAYLOAD, QA, sampler_for, search, solver
from tests.actor_cases import TASK as QUESTION
from tests.agent_cases import CALL, PRICE, PROGRAM, play, says, seat
from tests.canned_server import CannedServer
from tests.test_pool import Desk, settled


def text_of(trajectory, start=0, stop=None):
    return CHAT._tokenizer.decode(trajectory.token_ids[start:stop].tolist(), skip_special_tokens=False)


async def test_an_unmodified_agent_is_recorded_token_for_token():
    reports = []
    async with seat(says(f"Let me see. {CALL}", "It is 7."), "shopper") as (once, server):
        episode = await once(on_turn=reports.append)
    requests = server.requests
    episode.validate()
    ids, mask = episode.token_ids.tolist(), episode.action_mask.astype(bool)
    assert len(requests) == len(episode.turns) == 2 and episode.segments.tolist() == [0]
    for request, (start, end) in zip(requests, episode.turns.tolist(), strict=True):
        assert ids[:start] == request["token_ids"] and mask[start:end].all()
        np.testing.assert_allclose(episode.behaviour_logprobs[start:end], -0.5 - 0.01 * np.arange(end - start))
    assert mask.sum() == sum(end - start for start, end in episode.turns)
    opening = [{"role": "system", "content": "You shop."}, {"role": "user", "content": "Price of a pear?"}]
    assert ids[: episode.turns[0, 0]] == CHAT.prompt_ids(opening, [PRICE])
    assert text_of(episode, episode.turns[0, 1], episode.turns[1, 0]).startswith(
        "\n<|im_start|>user\n<tool_response>\npear: 7"
    )
    assert [r["sampling_params"]["temperature"] for r in requests] == [0.9, 0.9], "the run's, not the agent's"
    assert [r["sampling_params"]["seed"] for r in requests] == [request_seed(5, 0), request_seed(5, 1)]
    facts = episode.facts
    assert (facts["finish"], facts["outcome_reward"], facts["metrics"]) == ("done", 1.0, {"em": 1.0, "contexts": 1.0})
    [call] = facts["tool_calls"]
    assert (call["turn"], call["name"], call["fault"]) == (0, "price", None) and call["latency_s"] > 0
    assert episode.terminated and episode.rewards[-1] == 1.0 and episode.rewards.sum() == 1.0
    assert [[r.name for r in report.tool_results] for report in reports] == [[], ["price"]]


async def test_streaming_and_a_history_in_other_words_go_on_in_the_same_context():
    episode, requests = await play(says(f" Let me see. {CALL}{CALL}", "It is 7."), "plain_shopper")
    assert len(requests) == 2 and episode.segments.tolist() == [0] and episode.facts["outcome_reward"] == 1.0
    assert episode.token_ids.tolist()[: len(requests[1]["token_ids"])] == requests[1]["token_ids"]
    assert [c["name"] for c in episode.facts["tool_calls"]] == ["price", "price"]


@pytest.mark.timeout(300)
async def test_a_program_is_an_agent_too():
    episode, requests = await play(says("It is 7."), [sys.executable, "-c", PROGRAM])
    assert episode.facts["outcome_reward"] == 1.0 and len(requests) == 1
    with pytest.raises(EpisodeFailed, match="ended with status 1: the till is empty") as failure:
        await play(says("x"), [sys.executable, "-S", "-c", "import sys; sys.exit('the till is empty')"])
    assert failure.value.kind == "agent"


async def test_rewritten_history_is_another_context_with_nothing_of_the_first():
    episode, requests = await play(says("first", "second", "third 7"), "forgetful")
    assert len(requests) == 3 and len(episode.turns) == 3
    start = int(episode.segments[1])
    assert episode.segments.tolist() == [0, start] == [0, len(requests[0]["token_ids"]) + len("first") + 1]
    assert not episode.action_mask[start : start + len(requests[1]["token_ids"])].any()
    assert "first" not in text_of(episode, start) and "(shortened)" in text_of(episode, start)
    assert episode.token_ids[start:].tolist()[: len(requests[2]["token_ids"])] == requests[2]["token_ids"]
    assert episode.rewards[-1] == 1.0


async def test_branches_share_the_tokens_that_were_sampled_and_train_them_once():
    turns = iter(["first", "to one 7", "to the other"])
    episode, requests = await play(lambda body: says(next(turns))(body), "brancher")
    assert len(episode.segments) == 2 and len(episode.turns) == 3
    stem = len(requests[0]["token_ids"]) + len("first") + 1
    branch = episode.by_segment(episode.token_ids)[1].tolist()
    assert branch[:stem] == episode.token_ids[:stem].tolist(), "the sampled ids themselves, not rendered anew"
    assert not episode.by_segment(episode.action_mask)[1][:stem].any()


@pytest.mark.parametrize("agent", ["endless", "careful"])
async def test_an_episode_that_reached_its_turns_is_cut_and_scored(agent):
    episode, requests = await play(says(*["7"] * 9), agent, limits=Limits(3, 1500, 50))
    assert len(requests) == 3 and episode.facts["finish"] == "max_turns" and not episode.terminated
    assert episode.facts["outcome_reward"] == (1.0 if agent == "careful" else 0.0)


async def test_a_context_is_bounded_by_max_tokens_and_their_number_by_contexts():
    episode, requests = await play(says(*["x" * 60] * 9), "careful", limits=Limits(9, 150, 50))
    assert episode.facts["finish"] == "length" and len(episode) <= 150
    assert requests[0]["sampling_params"]["max_tokens"] == 50 and requests[-1]["sampling_params"]["max_tokens"] < 50
    episode, requests = await play(says("first", "second"), "forgetful", contexts=1)
    assert len(requests) == 1 and episode.facts["finish"] == "length" and episode.segments.tolist() == [0]


async def test_a_failing_agent_fails_its_episode_or_is_priced():
    with pytest.raises(EpisodeFailed, match="JSONDecodeError") as failure:
        await play(says("no JSON"), "clumsy")
    assert failure.value.kind == "agent"
    episode, _ = await play(says("no JSON"), "clumsy", error_reward=-0.5)
    assert episode.facts["finish"] == "error" and episode.terminated and episode.rewards[-1] == -0.5
    for agent, says_why in (("silent", "without a call"), ("leaver", "SystemExit: I am off")):
        with pytest.raises(EpisodeFailed, match=says_why):
            await play(says("x"), agent, error_reward=0.0)


async def test_a_blocking_coroutine_holds_up_neither_the_endpoint_nor_the_clock():
    longest = 0.0

    async def watch():
        nonlocal longest
        clock = asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.sleep(0.01)
            longest = max(longest, clock() - before)

    watcher = asyncio.create_task(watch())
    with pytest.raises(EpisodeFailed, match=r"no result after 0.5 s"):
        await play(says("x"), "hanging", timeout_s=0.5)
    watcher.cancel()
    assert longest < 0.25


async def test_rewards_come_with_metrics_or_fail_loudly():
    episode, _ = await play(says("x 7"), "caller", score="tests.agent_cases:with_metrics")
    assert episode.facts["metrics"] == {"em": 0.0, "turns": 1.0, "contexts": 1.0} and episode.rewards[-1] == 0.5
    with pytest.raises(EpisodeFailed, match=r"agent.reward is None") as failure:
        await play(says("x"), "caller", score="tests.agent_cases:nothing")
    assert failure.value.kind == "reward"


@pytest.mark.parametrize(
    "options",
    [{"n": 2}, {"stop": ["x"]}, {"logprobs": True}, {"tool_choice": "required"}, {"extra_body": {"top_k": 5}}],
)
async def test_what_would_change_the_distribution_is_refused_in_the_forms_of_the_api(monkeypatch, options):
    monkeypatch.setattr(agent_cases, "OPTIONS", options)
    with pytest.raises(EpisodeFailed, match=r"BadRequestError.*leave it out"):
        async with seat(says("x"), "caller") as (once, server):
            await once()
    assert server.requests == []


async def test_an_agents_own_limit_and_the_servers_failure(monkeypatch):
    monkeypatch.setattr(agent_cases, "OPTIONS", {"max_completion_tokens": 3})
    episode, requests = await play(says("a long answer"), "caller")
    assert requests[0]["sampling_params"]["max_tokens"] == 3 and episode.action_mask.sum() == 3
    with pytest.raises(EpisodeFailed, match="refused the request") as failure:
        async with seat(lambda body: 400, "caller") as (once, server):
            await once()
    assert failure.value.kind == "sampling" and len(server.requests) == 1, "the client does not try again"


async def test_strangers_and_latecomers_are_turned_away():
    seen = {}

    async def look(task, base_url, api_key):
        seen.update(url=base_url, key=api_key)
        async with aiohttp.ClientSession() as http:
            for path, key in (("/chat/completions", "wrong"), ("/models", api_key), ("/embeddings", api_key)):
                async with http.request(
                    "GET" if path == "/models" else "POST", base_url + path, headers={"Authorization": f"Bearer {key}"}
                ) as answer:
                    seen[path] = (answer.status, await answer.json())
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            return await agent_cases.ask(client, "one")

    agent_cases.look = look
    episode, _ = await play(says("7"), "look")
    assert seen["/chat/completions"][0] == 401 and seen["/chat/completions"][1]["error"]["code"] == "invalid_api_key"
    assert seen["/models"][1]["data"][0]["id"] == "policy"
    assert seen["/embeddings"][0] == 404 and "only /chat/completions" in seen["/embeddings"][1]["error"]["message"]
    assert len(episode.turns) == 1 and seen["url"].startswith("http://127.0.0.1:")


async def test_an_agent_that_hangs_up_leaves_no_trace():
    async def impatient(task, base_url, api_key):
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await agent_cases.ask(client, "slow")
            return await agent_cases.ask(client, "quick")

    agent_cases.impatient = impatient

    async with seat(says("dropped", "7"), "impatient") as (once, server):
        server.delay_s = 2.0
        episode = asyncio.ensure_future(once())
        async with asyncio.timeout(20):
            while not server.requests:
                await asyncio.sleep(0.01)
        server.delay_s = 0.0
        episode = await episode
    assert len(episode.turns) == 1 and "slow" not in text_of(episode) and len(server.requests) == 2


def test_a_malformed_call_stays_in_the_text_and_is_counted():
    turn = Turn.of("<think>hm</think>Well <tool_call>{oops}</tool_call>", False, CHAT.tool_format, [PRICE])
    assert turn.calls == [] and turn.malformed == 1 and turn.content == "Well <tool_call>{oops}</tool_call>"
    assert turn.thought == "hm"
    assert Turn.of(f"Well {CALL}", False, CHAT.tool_format, []).content == f"Well {CALL}", "no tools, no calls"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text parts"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "continuing"),
        ({"tools": [{"type": "code_interpreter"}]}, r"tools\[0\]"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_a_request_that_cannot_be_carried_out_names_its_fault(change, names):
    with pytest.raises(ApiError, match=names):
        read_request({"messages": [{"role": "user", "content": "x"}], **change})
    assert json.dumps(ApiError("x").body()) == (
        '{"error": {"message": "x", "type": "invalid_request_error", "param": null, "code": null}}'
    )


@pytest.mark.parametrize(
    ("agent", "says_why"),
    [
        ({"path": "tests.agent_cases:nobody"}, "no function of that name"),
        ({"path": "tests.no_such_module:run"}, "PYTHONPATH"),
        ({"path": "tests.agent_cases:says", "reward": "tests.agent_cases:text"}, "no function"),
        ({"path": "tests.agent_cases:silent", "reward": "tests.actor_cases:search"}, "task, result, trajectory"),
    ],
)
def test_a_function_that_is_not_there_is_named(agent, says_why):
    with pytest.raises(ValueError, match=says_why):
        Agents(AgentConfig(**{"reward": "tests.agent_cases:contains", **agent}))


@pytest.mark.parametrize(
    ("options", "says_why"),
    [
        (["agent.reward=a:b"], "set one of them"),
        (["agent.reward=a:b", "agent.path=a:b", "agent.timeout_s=600"], "lease_timeout_s"),
        (
            ["agent.reward=a:b", "agent.path=a:b", "eval.endpoint=http://x/v1", "eval.endpoint_model=m"],
            "eval.endpoint",
        ),
    ],
)
def test_options_that_do_not_fit_together(options, says_why):
    with pytest.raises(ConfigError, match=says_why):
        load_config(None, options)


async def test_the_example_agent_searches_and_is_scored(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs" / "examples"))
    import search_agent

    monkeypatch.setattr(agent_cases, "example", search_agent.run, raising=False)
    one, two = PAYLOAD["gold_titles"]
    turns = (f"look {search(one)}", search(two), f"<answer> {PAYLOAD['answers'][0]}</answer>")
    monkeypatch.setattr(agent_cases, "TASK", QUESTION)
    episode, requests = await play(says(*turns), "example", score="search_agent:score", limits=LIMITS)
    assert len(requests) == 3 and episode.facts["outcome_reward"] == 1.0
    assert [call["name"] for call in episode.facts["tool_calls"]] == ["search", "search"]
    # The policy sees what the environment of the built-in world would have shown it, token for token.
    async with CannedServer(solver()) as server, sampler_for(server) as sampler:
        theirs = await run_episode(QA(), CHAT, sampler, QUESTION, 5, LIMITS, Sampling(1.0, 1.0), key="k")
    assert episode.token_ids.tolist() == theirs.token_ids.tolist()


async def test_a_lease_of_the_runs_own_tasks_is_played_by_the_agent():
    desk = Desk()
    async with seat(says(*["7"] * 8), "caller") as (_, server), sampler_for(server) as sampler:
        config = AgentConfig(path="tests.agent_cases:caller", reward="tests.agent_cases:contains")
        async with Agents(config) as agents, Endpoint() as endpoint:
            player = AgentPlayer(config, agents, endpoint, CHAT, sampler, agent_cases.LIMITS)
            pool = Pool(
                {}, CHAT, sampler, agent_cases.LIMITS, SamplingConfig(), 1, desk.deliver, desk.fail, agent=player
            )
            pool.start(Lease(lease_id="L1", task=agent_cases.TASK, group_size=4, seed=100))
            await settled(pool)
            stats = pool.stats()
    [group] = desk.groups.values()
    assert [t.facts["seed"] for t in group.trajectories] == [100, 101, 102, 103]
    assert (stats["episodes"], stats["turns"], stats["in_flight"]) == (4, 4, 0)
