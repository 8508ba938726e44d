"""``ToolFormat``: what the ways to write tool calls have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from tools.base import Tool, ToolCall
from tools.formats.thinking import unclosed_thinking

_MAX_NAME = 64


class Malformed(Exception):
    """A call cannot be read: why, in words for the model. name: of the tool, as far as it is known."""

    def __init__(self, what: str, name: str = ""):
        super().__init__(what)
        self.name = bounded(name)


class ToolFormat(ABC):
    """One way to write tool calls. Without state; all methods are pure functions.

    name: as in ``model.tool_format``. expected: the right form, told to the model with each
    fault. turn_ends: tokens that end a turn besides the one that the chat template writes.
    """

    name: ClassVar[str]
    expected: ClassVar[str]
    turn_ends: ClassVar[tuple[str, ...]] = ()

    def parse(self, text: str, tools: Sequence[Tool] = (), cut: bool = False) -> list[ToolCall]:
        """Every call of one turn, in order. Total: no text makes it raise.

        A call that cannot be read becomes a ``ToolCall`` whose ``problem`` says what is wrong,
        in words for the model. What the turn thinks (``<think>…</think>``) is never a call.

        tools: what the policy may call; a format that writes values without a type reads it off their schemas.
        cut: the turn was ended by a token limit. An unfinished call at its end is then not
            a call at all, since the model never got to finish it.
        """
        calls = self._read(text, tools, cut)
        if calls or cut or (thinking := unclosed_thinking(text)) is None or not self._read(thinking, tools, cut):
            return calls
        return [self._problem(Malformed("it is part of your thinking, which has to be closed before it"))]

    def before_calls(self, text: str) -> str:
        """The turn up to where its first call opens, or all of it."""
        return text[: self._start(text)]

    @abstractmethod
    def render(self, calls: Sequence[ToolCall]) -> str:
        """The calls as a model of this format writes them; ``parse`` gives them back.

        Raises ``ValueError`` for names and values that the format has no way to write.
        """

    @abstractmethod
    def _start(self, text: str) -> int | None:
        """Where the first call opens, readable or not; None where there is none."""

    @abstractmethod
    def _read(self, text: str, tools: Sequence[Tool], cut: bool) -> list[ToolCall]:
        """As ``parse``; finds nothing in thinking, closed or not."""

    def _problem(self, error: Malformed) -> ToolCall:
        return ToolCall(error.name, None, problem=f"malformed tool call: {error}. {self.expected}")


def bounded(name: str) -> str:
    """Names end up in messages and headers: short, and free of lone surrogates, which JSON can smuggle in."""
    return name[:_MAX_NAME].encode("utf-8", "replace").decode()


def schema_of(tools: Sequence[Tool], name: str) -> dict[str, Any]:
    """Argument name → JSON Schema, as tool ``name`` has them; empty where there is no such tool."""
    properties = next((tool.parameters.get("properties") for tool in tools if tool.name == name), None)
    return properties if isinstance(properties, dict) else {}
