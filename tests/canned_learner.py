"""A stand-in for the learner's gateway: a ROUTER socket that welcomes one actor and records what it says."""

from __future__ import annotations

import asyncio
from typing import Any

import zmq
import zmq.asyncio

from protocol.codec import decode, encode
from protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Goodbye,
    GroupDone,
    GroupFailed,
    Heartbeat,
    Hello,
    Lease,
    Leases,
    Message,
    Pong,
    Shutdown,
    Welcome,
)
from protocol.trajectory import Group


class CannedLearner:
    """``async with CannedLearner(config, servers) as learner``; ``port`` is a free one of the loopback."""

    def __init__(self, config: dict[str, Any], servers: list[str], version: int = 0):
        self.config, self.servers, self.version = config, servers, version
        self.groups: dict[str, Group] = {}
        self.failed: dict[str, str] = {}
        self.beats: list[Heartbeat] = []
        self.said_goodbye = False

    async def __aenter__(self) -> CannedLearner:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._serving.cancel()
        await asyncio.wait({self._serving})
        self._context.destroy(linger=0)

    async def give(self, *leases: Lease) -> None:
        await self._send(Leases(leases=list(leases)))

    async def shut_down(self) -> None:
        await self._send(Shutdown(reason="the test is over"))

    async def until(self, condition, timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.01)

    async def _send(self, message: Message) -> None:
        await self._socket.send_multipart([self._peer, *encode(message)])

    async def _serve(self) -> None:
        while True:
            self._peer, *frames = await self._socket.recv_multipart()
            message, group = decode(frames)
            match message:
                case Hello():
                    fields = {"run_id": "canned", "config": self.config, "version": self.version}
                    await self._send(Welcome(protocol=PROTOCOL_VERSION, servers=self.servers, **fields))
                case Heartbeat():
                    self.beats.append(message)
                    await self._send(Pong(version=self.version, servers=self.servers))
                case GroupDone():
                    self.groups[message.lease_id] = group
                    await self._send(Ack(lease_id=message.lease_id))
                case GroupFailed():
                    self.failed[message.lease_id] = message.reason
                case Goodbye():
                    self.said_goodbye = True
