"""Leases in, groups out: all episodes of all leases, concurrently on one event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.chat import ChatFormat
from actors.episode import EpisodeFailed, Limits, Sampling, TurnReport, run_episode
from actors.openai.player import AgentPlayer
from actors.sampler import Sampler
from actors.stats import Latencies, Rate, rss_mb
from actors.turnstile import Turnstile
from configs.schema import SamplingConfig
from envs.base import ToolEnv
from protocol.codec import ProtocolError
from protocol.messages import Lease
from protocol.trajectory import NO_VERSION, Group, Trajectory
from tools.runner import blocking_calls

log = logging.getLogger("rollway.actor")

#: Names that a model made up are counted together, or its imagination would fill our memory.
_NO_TOOL = "(none)"


@dataclass(slots=True)
class _Held:
    """A lease being worked on. ``oldest``: episode index → lowest version among its tokens so far."""

    lease: Lease
    oldest: dict[int, int] = field(default_factory=dict)
    work: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _ToolStats:
    faults: int = 0
    latency: Latencies = field(default_factory=Latencies)


class Pool:
    """Works on the leases that it is given and hands each result to a callback, once.

    envs: name, as in ``Task.env`` → environment class, set up.
    deliver: awaited with each complete group. fail: awaited with (lease id, reason) when an
    episode has failed ``1 + retries`` times; the group is then dropped as a whole. Neither
    is called for a lease that was cancelled. on_change: called when ``held`` has become less.
    eval_temperature: of evaluation episodes, 0 being greedy; ``sampling`` is that of training.
    agent: plays the run's own tasks, those of ``main``, where the configuration has one.
    """

    def __init__(
        self,
        envs: Mapping[str, type[ToolEnv]],
        chat: ChatFormat,
        sampler: Sampler,
        limits: Limits,
        sampling: SamplingConfig,
        retries: int,
        deliver: Callable[[Group], Awaitable[None]],
        fail: Callable[[str, str], Awaitable[None]],
        on_change: Callable[[], None] = lambda: None,
        eval_temperature: float = 0.0,
        agent: AgentPlayer | None = None,
    ):
        self._envs, self._chat, self._sampler = envs, chat, sampler
        self._limits, self._sampling, self._retries = limits, sampling, retries
        self._deliver, self._fail, self._on_change = deliver, fail, on_change
        self._eval_temperature, self._agent = eval_temperature, agent
        self._turnstile = Turnstile()
        self._held: dict[str, _Held] = {}
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._tools: defaultdict[str, _ToolStats] = defaultdict(_ToolStats)
        self._tokens, self._episodes = Rate(), Rate()
        self._version = NO_VERSION

    @property
    def held(self) -> list[str]:
        """Ids of the leases in work, until their group is acknowledged."""
        return list(self._held)

    @property
    def oldest(self) -> dict[str, int]:
        """Lease id → lowest policy version among its tokens so far, for leases that have any."""
        return {lease_id: min(held.oldest.values()) for lease_id, held in self._held.items() if held.oldest}

    def start(self, lease: Lease) -> None:
        """Begin work on a lease; one that is held already is left as it is."""
        if lease.lease_id in self._held:
            return
        held = self._held[lease.lease_id] = _Held(lease)
        held.work = asyncio.create_task(self._work(held), name=f"lease {lease.lease_id}")

    def cancel(self, lease_ids: Sequence[str]) -> None:
        """Stop work on these leases and forget them; unknown ids are no fault."""
        for lease_id in lease_ids:
            if (held := self._held.pop(lease_id, None)) is not None:
                self._counts["groups_cancelled"] += 1
                held.work.cancel()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Cancel everything; wait until it has stopped, ``timeout_s`` at most."""
        works = [held.work for held in self._held.values()]
        self.cancel(self.held)
        if works:
            _, running = await asyncio.wait(works, timeout=timeout_s)
            if running:
                log.warning("%d leases did not stop within %g s", len(running), timeout_s)

    def stats(self) -> dict[str, Any]:
        """Plain values for the heartbeat. ``version``: the newest that sampled any of its tokens."""
        latency = self._sampler.latency.summary()
        return {
            "in_flight": self._counts["in_flight"],
            "episodes": self._counts["episodes"],
            "groups": self._counts["groups"],
            "groups_failed": self._counts["groups_failed"],
            "groups_cancelled": self._counts["groups_cancelled"],
            "turns": self._counts["turns"],
            "tokens": self._counts["tokens"],
            "tokens_per_s": round(self._tokens.per_second(), 1),
            "episodes_per_s": round(self._episodes.per_second(), 2),
            "version": self._version,
            "latency_p50": latency["p50"],
            "latency_p99": latency["p99"],
            "servers": {
                url: {"requests": server.count, **server.summary()}
                for url, server in self._sampler.latency_by_server.items()
            },
            "tools": {
                name: {"calls": tool.latency.count, "faults": tool.faults, **tool.latency.summary()}
                for name, tool in self._tools.items()
            },
            "faults": {**self._faults, **{f"request.{kind}": n for kind, n in self._sampler.faults.items()}},
            "abandoned_threads": blocking_calls.abandoned,
            "rss_mb": round(rss_mb(), 1),
        }

    async def _work(self, held: _Held) -> None:
        """A lease from start to end. It is held until the learner has its group, or knows that there is none."""
        lease_id = held.lease.lease_id
        try:
            await self._deliver(await self._play(held))
            self._counts["groups"] += 1
            self._forget(held)
        except ConnectionError as error:  # the learner is gone; the actor's main loop hears of it too
            log.warning("lease %s: not delivered: %s", lease_id, error)
        except Exception as error:
            if not isinstance(error, EpisodeFailed | ProtocolError):
                log.exception("lease %s: unexpected failure", lease_id)
            if self._forget(held):
                self._counts["groups_failed"] += 1
                await self._fail(lease_id, f"{type(error).__name__}: {error}"[:2000])

    def _forget(self, held: _Held) -> bool:
        """False where the lease was cancelled in the very moment of its end; it may be held anew by now."""
        if self._held.get(held.lease.lease_id) is not held:
            return False
        del self._held[held.lease.lease_id]
        self._on_change()
        return True

    async def _play(self, held: _Held) -> Group:
        """All episodes of a group at once. The first that fails for good takes the others with it."""
        lease = held.lease
        try:
            async with asyncio.TaskGroup() as tasks:
                episodes = [tasks.create_task(self._episode(held, index)) for index in range(lease.group_size)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return Group(lease.lease_id, lease.task.task_id, [episode.result() for episode in episodes])

    async def _episode(self, held: _Held, index: int) -> Trajectory:
        """One member of the group, with its retries."""
        lease = held.lease
        evaluated = lease.purpose == "eval"
        sampling = Sampling(
            temperature=self._eval_temperature if evaluated else self._sampling.temperature,
            top_p=1.0 if evaluated else self._sampling.top_p,
            min_version=lease.min_version,
        )
        attempt = 0
        while True:
            held.oldest.pop(index, None)  # tokens of a failed attempt are trained on by nobody
            self._counts["in_flight"] += 1
            try:
                trajectory = await self._play_one(lease.task.env)(
                    lease.task,
                    seed=lease.seed + index,
                    sampling=sampling,
                    key=f"{lease.lease_id}/{index}/{attempt}",
                    on_turn=lambda report: self._count(held, index, report),
                    turnstile=self._turnstile,
                )
                self._counts["episodes"] += 1
                self._episodes.add(1)
                return trajectory
            except EpisodeFailed as failure:
                self._faults[f"episode.{failure.kind}"] += 1
                log.warning("task %s, attempt %d: %s", lease.task.task_id, attempt + 1, failure)
                if attempt == self._retries:
                    raise
                attempt += 1
            finally:
                self._counts["in_flight"] -= 1

    def _play_one(self, env: str) -> Callable[..., Awaitable[Trajectory]]:
        """Who plays the episodes of this environment: ``run_episode``, or the user's agent."""
        if self._agent and env == "main":
            return self._agent.play
        return functools.partial(run_episode, self._envs[env](), self._chat, self._sampler, limits=self._limits)

    def _count(self, held: _Held, index: int, report: TurnReport) -> None:
        sampled = report.sampled
        held.oldest[index] = min(held.oldest.get(index, sampled.versions[0]), *sampled.versions)
        self._version = max(self._version, *sampled.versions)
        self._counts["turns"] += 1
        self._counts["tokens"] += len(sampled.ids)
        self._tokens.add(len(sampled.ids))
        for result in report.tool_results:
            known = result.fault not in ("malformed", "unknown_tool")
            tool = self._tools[result.name if known else _NO_TOOL]
            tool.latency.add(result.latency_s)
            if result.fault is not None:
                tool.faults += 1
                self._faults[f"tool.{result.fault}"] += 1
