"""``Tool``: one action that a model may call.

A tool says *what happened*; what that means for the episode (reward, end) is the
environment's business (``envs.base.ToolEnv``). A new tool is a subclass with a name,
a description, a JSON schema and ``execute``; see docs/extending.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

#: Kinds of fault a call can have; each is told to the model and counted.
Fault = Literal["malformed", "unknown_tool", "bad_arguments", "error", "timeout", "too_long", "not_text"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it. ``arguments`` is None where it could not be parsed;
    ``problem`` then says why, in words meant for the model."""

    name: str
    arguments: dict[str, Any] | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What happened. ``text`` is what the model sees; ``data`` is for the environment only."""

    name: str
    text: str
    fault: Fault | None = None
    latency_s: float = 0.0
    data: Any = None


class Tool(ABC):
    """Subclass contract.

    name, description: shown to the model. parameters: JSON Schema of the arguments
    (validated before ``execute``). timeout_s: wall-clock limit of one call, seconds.
    max_output_chars: longer output is cut, and the model is told.
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

    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI function form, as chat templates expect it."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }
