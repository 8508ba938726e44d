"""One connection to an MCP server, which is made anew when it breaks.

All connections of a process live on one event loop in a thread of their own: the SDK wants
each of them opened and closed by one task, and a server that answers with megabytes of JSON
must not hold up the loop that the episodes share.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import logging
import threading
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import anyio
import httpx2
import mcp_types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tools.base import CallTimeout
from tools.mcp_endpoint import Endpoint, McpUnavailable
from tools.secrets import expand

log = logging.getLogger("rollway.tools")

#: The server is there and says that the request is wrong; any other error of the protocol means a broken connection.
_REQUEST_ERRORS = {mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND}
#: So many calls in a row without an answer, and the connection is made anew (a program is killed).
_SILENT_CALLS = 3
_MAX_PAUSE_S, _CLOSE_S = 30.0, 10.0
_MAX_PAGES = 100


class Connection:
    """Connects at the first call, and again at the first one after it broke.

    A call that was under way when the connection broke is not repeated: it may have had its effect.
    """

    def __init__(self, endpoint: Endpoint, connect_s: float, call_s: float):
        self.endpoint, self.connect_s, self.call_s = endpoint, connect_s, call_s
        self._lock: asyncio.Lock | None = None
        self._client: Client | None = None
        self._stop: asyncio.Event | None = None
        self._owner: asyncio.Task[None] | None = None
        self._silent = self._failures = 0
        self._retry_at = 0.0

    async def list_tools(self) -> list[mcp_types.Tool]:
        """Raises ``McpUnavailable``."""
        return await _elsewhere(self._list_tools())

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, Any]:
        """(text, structured content or None). Raises ``McpUnavailable``, ``CallTimeout``, ``RuntimeError`` with
        what the server says is wrong with the call."""
        result = await _elsewhere(self._call(name, arguments))
        text = "\n".join(map(_text, result.content))
        if result.is_error:
            raise RuntimeError(text or "the server reports an error and does not say which")
        return text or "[no output]", result.structured_content

    async def close(self) -> None:
        """End it, and the program with it. May be called again; a later call connects anew."""
        await _elsewhere(self._close())

    # ── on the loop of the connections ───────────────────────────────────────

    async def _list_tools(self) -> list[mcp_types.Tool]:
        client = await self._connected()
        tools, cursor = [], None
        try:
            with anyio.fail_after(self.connect_s):
                for _ in range(_MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    if (cursor := page.next_cursor) is None:
                        break
        except Exception as error:
            self._drop()
            raise McpUnavailable(f"{self.endpoint} does not list its tools: {_describe(error)}") from None
        return tools

    async def _call(self, name: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        client = await self._connected()
        try:
            with anyio.fail_after(self.call_s):
                result = await client.call_tool(name, arguments)
        except TimeoutError:
            self._silent += 1
            if self._silent >= _SILENT_CALLS and self._client is client:
                log.warning("mcp: %s left %d calls without an answer; connecting anew", self.endpoint, self._silent)
                self._drop()
            raise CallTimeout(f"the server gave no answer within {self.call_s:g} s") from None
        except Exception as error:
            if isinstance(error, MCPError) and error.error.code in _REQUEST_ERRORS:
                raise RuntimeError(_describe(error)) from None
            if self._client is client:
                log.warning("mcp: %s: the connection broke: %s", self.endpoint, _describe(error))
                self._drop()
            raise McpUnavailable(f"the connection to the tool's server broke ({_describe(error)}); try again") from None
        self._silent = 0
        return result

    async def _connected(self) -> Client:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._client is not None:
                return self._client
            if (wait := self._retry_at - time.monotonic()) > 0:
                raise McpUnavailable(f"the tool's server cannot be reached; it is tried again in {wait:.0f} s")
            opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            stop = asyncio.Event()
            owner = asyncio.create_task(self._own(opened, stop))
            _owners[owner] = stop
            owner.add_done_callback(_owners.pop)
            try:
                async with asyncio.timeout(self.connect_s):
                    self._client = await opened
            except Exception as error:
                stop.set()
                owner.cancel()
                self._failures += 1
                self._retry_at = time.monotonic() + min(_MAX_PAUSE_S, 2.0**self._failures / 2)
                reason = (
                    f"no answer within {self.connect_s:g} s" if isinstance(error, TimeoutError) else _describe(error)
                )
                log.warning("mcp: cannot connect to %s: %s", self.endpoint, reason)
                raise McpUnavailable(f"cannot connect to {self.endpoint}: {reason}") from None
            self._stop, self._owner, self._silent, self._failures = stop, owner, 0, 0
            return self._client

    async def _own(self, opened: asyncio.Future[Client], stop: asyncio.Event) -> None:
        """The one task that opens and closes the SDK's contexts."""
        try:
            async with AsyncExitStack() as stack:
                client = await _open(self.endpoint, stack)
                if not opened.done():
                    opened.set_result(client)
                    await stop.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error if isinstance(error, Exception) else McpUnavailable(_describe(error)))
            elif isinstance(error, Exception):
                log.info("mcp: %s: closing: %s", self.endpoint, _describe(error))

    def _drop(self) -> None:
        """Forget the connection; its owner ends it meanwhile."""
        if self._stop is not None:
            self._stop.set()
        self._client = self._stop = None

    async def _close(self) -> None:
        owner = self._owner
        self._drop()
        self._retry_at = 0.0
        if owner is not None:
            await asyncio.wait({owner}, timeout=_CLOSE_S)


async def _open(endpoint: Endpoint, stack: AsyncExitStack) -> Client:
    """A client whose hand-shake is done."""
    if endpoint.url:
        # The limits are those of the calls; a stream may be silent for long.
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=expand(endpoint.headers), timeout=None))
        return await stack.enter_async_context(Client(streamable_http_client(endpoint.url, http_client=http)))
    program, *arguments = endpoint.command
    server = StdioServerParameters(command=program, args=arguments, env=expand(endpoint.env))
    return await stack.enter_async_context(Client(server))


_owners: dict[asyncio.Task[None], asyncio.Event] = {}


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    atexit.register(_close_all, loop)
    return loop


async def _elsewhere(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, _loop()))


def _close_all(loop: asyncio.AbstractEventLoop) -> None:
    """At the end of the process: no server's program is left behind."""

    async def close() -> None:
        owners = dict(_owners)
        for stop in owners.values():
            stop.set()
        if owners:
            await asyncio.wait(owners, timeout=_CLOSE_S)

    try:
        asyncio.run_coroutine_threadsafe(close(), loop).result(_CLOSE_S)
    except concurrent.futures.TimeoutError:
        log.warning("mcp: servers did not end within %g s", _CLOSE_S)


def _text(block: Any) -> str:
    """A content block in words: a policy that reads text can use no pictures."""
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
        case mcp_types.ResourceLink():
            return f"[{block.name}: {block.uri}]"
    return f"[{block.type}, not shown]"


def _describe(error: BaseException) -> str:
    """One line, of the cause where the SDK's task groups wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:200]
