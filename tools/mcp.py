"""``mcp``: the tools of any MCP server, started by a command or reached by its URL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from pydantic import Field, validate_call

from tools.base import Tool, ToolGroup
from tools.mcp_endpoint import Endpoint, McpUnavailable

if TYPE_CHECKING:
    import mcp_types

    from tools.mcp_connection import Connection

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class McpServer(ToolGroup):
    """Every tool that the server lists, under ``prefix`` + its name.

    command: program and arguments of a stdio server; url: of a streamable-HTTP one. One of the two.
    env, headers: further environment of the program, headers of requests; values may have
    ``${NAME}`` from the actor's environment. only: names of the tools to take, all without it.
    per_episode: a connection (a process, with stdio) for each episode, for servers that keep state;
    else all episodes of an actor share one. connect_s, call_s: time limits.
    Raises ``ValueError`` for arguments that do not fit.
    """

    @validate_call
    def __init__(
        self,
        command: list[str] | None = None,
        url: str | None = None,
        env: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        only: list[str] | None = None,
        prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,32}$")] = "",
        per_episode: bool = False,
        connect_s: _Seconds = 30.0,
        call_s: _Seconds = 30.0,
    ):
        self.endpoint = Endpoint.checked(command, url, env or {}, headers or {})
        self.only, self.prefix, self.per_episode = only, prefix, per_episode
        self.connect_s, self.call_s = connect_s, call_s
        self._shared: Connection | None = None
        self._listed: list[mcp_types.Tool] = []

    async def prepare(self) -> None:
        """Connects and asks for the tools."""
        shared = self._shared = self._shared or self._connection()
        try:
            listed = await shared.list_tools()
        except McpUnavailable as error:
            raise ValueError(f"tool mcp: {error}") from None
        finally:
            if self.per_episode:
                await shared.close()
        names = [tool.name for tool in listed]
        if missing := [name for name in self.only or [] if name not in names]:
            raise ValueError(f"tool mcp: {self.endpoint} has no tool {missing[0]!r}; it has {', '.join(names)}")
        self._listed = [tool for tool in listed if self.only is None or tool.name in self.only]
        for tool in self._listed:
            try:
                validator_for(tool.input_schema).check_schema(tool.input_schema)
            except SchemaError as error:
                raise ValueError(
                    f"tool mcp: {self.endpoint}: the schema of {tool.name!r} is none ({error.message}); "
                    "leave it out with `only`"
                ) from None
        if not self._listed:
            raise ValueError(f"tool mcp: {self.endpoint} offers no tools")

    def tools(self) -> Sequence[Tool]:
        connection = self._connection() if self.per_episode else self._shared
        return [McpTool(connection, tool, self.prefix, owned=self.per_episode) for tool in self._listed]

    async def shutdown(self) -> None:
        if self._shared is not None:
            await self._shared.close()

    def _connection(self) -> Connection:
        from tools.mcp_connection import Connection  # imports the SDK

        return Connection(self.endpoint, self.connect_s, self.call_s)


class McpTool(Tool):
    """One tool of a server; ``data`` is the structured content of the result, if there is any."""

    def __init__(self, connection: Connection, tool: mcp_types.Tool, prefix: str, owned: bool):
        self.name = prefix + tool.name
        self.description = tool.description or tool.title or tool.name
        self.parameters = tool.input_schema
        self.timeout_s = connection.connect_s + connection.call_s + 5.0  # each has its limit; this one is for the rest
        self._connection, self._remote_name, self._owned = connection, tool.name, owned

    async def execute(self, **arguments: Any) -> tuple[str, Any]:
        return await self._connection.call(self._remote_name, arguments)

    async def close(self) -> None:
        if self._owned:
            await self._connection.close()
