"""A real MCP server, written with the official SDK: ``python tests/mcp_server.py [http PORT]``."""

import os
import signal
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("counter")
count = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count_up() -> str:
    """How often this was called in this process."""
    global count
    count += 1
    return f"{count} in {os.getpid()}"


@server.tool()
def fail() -> str:
    """Raises."""
    raise ToolError("no such page")


@server.tool()
def hang() -> str:
    """Takes a minute, and the whole server with it."""
    time.sleep(60)
    return "late"


@server.tool()
def die() -> str:
    """Kills the server in the middle of the call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool()
def much(size: int) -> str:
    """So many characters."""
    return "y" * size


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
