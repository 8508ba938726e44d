"""``Tool``: one action that a model may call.

A tool says *what happened*; what that means for the episode (reward, end) is the
environment's business (``envs.base.ToolEnv``). A new tool is a subclass with a name,
a description, a JSON schema and ``execute``; see docs/extending.md.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

#: Kinds of fault a call can have; each is told to the model and counted.
Fault = Literal["malformed", "unknown_tool", "bad_arguments", "error", "timeout", "too_long", "not_text"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it. ``arguments`` is None where it could not be parsed;
    ``problem`` then says why, in words meant for the model. ``call_id`` is what the model
    calls it by, where its format has that."""

    name: str
    arguments: dict[str, Any] | None
    problem: str | None = None
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What happened. ``text`` is what the model sees; ``data`` is for the environment only. ``call_id``: of the call."""

    name: str
    text: str
    fault: Fault | None = None
    latency_s: float = 0.0
    data: Any = None
    call_id: str = ""

    def message(self) -> dict[str, str]:
        """The chat message that tells it; the chat template gives it the form that the model knows."""
        called = {"tool_call_id": self.call_id} if self.call_id else {}
        return {"role": "tool", "name": self.name, "content": self.text, **called}


class CallTimeout(Exception):
    """For ``execute`` to raise where a limit of its own ended the call: told to the model, counted as ``timeout``."""


class Resource:
    """What lives as long as the process: connected before the first episode, let go after the last."""

    async def prepare(self) -> None:
        """Connect, look up what the description needs. Raises ``ValueError`` that says what to change."""

    async def shutdown(self) -> None:
        """Let go of what all episodes shared. May be called again."""


class Tool(Resource, ABC):
    """Subclass contract.

    name, description: shown to the model. parameters: JSON Schema of the arguments
    (validated before ``execute``). timeout_s: wall-clock limit of one call, seconds.
    max_output_chars: longer output is cut, and the model is told.

    A tool that keeps nothing between calls needs ``execute`` only. One that keeps state for
    an episode also has ``for_episode`` and ``close``.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    parameters: ClassVar[dict[str, Any]]
    timeout_s: float = 10.0
    max_output_chars: int = 4000

    @abstractmethod
    def execute(self, **arguments: Any) -> Any:
        """Do it. Return the text for the model, or ``(text, data)`` with data for the environment.

        May be a plain function (it then runs in a thread, off the event loop) or a
        coroutine function. Whatever it raises becomes a message to the model.
        """

    def for_episode(self) -> Self:
        """The instance that one episode uses. No input or output here: what costs is done by the first call."""
        return self

    async def close(self) -> None:
        """The episode is over: free what ``for_episode`` made this instance hold. May be called again."""

    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI function form, as chat templates expect it."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


class ToolGroup(Resource, ABC):
    """Several tools that come from one place, such as an MCP server."""

    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """The tools for one episode; known once ``prepare`` is done."""


async def close_tools(tools: Iterable[Tool]) -> None:
    """Close all of them, whatever one of them does; raises the first failure afterwards."""
    outcomes = await asyncio.gather(*(tool.close() for tool in tools), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
