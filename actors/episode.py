"""One episode: generate ⇄ environment, written down as one ``Trajectory``."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.chat import ChatFormat, ChatFormatError
from actors.row import Row, assemble
from actors.sampler import Sampled, Sampler, SamplingFailed
from actors.turnstile import Turnstile
from envs.base import StepResult, ToolEnv
from protocol.messages import Task
from protocol.trajectory import Trajectory
from tools.base import ToolResult
from tools.runner import blocking_calls
from tools.threads import GivenUp, TooManyHung

log = logging.getLogger("rollway.actor")

#: The longest that one call of an environment (reset, step, …) may take. Tools have tighter limits of their own.
ENV_TIMEOUT_S = 120.0


class EpisodeFailed(Exception):
    """The episode yields no trajectory. ``kind`` is what to count: environment | agent | reward | sampling | tokens."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Limits:
    """max_turns: turns of the policy. max_tokens: of the whole episode. turn_tokens: of one turn."""

    max_turns: int
    max_tokens: int
    turn_tokens: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0 is greedy. min_version: see ``protocol.messages.Lease``."""

    temperature: float
    top_p: float
    min_version: int = 0


@dataclass(slots=True)
class TurnReport:
    """What happened in one turn, for counters: its tokens and what its tools did."""

    sampled: Sampled
    tool_results: list[ToolResult]


async def run_episode(
    env: ToolEnv,
    chat: ChatFormat,
    sampler: Sampler,
    task: Task,
    seed: int,
    limits: Limits,
    sampling: Sampling,
    key: str,
    on_turn: Callable[[TurnReport], None] = lambda report: None,
    turnstile: Turnstile | None = None,
) -> Trajectory:
    """Play one episode to its end or to a limit; ``env`` is used once and closed.

    seed: given to the environment; each request's seed follows from it and the turn.
    key: unique among the episodes that run, ties its turns to one server.
    turnstile: passed before the first turn and after each answer of a server.
    Raises ``EpisodeFailed``.
    """
    row = Row()
    tool_calls: list[dict[str, Any]] = []
    process_reward = 0.0
    turnstile = turnstile or Turnstile()
    try:
        await turnstile.enter()
        env.tool_format = chat.tool_format
        messages = await _call(env.reset, task.payload, seed)
        schemas = [tool.schema() for tool in env.tools]
        row.add_context(_tokenise(chat.prompt_ids, messages, schemas))
        if len(row) >= limits.max_tokens:
            raise EpisodeFailed("tokens", f"the prompt has {len(row)} tokens, model.max_tokens is {limits.max_tokens}")
        for turn in range(limits.max_turns):
            sampled = await sampler.generate(
                row.token_ids.tolist(),
                max_tokens=min(limits.turn_tokens, limits.max_tokens - len(row)),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=request_seed(seed, turn),
                stop_ids=chat.stop_ids,
                episode_key=key,
                min_version=sampling.min_version,
            )
            await turnstile.enter()
            row.add_turn(sampled)
            result = await _call(env.step, chat.decode(sampled.ids), sampled.finish)
            tool_calls += [
                {"turn": turn, "name": r.name, "latency_s": r.latency_s, "fault": r.fault} for r in result.tool_results
            ]
            on_turn(TurnReport(sampled, result.tool_results))
            reward = finite(result.reward, "the process reward")
            row.add_reward(reward)
            process_reward += reward
            if result.done:
                finish = "done"
                break
            response = _tokenise(chat.continue_ids, sampled.ids, result.messages, schemas)
            if len(row) + len(response) >= limits.max_tokens:
                finish = "length"
                break
            # Nothing follows the last turn: a trajectory ends with an action token.
            if turn + 1 < limits.max_turns:
                row.add_context(response)
        else:
            finish = "max_turns"
        if finish != "done":
            result = await _call(env.truncate)
        outcome = finite(result.info.get("outcome_reward"), "info['outcome_reward']")
        row.add_reward(outcome)
        facts = {
            "task_id": task.task_id,
            "dataset": task.dataset,
            "seed": seed,
            "finish": finish,
            "outcome_reward": outcome,
            "process_reward": process_reward,
            "metrics": {
                str(name): finite(value, f"metric {name!r}") for name, value in result.info.get("metrics", {}).items()
            },
            "tool_calls": tool_calls,
        }
        return finished([row], finish == "done", facts)
    except SamplingFailed as error:
        raise EpisodeFailed("sampling", str(error)) from error
    finally:
        await _close(env)


def request_seed(seed: int, turn: int) -> int:
    """Sampling seed of one turn, in [0, 2³¹): a function of the episode's seed and the turn alone."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {turn}".encode(), digest_size=4).digest()) >> 1


def finished(rows: Sequence[Row], terminated: bool, facts: dict[str, Any]) -> Trajectory:
    """The episode of these contexts. Raises ``EpisodeFailed``."""
    try:
        return assemble(rows, terminated, facts)
    except ValueError as error:
        raise EpisodeFailed("tokens", str(error)) from error


def finite(value: Any, what: str) -> float:
    """Never read as 0: a reward that is missing, NaN or infinite fails the episode."""
    if not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise EpisodeFailed("reward", f"{what} is {value!r}, not a finite number")
    return float(value)


def _tokenise(function: Callable[..., list[int]], *args: Any) -> list[int]:
    try:
        return function(*args)
    except ChatFormatError as error:
        raise EpisodeFailed("environment", str(error)) from error


async def _call(method: Callable[..., Any], *args: Any) -> Any:
    """Call an environment. A plain function may block: it runs in a thread."""
    what = getattr(method, "__qualname__", repr(method))
    limit = asyncio.timeout(ENV_TIMEOUT_S)
    try:
        if inspect.iscoroutinefunction(method):
            async with limit:
                value = await method(*args)
        else:
            value = await blocking_calls.run(functools.partial(method, *args), ENV_TIMEOUT_S)
    except (GivenUp, TooManyHung) as error:
        raise EpisodeFailed("environment", f"{what}: {error}") from error
    except Exception as error:
        reason = f"no answer after {ENV_TIMEOUT_S:g} s" if limit.expired() else f"{type(error).__name__}: {error}"
        raise EpisodeFailed("environment", f"{what}: {reason}") from error
    if method.__name__ in ("step", "truncate") and not isinstance(value, StepResult):
        raise EpisodeFailed("environment", f"{what} returned {type(value).__name__}, not a StepResult")
    return value


async def _close(env: ToolEnv) -> None:
    """An episode's result stands whatever its clean-up does."""
    try:
        await _call(env.close)
    except EpisodeFailed as error:
        log.warning("environment not closed: %s", error)
