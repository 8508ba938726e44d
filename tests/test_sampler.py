"""The client of the token-in, token-out route, against a stand-in server over real HTTP."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from actors.sampler import Sampler, SamplingFailed
from tests.canned_server import CannedServer, answer


@asynccontextmanager
async def sampler_of(*servers: CannedServer, version: int = 0, timeout_s: float = 5.0):
    listed = SimpleNamespace(servers=[s.url for s in servers], version=version)
    async with Sampler(listed, timeout_s) as sampler:
        sampler.listed = listed
        yield sampler


def ask(sampler: Sampler, key: str = "e", **changes):
    settings = {"max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "seed": 11, "stop_ids": [9], "episode_key": key}
    return sampler.generate([1, 2, 3], **settings | changes)


def canned(body):
    return answer([4, 5, 9])


async def test_the_answer_comes_back_as_the_server_gave_it():
    async with CannedServer(canned) as server, sampler_of(server) as sampler:
        sampled = await ask(sampler)
    assert sampled.ids == [4, 5, 9] and sampled.finish == "stop"
    assert sampled.logprobs == [-0.5, -0.51, -0.52] and sampled.versions == [0, 0, 0]
    params = {"max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "seed": 11, "stop_token_ids": [9]}
    assert server.requests[0] == {
        "token_ids": [1, 2, 3],
        "sampling_params": params | {"logprobs": 0, "detokenize": False},
    }
    assert sampler.latency.count == 1 and sampler.latency_by_server[server.url].count == 1


async def test_each_token_keeps_the_version_that_sampled_it():
    spans = [("17", 0, 1), ("18", 1, 3)]
    async with CannedServer(lambda body: answer([4, 5, 9], versions=spans)) as server, sampler_of(server) as sampler:
        assert (await ask(sampler)).versions == [17, 18, 18]


async def test_a_server_never_pushed_to_has_version_0():
    spans = [("default", 0, 2), ("1", 2, 3)]
    async with CannedServer(lambda body: answer([4, 5, 9], versions=spans)) as server, sampler_of(server) as sampler:
        assert (await ask(sampler)).versions == [0, 0, 1]


async def test_a_restarted_server_is_not_believed_by_an_actor_that_joined_after_the_last_push():
    labels = iter(["default", "5"])
    async with (
        CannedServer(lambda body: answer([4], versions=[(next(labels), 0, 1)])) as server,
        sampler_of(server, version=5) as sampler,
    ):
        assert (await ask(sampler)).versions == [5] and sampler.faults["bad_answer"] == 1


async def test_a_server_that_forgot_its_weights_is_not_believed():
    labels = iter(["5", "default", "5"])
    async with (
        CannedServer(lambda body: answer([4], versions=[(next(labels), 0, 1)])) as server,
        sampler_of(server, version=5) as sampler,
    ):
        await ask(sampler)
        assert (await ask(sampler)).versions == [5]
        assert len(server.requests) == 3 and sampler.faults["bad_answer"] == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"choices": []},
        {"nothing": 1},
        answer([]),
        answer([4], finish="abort"),
        answer([4, 5], versions=[("0", 0, 1)]),
        answer([4, 5], versions=[("0", 1, 2)]),
        {"choices": [answer([4])["choices"][0] | {"logprobs": {"content": []}}]},
        {"choices": [answer([4])["choices"][0] | {"logprobs": {"content": [{"logprob": -9999.0}]}}]},
        500,
        503,
        429,
        None,
    ],
)
async def test_an_unusable_answer_is_asked_for_again(broken):
    replies = iter([broken, answer([4, 9])])
    async with CannedServer(lambda body: next(replies)) as server, sampler_of(server) as sampler:
        assert (await ask(sampler)).ids == [4, 9]
    assert server.requests[0] == server.requests[1], "from the turn's start, with the same seed"
    assert sum(sampler.faults.values()) == 1


async def test_a_refused_request_fails_at_once_with_the_servers_words():
    async with CannedServer(lambda body: 400) as server, sampler_of(server) as sampler:
        with pytest.raises(SamplingFailed, match="HTTP 400: canned failure"):
            await ask(sampler)
        assert len(server.requests) == 1


async def test_the_turns_of_an_episode_stick_to_one_server_and_episodes_spread():
    async with CannedServer(canned) as one, CannedServer(canned) as two, sampler_of(one, two) as sampler:
        for key in range(20):
            before = len(one.requests), len(two.requests)
            for _ in range(3):
                await ask(sampler, key=str(key))
            assert (len(one.requests) - before[0], len(two.requests) - before[1]) in ((3, 0), (0, 3))
        assert len(one.requests) > 6 and len(two.requests) > 6


async def test_a_dead_servers_requests_go_elsewhere():
    async with (
        CannedServer(canned) as gone,
        CannedServer(canned) as alive,
        sampler_of(gone, alive) as sampler,
    ):
        await gone._runner.cleanup()
        for key in range(10):
            assert (await ask(sampler, key=str(key))).ids == [4, 5, 9]
        assert len(alive.requests) == 10 and sampler.faults["connection"] > 0


async def test_only_listed_servers_are_asked():
    async with CannedServer(canned) as one, CannedServer(canned) as two, sampler_of(one, two) as sampler:
        sampler.listed.servers = [two.url]
        await asyncio.gather(*(ask(sampler, key=str(key)) for key in range(10)))
        assert one.requests == [] and len(two.requests) == 10


async def test_a_slow_server_is_not_a_dead_one():
    async with (
        CannedServer(canned, delay_s=0.5) as slow,
        CannedServer(canned, delay_s=0.5) as other,
        sampler_of(slow, other) as sampler,
    ):
        await ask(sampler)
        assert len(slow.requests) + len(other.requests) == 1


async def test_the_total_time_is_limited_and_says_who_was_waited_for():
    async with CannedServer(canned, delay_s=5) as slow, sampler_of(slow, timeout_s=0.3) as sampler:
        with pytest.raises(SamplingFailed, match=slow.url):
            await ask(sampler)
    async with CannedServer(lambda body: 500) as broken, sampler_of(broken, timeout_s=0.5) as sampler:
        with pytest.raises(SamplingFailed, match="HTTP 500"):
            await ask(sampler)
        assert len(broken.requests) < 6, "a failing server is given time"


async def test_without_a_current_server_it_waits_for_one():
    async with CannedServer(canned) as server, sampler_of(timeout_s=0.3) as sampler:
        with pytest.raises(SamplingFailed, match="the learner to list a server"):
            await ask(sampler)
        sampler.listed.servers = [server.url]
        with pytest.raises(SamplingFailed, match="version 2 or later"):
            await ask(sampler, min_version=2)
        waiting = asyncio.create_task(ask(sampler, min_version=2))
        await asyncio.sleep(0.05)
        server.script = lambda body: answer([4], versions=[("2", 0, 1)])
        sampler.listed.version = 2
        assert (await waiting).versions == [2]


async def test_tokens_older_than_asked_for_are_not_taken():
    versions = iter(["1", "2"])
    async with (
        CannedServer(lambda body: answer([4], versions=[(next(versions), 0, 1)])) as server,
        sampler_of(server, version=2) as sampler,
    ):
        assert (await ask(sampler, min_version=2)).versions == [2]
        assert sampler.faults["old_weights"] == 1


async def test_a_thousand_requests_are_in_flight_together():
    async with CannedServer(canned, delay_s=1.5) as server, sampler_of(server, timeout_s=20) as sampler:
        started = time.perf_counter()
        await asyncio.gather(*(ask(sampler, key=str(key)) for key in range(1000)))
        assert server.most_in_flight > 500 and time.perf_counter() - started < 15
