"""Runs the tool calls of one turn. Whatever a call does wrong becomes a message to the model."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import weakref
from collections.abc import Sequence
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from tools.base import CallTimeout, Fault, Tool, ToolCall, ToolResult
from tools.threads import BlockingCalls, GivenUp, TooManyHung

#: Where plain ``execute`` functions run; one pool a process, shared by all episodes.
blocking_calls = BlockingCalls()

_MAX_REASON = 300
_validators: weakref.WeakKeyDictionary[Tool, Validator] = weakref.WeakKeyDictionary()


async def run_calls(tools: Sequence[Tool], calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Run all calls of a turn concurrently; results in the order of the calls.

    Never raises for what a model wrote or a tool did: such a result carries its
    ``fault`` and a text that tells the model what went wrong. Cancellation of the
    caller is propagated and gives up the calls in flight.
    """
    by_name = {tool.name: tool for tool in tools}
    return list(await asyncio.gather(*(_run_call(by_name, call) for call in calls)))


class _CallFailed(Exception):
    def __init__(self, fault: Fault, message: str):
        super().__init__(message)
        self.fault = fault


async def _run_call(by_name: dict[str, Tool], call: ToolCall) -> ToolResult:
    started = time.perf_counter()
    try:
        tool = _check(by_name, call)
        text, data = _text_and_data(tool, await _execute(tool, call.arguments or {}))
        fault: Fault | None = None
        if len(text) > tool.max_output_chars:
            fault = "too_long"
            text = f"{text[: tool.max_output_chars]}\n[cut: {tool.max_output_chars} of {len(text)} characters shown]"
    except _CallFailed as failure:
        text, data, fault = f"Error: {failure}", None, failure.fault
    return ToolResult(call.name, text, fault, time.perf_counter() - started, data, call.call_id)


def _check(by_name: dict[str, Tool], call: ToolCall) -> Tool:
    """The tool to run, once name and arguments are known to fit it."""
    if call.problem is not None:
        raise _CallFailed("malformed", call.problem)
    tool = by_name.get(call.name)
    if tool is None:
        known = ", ".join(sorted(by_name)) or "none"
        raise _CallFailed("unknown_tool", f"there is no tool {call.name!r}. Tools: {known}.")
    validator = _validator(tool)
    try:
        for error in validator.iter_errors(call.arguments):
            where = f" (at {error.json_path})" if error.path else ""
            raise _CallFailed("bad_arguments", _short(f"arguments of {tool.name}: {error.message}{where}"))
        inspect.signature(tool.execute).bind(**(call.arguments or {}))
    except TypeError as error:  # an argument that the schema lets through and ``execute`` does not take
        raise _CallFailed("bad_arguments", _short(f"arguments of {tool.name}: {error}")) from None
    except RecursionError:
        raise _CallFailed("bad_arguments", f"arguments of {tool.name}: nested too deeply") from None
    return tool


def _validator(tool: Tool) -> Validator:
    if (validator := _validators.get(tool)) is None:
        cls = validator_for(tool.parameters)
        try:
            cls.check_schema(tool.parameters)
        except SchemaError as error:  # the author's mistake: no model can do anything about it
            raise TypeError(f"tool {tool.name!r}: parameters is not a JSON schema: {error.message}") from error
        validator = _validators[tool] = cls(tool.parameters)
    return validator


async def _execute(tool: Tool, arguments: dict[str, Any]) -> Any:
    try:
        if inspect.iscoroutinefunction(tool.execute):
            return await _await(tool.execute(**arguments), tool.timeout_s)
        return await blocking_calls.run(functools.partial(tool.execute, **arguments), tool.timeout_s)
    except GivenUp:
        raise _CallFailed("timeout", f"{tool.name} gave no answer within {tool.timeout_s:g} s") from None
    except TooManyHung as error:
        raise _CallFailed("timeout", f"{tool.name} was not run: {error}") from None
    except CallTimeout as error:
        raise _CallFailed("timeout", f"{tool.name}: {error}"[: tool.max_output_chars]) from None
    except Exception as error:
        raise _CallFailed("error", _short(f"{tool.name} failed: {_describe(error)}")) from error


async def _await(coroutine: Any, timeout_s: float) -> Any:
    """As ``BlockingCalls.run``, for a coroutine: one that resists cancellation is left behind, not waited for."""
    task = asyncio.ensure_future(_contained(coroutine))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        task.cancel()
    if not task.done():
        raise GivenUp
    value, error = task.result()
    if error is not None:
        raise error
    return value


async def _contained(coroutine: Any) -> tuple[Any, Exception | None]:
    """The outcome as a value: a tool that exits or cancels itself must not end the loop or the episode."""
    try:
        return await coroutine, None
    except Exception as error:
        return None, error
    except (SystemExit, asyncio.CancelledError) as error:
        return None, RuntimeError(f"{type(error).__name__}: {error}")


def _text_and_data(tool: Tool, output: Any) -> tuple[str, Any]:
    text, data = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
    if not isinstance(text, str):
        raise _CallFailed("not_text", f"{tool.name} returned {type(text).__name__}, which cannot be shown")
    if "\0" in text:
        raise _CallFailed("not_text", f"{tool.name} returned binary data, which cannot be shown")
    # Lone surrogates (undecodable bytes of a subprocess, say) have no UTF-8 form: no tokenizer takes them.
    return text.encode("utf-8", "replace").decode(), data


def _describe(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an exception whose __str__ raises
        return type(error).__name__


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "…"
