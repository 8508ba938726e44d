"""The load generator: answers generation requests at once with canned tokens. It is no language model.

A process of its own that speaks as much HTTP as the clients need: a request comes in, the
bytes that were prepared for its route go out. While it is *held* it keeps its requests waiting:
every arm of the benchmark has a generator, and all but one stand still with everything in flight.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import uvloop

_TIMEOUT_S = 30.0
_BACKLOG = 4096


class Answers:
    """What all connections share. ``counts``: answered, waiting; read by the parent."""

    def __init__(self, replies: dict[bytes, bytes], counts: Any) -> None:
        self.replies, self.counts = replies, counts
        self.held = True
        self.waiting: list[tuple[asyncio.Transport, bytes]] = []

    def ask(self, transport: asyncio.Transport, route: bytes) -> None:
        reply = self.replies.get(route, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        if self.held:
            self.waiting.append((transport, reply))
            self.counts[1] = len(self.waiting)
        else:
            self.counts[0] += 1
            transport.write(reply)

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held, waiting, self.waiting = False, self.waiting, []
        self.counts[1] = 0
        for transport, reply in waiting:
            if not transport.is_closing():
                self.counts[0] += 1
                transport.write(reply)


class Client(asyncio.Protocol):
    """One connection: requests with a Content-Length, one at a time."""

    def __init__(self, answers: Answers) -> None:
        self._answers, self._data = answers, b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        head = data.find(b"\r\n\r\n")
        if head < 0:
            return
        at = data.lower().find(b"content-length:", 0, head)
        length = int(data[at + 15 : data.find(b"\r\n", at)]) if at >= 0 else 0
        if len(data) < head + 4 + length:
            return
        self._data = data[head + 4 + length :]
        self._answers.ask(self._transport, data[: data.find(b" HTTP/")].partition(b" ")[2])


def _serve(pipe: Connection, replies: dict[bytes, bytes], counts: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        answers = Answers(replies, counts)
        server = await loop.create_server(lambda: Client(answers), "127.0.0.1", 0, backlog=_BACKLOG)
        over = asyncio.Event()

        def command() -> None:
            try:
                what = pipe.recv()
            except EOFError:
                return over.set()
            getattr(answers, what)()
            pipe.send("done")

        loop.add_reader(pipe.fileno(), command)
        pipe.send(server.sockets[0].getsockname()[1])
        await over.wait()

    uvloop.run(main())


class Generator:
    """``with Generator(answers) as generator`` listens at ``url``, held at first.

    answers: request path → body of the 200 that answers it.
    """

    def __init__(self, answers: dict[str, bytes]) -> None:
        context = multiprocessing.get_context("spawn")
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
        replies = {path.encode(): head.format(len(body)).encode() + body for path, body in answers.items()}
        self._counts = context.Array("Q", 2, lock=False)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, replies, self._counts), daemon=True)
        self._theirs = theirs

    def __enter__(self) -> Generator:
        self._process.start()
        self._theirs.close()  # the child has its own: it ends when ours closes
        self.url = f"http://127.0.0.1:{self._answer('start')}"
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(2)
        self._process.kill()
        self._process.join()

    def hold(self) -> None:
        """Keep requests waiting from now on."""
        self._pipe.send("hold")
        self._answer("hold")

    def release(self) -> None:
        """Answer what waits, and everything that comes."""
        self._pipe.send("release")
        self._answer("release")

    @property
    def answered(self) -> int:
        """Requests that were answered so far."""
        return self._counts[0]

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return self._counts[1]

    def _answer(self, what: str) -> Any:
        if not self._pipe.poll(_TIMEOUT_S):
            raise RuntimeError(f"the load generator did not {what} within {_TIMEOUT_S:g} s")
        return self._pipe.recv()
