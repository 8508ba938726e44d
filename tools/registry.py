"""Tools named in the configuration: a short name or an import path, with arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tools.base import Tool, ToolGroup
from tools.importing import import_named

#: Tools that come with Rollway. Anything else is ``module:Class``.
SHORT_NAMES = {
    "calculator": "tools.calculator:Calculator",
    "python": "tools.python:Python",
    "sql": "tools.sql:Sql",
    "http": "tools.http:Http",
    "search": "tools.search_remote:RemoteSearch",
    "mcp": "tools.mcp:McpServer",
}


class ToolSpec(BaseModel):
    """One entry of ``env.args.tools``; a bare string stands for an entry without arguments."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    path: str
    """A short name, or ``module:Class`` of a ``Tool`` or ``ToolGroup``; yours may be anywhere on PYTHONPATH."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of its constructor."""


_SPECS = TypeAdapter(list[ToolSpec])


def load_tool(spec: ToolSpec) -> Tool | ToolGroup:
    """Construct what a spec names. Raises ``ValueError`` in one line that says what to change."""
    cls = _find(spec.path)
    try:
        inspect.signature(cls).bind(**spec.args)
    except TypeError as error:
        raise ValueError(f"arguments of tool {spec.path}: {error}") from None
    try:
        return cls(**spec.args)
    except ValidationError as error:
        raise ValueError(f"arguments of tool {spec.path}: {_explain(error)}") from None
    except ValueError as error:
        raise ValueError(f"tool {spec.path}: {error}") from None


class Toolbox:
    """The tools that a configuration names, for all episodes of a process.

    Constructing it connects to nothing, so the learner, which runs no tool, can check a
    configuration without reaching what the actors reach. ``prepare`` does connect; ``open``
    makes sure of it.
    """

    def __init__(self, specs: Iterable[Any]):
        """specs: as in YAML. Raises ``ValueError``."""
        specs = [{"path": spec} if isinstance(spec, str) else spec for spec in specs]
        try:
            self._members = [load_tool(spec) for spec in _SPECS.validate_python(specs)]
        except ValidationError as error:
            raise ValueError(f"tools: {_explain(error)}") from None
        refuse_namesakes(member for member in self._members if isinstance(member, Tool))
        self._ready = False
        self._preparing = asyncio.Lock()

    async def prepare(self) -> None:
        """Connect every tool, once. Raises ``ValueError`` that names the tool and what to change."""
        async with self._preparing:
            if not self._ready:
                await asyncio.gather(*(member.prepare() for member in self._members))
                groups = [tool for member in self._members if isinstance(member, ToolGroup) for tool in member.tools()]
                refuse_namesakes([*groups, *(member for member in self._members if isinstance(member, Tool))])
                self._ready = True

    async def open(self) -> list[Tool]:
        """The tools for one episode; whoever opened them closes them."""
        await self.prepare()
        return self._for_episode()

    async def shutdown(self) -> None:
        """Let go of all connections. The toolbox may be opened again."""
        self._ready = False
        await asyncio.gather(*(member.shutdown() for member in self._members))

    def _for_episode(self) -> list[Tool]:
        tools: list[Tool] = []
        for member in self._members:
            tools += member.tools() if isinstance(member, ToolGroup) else [member.for_episode()]
        return tools


def refuse_namesakes(tools: Iterable[Tool]) -> None:
    """``ValueError`` where two tools have one name: the model could reach only one of them."""
    twice = [name for name, count in Counter(tool.name for tool in tools).items() if count > 1]
    if twice:
        raise ValueError(f"two tools are called {twice[0]!r}; give one of them another name (an MCP server: a prefix)")


def _find(path: str) -> type[Tool] | type[ToolGroup]:
    path_of = SHORT_NAMES.get(path, path)
    cls = import_named(path_of, f"tool {path!r}", f"Class, or one of {', '.join(SHORT_NAMES)}")
    module_name, _, class_name = path_of.partition(":")
    if not (isinstance(cls, type) and issubclass(cls, Tool | ToolGroup)):
        raise ValueError(f"tool {path!r}: {class_name!r} is not a Tool or ToolGroup class of {module_name}")
    return cls


def _explain(error: ValidationError) -> str:
    lines: Sequence[str] = [
        f"{'.'.join(map(str, item['loc']))}: {item['msg'].removeprefix('Value error, ')} (got {item['input']!r})"
        for item in error.errors()
    ]
    return "; ".join(lines)
