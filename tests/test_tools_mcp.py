"""MCP tools against a server written with the official SDK, over stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import mcp_types
import pytest

from envs.registry import load_env
from tools import mcp_connection
from tools.base import ToolCall
from tools.registry import Toolbox
from tools.runner import run_calls

SERVER = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = [sys.executable, SERVER]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class HttpServer:
    def __init__(self):
        self.port = free_port()
        self.process = None

    def start(self):
        self.process = subprocess.Popen([*COMMAND, "http", str(self.port)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError("the MCP server did not start")

    def kill(self):
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def opened(**args):
    """``await call(name, **arguments)`` to the tools of a server."""
    box = Toolbox([{"path": "mcp", "args": {"connect_s": 60} | args}])
    tools = await box.open()

    async def call(name, **arguments):
        [result] = await run_calls(tools, [ToolCall(name, arguments)])
        return result

    try:
        yield call
    finally:
        await box.shutdown()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_server_by_its_command():
    """Answers, errors, hanging, dying, coming back: one process after another, as few as there can be."""
    async with opened(command=COMMAND, call_s=20, prefix="c_") as call:
        three = await call("c_add", a=1, b=2)
        assert (three.text, three.data, three.fault) == ("3", {"result": 3}, None)
        assert (await call("c_add", a="x", b=2)).fault == "bad_arguments", "checked by the server's own schema"
        refused = await call("c_fail")
        assert refused.fault == "error" and "no such page" in refused.text
        long = await call("c_much", size=1_000_000)
        assert long.fault == "too_long" and len(long.text) < 5000
        results = await asyncio.gather(*(call("c_add", a=n, b=0) for n in range(20)))
        assert [r.text for r in results] == [str(n) for n in range(20)]
        pid = int((await call("c_count_up")).text.split()[-1])
        died = await call("c_die")
        assert died.fault == "error" and "broke" in died.text and "try again" in died.text
        again = await call("c_count_up")
        assert again.text.startswith("1 in ") and int(again.text.split()[-1]) != pid and not alive(pid)
        pid = int(again.text.split()[-1])
    assert not alive(pid), "nothing is left behind"


async def test_a_server_that_hangs_is_replaced():
    box = Toolbox([{"path": "mcp", "args": {"command": COMMAND, "connect_s": 60, "only": ["count_up"]}}])
    [tool] = await box.open()
    pid = int((await tool.execute())[0].split()[-1])
    os.kill(pid, signal.SIGSTOP)
    tool._connection.call_s = 0.3
    for _ in range(mcp_connection._SILENT_CALLS):
        [result] = await run_calls([tool], [ToolCall("count_up", {})])
        assert result.fault == "timeout" and "no answer within 0.3 s" in result.text
    tool._connection.call_s = 20
    text, _ = await tool.execute()
    assert text.startswith("1 in ") and int(text.split()[-1]) != pid
    await box.shutdown()
    for _ in range(100):
        if not alive(pid):
            break
        await asyncio.sleep(0.1)
    assert not alive(pid), "the stopped one was killed"


async def test_a_server_by_its_url_killed_and_started_again():
    server = HttpServer()
    await asyncio.to_thread(server.start)
    try:
        async with opened(url=f"http://127.0.0.1:{server.port}/mcp", call_s=20) as call:
            assert (await call("add", a=1, b=2)).text == "3"
            assert "no such page" in (await call("fail")).text
            died = await call("die")
            assert died.fault == "error" and "try again" in died.text
            server.kill()
            gone, still = await asyncio.gather(call("add", a=1, b=2), call("add", a=1, b=2))
            assert gone.fault == "error" and "cannot connect" in gone.text
            assert "tried again in" in still.text, "no storm of attempts"
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(30):
                while (back := await call("add", a=2, b=2)).fault is not None:
                    await asyncio.sleep(0.2)
            assert back.text == "4"
    finally:
        server.kill()


async def test_an_episode_goes_on_when_its_server_is_killed():
    args = {"command": COMMAND, "connect_s": 60, "only": ["add", "die"], "per_episode": True}
    env_class = load_env("envs.multihop:MultiHopQA", {"tools": [{"path": "mcp", "args": args}]})
    task = env_class.tasks("train", "hotpot", 1)[0]
    env = env_class()
    await env.reset(task, seed=0)
    assert [tool.name for tool in env.tools] == ["search", "add", "die"]
    turn = await env.step(
        '<tool_call>{"name": "die"}</tool_call><tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>',
        "stop",
    )
    assert [r.fault for r in turn.tool_results] == ["error", None] and not turn.done
    assert "the connection to the tool's server broke" in turn.messages[0]["content"]
    turn = await env.step('<tool_call>{"name": "add", "arguments": {"a": 40, "b": 2}}</tool_call>', "stop")
    assert turn.messages[0]["content"] == "42"
    end = await env.step(f"<answer>{task['answers'][0]}</answer>", "stop")
    assert end.done and end.info["outcome_reward"] == 1.0
    await env.close()
    await env_class.toolbox.shutdown()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"command": ["/no/such/program"]}, "cannot connect to `/no/such/program`: FileNotFoundError"),
        ({"command": [sys.executable, "-c", "pass"]}, "cannot connect"),
        (
            {"command": [sys.executable, "-c", "import time; time.sleep(60)"], "connect_s": 0.5},
            "no answer within 0.5 s",
        ),
        ({"command": [sys.executable, "-c", "print('garbage ' * 10)"]}, "cannot connect"),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot connect to http://127.0.0.1:9/mcp"),
        ({"command": ["x"], "env": {"KEY": "${NOT_SET_ANYWHERE}"}}, "NOT_SET_ANYWHERE} is not set"),
    ],
)
async def test_a_server_that_cannot_be_had_is_told_before_the_first_episode(args, words):
    box = Toolbox([{"path": "mcp", "args": {"connect_s": 20} | args}])
    with pytest.raises(ValueError, match="tool mcp: ") as error:
        await box.prepare()
    assert words in str(error.value)
    await box.shutdown()


async def test_what_a_server_lists_is_checked_before_the_first_episode(monkeypatch):
    """No SDK lets a server list a schema that is none; other servers may."""

    async def listed(self):
        return [
            mcp_types.Tool(name=name, input_schema={"type": kind}) for name, kind in (("good", "object"), ("bad", "x"))
        ]

    monkeypatch.setattr(mcp_connection.Connection, "list_tools", listed)
    for options, words in (({}, "schema of 'bad'"), ({"only": ["none"]}, "has no tool 'none'; it has good, bad")):
        with pytest.raises(ValueError, match=words):
            await Toolbox([{"path": "mcp", "args": {"command": ["x"]} | options}]).prepare()
    await Toolbox([{"path": "mcp", "args": {"command": ["x"], "only": ["good"]}}]).prepare()


def test_no_program_is_left_when_the_process_ends_without_a_word(tmp_path):
    script = (
        "import asyncio, sys\n"
        "from tools.registry import Toolbox\n"
        "async def main():\n"
        f"    box = Toolbox([{{'path': 'mcp', 'args': {{'command': {COMMAND!r}, 'connect_s': 60}}}}])\n"
        "    tools = {tool.name: tool for tool in await box.open()}\n"
        "    print((await tools['count_up'].execute())[0].split()[-1])\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, cwd=Path(SERVER).parents[1]
    )
    assert done.returncode == 0, done.stderr
    assert not alive(int(done.stdout))
