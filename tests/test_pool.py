"""Leases to groups: retries, cancellation, counters, many at once."""

from __future__ import annotations

import asyncio
import time

from actors.pool import Pool
from configs.schema import SamplingConfig
from envs.base import StepResult
from tests.actor_cases import CHAT, LIMITS, QA, TASK, OneTurn, lease, policy, sampler_for, solver
from tests.canned_server import CannedServer, answer


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


def pool_on(sampler, desk, env=QA, retries=1, sampling=None) -> Pool:
    sampling = sampling or SamplingConfig(temperature=0.8, top_p=0.95)
    return Pool({"main": env}, CHAT, sampler, LIMITS, sampling, retries, desk.deliver, desk.fail, desk.changed)


async def settled(pool: Pool) -> None:
    async with asyncio.timeout(60):
        while pool.held:
            await asyncio.sleep(0.01)


async def test_a_lease_becomes_a_group_of_seeded_episodes():
    desk = Desk()
    async with CannedServer(solver()) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk)
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


async def test_evaluation_is_greedy():
    desk = Desk()
    async with CannedServer(solver()) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk)
        pool.start(lease(size=1, purpose="eval"))
        await settled(pool)
    assert {(r["sampling_params"]["temperature"], r["sampling_params"]["top_p"]) for r in server.requests} == {
        (0.0, 1.0)
    }


class FailsAtFirst(OneTurn):
    """The first ``failures`` resets of the process raise."""

    failures = 0

    async def reset(self, task, seed):
        type(self).failures -= 1
        if type(self).failures >= 0:
            raise OSError("no room")
        return await super().reset(task, seed)


async def test_a_failed_member_is_tried_again():
    desk, env = Desk(), type("Env", (FailsAtFirst,), {"failures": 1})
    async with CannedServer(policy("x")) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk, env, retries=1)
        pool.start(lease())
        await settled(pool)
        assert pool.stats()["faults"] == {"episode.environment": 1}
    assert len(desk.groups["L1"].trajectories) == 4 and not desk.failed


async def test_a_group_that_cannot_be_completed_is_handed_back_whole():
    desk, env = Desk(), type("Env", (FailsAtFirst,), {"failures": 1000})
    async with CannedServer(policy("x")) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk, env, retries=2)
        pool.start(lease())
        await settled(pool)
        stats = pool.stats()
    assert not desk.groups and "OSError: no room" in desk.failed["L1"]
    assert stats["groups_failed"] == 1 and stats["in_flight"] == 0
    assert 3 <= stats["faults"]["episode.environment"] <= 12


async def test_names_that_a_model_makes_up_take_one_row():
    made_up = "".join(f'<tool_call>{{"name": "tool{i}"}}</tool_call>' for i in range(5))
    desk = Desk()
    async with CannedServer(policy(made_up, "<answer>x</answer>")) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk)
        pool.start(lease(size=1))
        await settled(pool)
        stats = pool.stats()
    assert stats["tools"] == {"(none)": stats["tools"]["(none)"]} and stats["tools"]["(none)"]["faults"] == 5
    assert stats["faults"]["tool.unknown_tool"] == 5


async def test_a_cancelled_lease_stops_and_is_neither_delivered_nor_failed():
    desk = Desk()
    async with CannedServer(solver(), delay_s=0.1) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk)
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


async def test_a_lease_cancelled_in_the_moment_of_its_failure_is_not_failed():
    trap = asyncio.Event()

    class Trap(OneTurn):
        async def reset(self, task, seed):
            await trap.wait()
            raise OSError("sprung")

    desk = Desk()
    async with CannedServer(solver()) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk, Trap, retries=0)
        pool.start(lease())
        await asyncio.sleep(0.05)
        trap.set()
        pool.cancel(["L1"])
        pool.start(lease(size=2))
        assert pool.held == ["L1"], "held anew"
        await settled(pool)
    assert list(desk.failed) == ["L1"] and desk.changes == 1, "the second time only"


async def test_tokens_of_a_failed_attempt_do_not_age_the_lease():
    class FailsOnce(OneTurn):
        attempts = 0

        async def step(self, text, finish):
            type(self).attempts += 1
            if self.attempts == 2:
                raise OSError
            return StepResult([{"role": "user", "content": "go on"}], done=self.attempts == 4, info=self.info)

    desk, seen = Desk(), []
    versions = iter("3567")
    async with (
        CannedServer(lambda body: answer([1], versions=[(next(versions), 0, 1)])) as server,
        sampler_for(server) as sampler,
    ):
        pool = pool_on(sampler, desk, FailsOnce)
        count = pool._count

        def record(held, index, report):
            count(held, index, report)
            seen.append(dict(pool.oldest))

        pool._count = record
        pool.start(lease(size=1))
        await settled(pool)
    assert seen == [{"L1": 3}, {"L1": 6}, {"L1": 6}]


async def test_close_stops_everything_in_seconds():
    desk = Desk()
    async with CannedServer(solver(), delay_s=30) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk)
        for i in range(10):
            pool.start(lease(f"L{i}", size=8))
        await asyncio.sleep(0.2)
        started = time.perf_counter()
        await pool.close()
        assert time.perf_counter() - started < 2
        assert pool.held == [] and pool.stats()["in_flight"] == 0 and not desk.groups and not desk.failed


async def test_hundreds_of_episodes_are_in_flight_together():
    desk = Desk()
    script = policy("<answer>x</answer>")
    async with CannedServer(script, delay_s=2) as server, sampler_for(server) as sampler:
        pool = pool_on(sampler, desk)
        for i in range(40):
            pool.start(lease(f"L{i}", size=8))
        await settled(pool)
    assert len(desk.groups) == 40 and server.most_in_flight > 200
