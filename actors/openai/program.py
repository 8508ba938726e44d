"""The user's agent: a function of theirs, or a program, given a task and where to find the policy."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from configs.agent import AgentConfig
from tools.importing import import_named
from tools.threads import BlockingCalls, GivenUp, TooManyHung

#: Most bytes that a program may print as its result, and how much of its last words is repeated.
_MAX_OUTPUT, _LAST_WORDS = 4 << 20, 1000
_JOIN_S = 5.0


class AgentFailed(Exception):
    """The agent raised, took too long, or ended with an error; says which."""


class Agents:
    """Runs agents apart from everything else; ``async with`` it.

    Coroutines run on an event loop in a thread of their own: one that blocks holds up other agents, but
    neither the endpoint that it may be waiting for nor the link to the learner. Plain functions have a
    thread each, programs a process group.
    """

    def __init__(self, config: AgentConfig):
        """Raises ``ValueError`` for a function that is not there."""
        self._run = _function(config.path, "agent.path") if config.path else functools.partial(_program, config.command)
        self._score = _function(config.reward, "agent.reward")
        self._threads = BlockingCalls(size=1024)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)

    async def __aenter__(self) -> Agents:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        def end() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.1, self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        await asyncio.to_thread(self._thread.join, _JOIN_S)
        if not self._thread.is_alive():  # else a coroutine blocks: it is left behind with its thread
            self._loop.close()

    async def run(self, task: dict[str, Any], base_url: str, api_key: str, timeout_s: float) -> Any:
        """The result of one episode. Raises ``AgentFailed``."""
        return await self._call(self._run, timeout_s, task, base_url, api_key)

    async def score(self, task: dict[str, Any], result: Any, trajectory: Any, timeout_s: float) -> Any:
        """What the reward function says. Raises ``AgentFailed``."""
        return await self._call(self._score, timeout_s, task, result, trajectory)

    async def _call(self, function: Callable[..., Any], timeout_s: float, *args: Any) -> Any:
        try:
            if inspect.iscoroutinefunction(function):
                future = asyncio.run_coroutine_threadsafe(_contained(function(*args)), self._loop)
                async with asyncio.timeout(timeout_s):
                    value, error = await asyncio.wrap_future(future)
            else:
                value, error = await self._threads.run(functools.partial(_attempt, function, *args), timeout_s)
        except (GivenUp, TimeoutError):
            raise AgentFailed(f"{_name(function)}: no result after {timeout_s:g} s") from None
        except TooManyHung as failure:
            value, error = None, failure
        if isinstance(error, AgentFailed):
            raise error
        if error is not None:
            raise AgentFailed(f"{_name(function)}: {type(error).__name__}: {error}"[:2000]) from error
        return value


async def _contained(work: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """The outcome as a value: an agent that exits, or cancels itself, must not end the loop or the episode."""
    try:
        return await work, None
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return None, error


def _attempt(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """The outcome as a value: a time-out of the function's own is not ours."""
    try:
        return function(*args), None
    except (Exception, SystemExit) as error:
        return None, error


async def _program(command: Sequence[str], task: dict[str, Any], base_url: str, api_key: str) -> str:
    """What a program prints that reads the task from its input. Raises ``AgentFailed``."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key},
        start_new_session=True,
    )
    try:
        process.stdin.write(json.dumps(task).encode())
        _, output, words = await asyncio.gather(
            _closed(process.stdin), _first(process.stdout, _MAX_OUTPUT), _last(process.stderr, _LAST_WORDS)
        )
        status = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it started
    if status:
        raise AgentFailed(f"{command[0]} ended with status {status}: {words.strip()}")
    return output


async def _closed(stdin: asyncio.StreamWriter) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a program need not read its task
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


async def _first(stream: asyncio.StreamReader, limit: int) -> str:
    found = bytearray()
    while chunk := await stream.read(1 << 16):
        found += chunk
        if len(found) > limit:
            raise AgentFailed(f"the agent printed more than {limit} bytes")
    return found.decode("utf-8", "replace")


async def _last(stream: asyncio.StreamReader, limit: int) -> str:
    found = b""
    while chunk := await stream.read(1 << 16):
        found = (found + chunk)[-limit:]
    return found.decode("utf-8", "replace")


def _function(path: str, option: str) -> Callable[..., Any]:
    function = import_named(path, f"{option} {path!r}", "function, e.g. my_agent:run")
    if not callable(function):
        raise ValueError(f"{option} {path!r}: {path.partition(':')[0]} has no function of that name")
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        wanted = "(task, base_url, api_key)" if option == "agent.path" else "(task, result, trajectory)"
        raise ValueError(f"{option} {path!r}: it has to take {wanted}") from None
    return function


def _name(function: Callable[..., Any]) -> str:
    return (
        "the agent's program" if isinstance(function, functools.partial) else getattr(function, "__qualname__", "agent")
    )
