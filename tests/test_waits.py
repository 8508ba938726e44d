"""Nothing waits for ever: every wait in the code either carries its limit or is listed here with what ends it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("actors", "envs", "learner", "protocol", "tools")

#: Methods that wait; without an argument they may do so for ever. A socket's recv waits whatever its arguments.
_WAITS = {"join", "wait", "result", "acquire", "communicate"}
_RECEIVES = {"recv", "recv_multipart"}
_FUNCTIONS = {"subprocess.run", "asyncio.wait", "concurrent.futures.wait", "wait"}

#: file → {the wait as it is written: what ends it}.
LISTED = {
    "actors/link.py": {
        "await self._events.get()": "its caller's asyncio.timeout; the wire thread's LinkError",
        "await self._welcome": "the wire thread gives up after actor.connect_timeout_s",
        "await ack": "the wire thread gives up after the same silence; the lease after gateway.lease_timeout_s",
    },
    "actors/main.py": {
        "asyncio.wait({work})": "the whole life of an actor; after a signal: pool 5 s, tools 5 s, link 6 s",
        "work.result()": "it is done",
    },
    "actors/openai/program.py": {
        "await work": "its caller waits for agent.timeout_s, and cancels it",
        "process.wait()": "the same; its output has ended",
    },
    "actors/pool.py": {"episode.result()": "it is done: the task group is over"},
    "actors/talk.py": {"await work": "asyncio.timeout around it"},
    "actors/turnstile.py": {"await ticket": "the next pass of the loop"},
    "actors/wire.py": {"self._wake_in.recv(4096)": "the socket does not block"},
    "learner/dashboard/client.py": {"socket.recv_multipart()": "poll said that a message is there"},
    "learner/evaluation/main.py": {
        "episodes.result()": "it is done, or the gateway was interrupted",
        "task.result()": "it is done",
    },
    "learner/evaluation/rival.py": {"episode.result()": "it is done: the task group is over"},
    "learner/gateway/door.py": {"self.socket.recv(copy=False)": "further frames of a message are there with the first"},
    "learner/gateway/doorkeeper.py": {"self._monitor.recv_multipart()": "poll said that an event is there"},
    "learner/gateway/router.py": {"self._wake_in.recv(4096)": "the socket does not block"},
    "learner/weights/gloo_engine.py": {"parent.join()": "a thread whose business it is: the end of the parent"},
    "learner/weights/group.py": {"work.wait()": "the group's own time-out, weights.timeout_s"},
    "learner/weights/transport.py": {
        "far.result()": "both are done",
        "near.result()": "both are done",
        "future.result()": "it is done",
    },
    "protocol/handshake.py": {"self._monitor.recv_multipart()": "poll said that an event is there"},
    "tools/mcp_connection.py": {
        "await opened": "asyncio.timeout(connect_s) around it",
        "stop.wait()": "the life of a connection; at the end it is set, then the task is cancelled",
    },
    "tools/python.py": {
        "self._turn.acquire()": "asyncio.timeout(wait_s) around it",
        "self._places.acquire()": "asyncio.timeout(wait_s) around it",
    },
    "tools/python_process.py": {"self._process.wait()": "asyncio.timeout around it, then SIGKILL"},
    "tools/retrieval/batcher.py": {
        "asyncio.wait(futures.values())": "the request's retriever.timeout_s around it",
        "future.result()": "it is done",
        "self._arrived.wait()": "the life of the batcher; it is cancelled with the server",
    },
    "tools/retrieval/main.py": {"stop.wait()": "the life of the server: SIGINT or SIGTERM"},
    "tools/retrieval/server.py": {"await work": "it was cancelled"},
    "tools/runner.py": {
        "task.result()": "it is done",
        "await coroutine": "asyncio.wait with the tool's timeout_s around it",
    },
    "tools/threads.py": {"waiter.result()": "it is done"},
}


def waits(tree: ast.AST) -> Iterator[str]:
    """Waits without a limit of their own, as written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Name | ast.Attribute):
            yield ast.unparse(node)
        if isinstance(node, ast.Await) and ast.unparse(node.value).endswith(".get()"):
            yield ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        written = ast.unparse(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        limited = any(word.arg == "timeout" for word in node.keywords)
        for_ever = (
            name in _WAITS and not node.args and not limited,
            name in _RECEIVES and "NOBLOCK" not in written,
            ast.unparse(node.func) in _FUNCTIONS and not limited,
        )
        if any(for_ever):
            yield written


def test_every_wait_without_a_limit_of_its_own_is_listed_with_what_ends_it():
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if unlimited := set(waits(ast.parse(path.read_text()))):
                found[str(path.relative_to(ROOT))] = unlimited
    assert found == {name: set(listed) for name, listed in LISTED.items()}


def test_the_search_finds_what_it_is_for():
    code = """
async def f():
    thread.join(); queue.result(); ','.join(x); done.wait(timeout=3); await future; await q.get()
    socket.recv(10); socket.recv(zmq.NOBLOCK); subprocess.run(argv); subprocess.run(argv, timeout=3)
"""
    assert sorted(waits(ast.parse(code))) == [
        "await future", "await q.get()", "queue.result()", "socket.recv(10)", "subprocess.run(argv)", "thread.join()",
    ]  # fmt: skip
