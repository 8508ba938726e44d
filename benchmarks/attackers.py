"""Hostile peers for the fuzzing of the gateway: each does one bad thing, a little at a time, without blocking."""

from __future__ import annotations

import random
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress

import zmq

from benchmarks.garbage import KINDS, Frames, giants, group, mutate
from protocol.codec import ProtocolError, decode, encode, encode_group
from protocol.limits import Limits
from protocol.messages import PROTOCOL_VERSION, Heartbeat, Hello, Leases, StatusRequest

#: Messages that one ``act`` sends.
_BURST = 20
#: A message of thousands of frames counts as so many: the rest is the same.
_MOST_COUNTED = 10


class Attacker(ABC):
    """``act`` sends what it can at once and returns the number of frames that are out."""

    name: str

    @abstractmethod
    def act(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...


class Peer(Attacker):
    """A well-connected peer that sends an endless series of bad messages. Leaves and comes back now and then."""

    def __init__(self, kind: str, address: str, messages: Iterator[Frames], rng: random.Random) -> None:
        self.name, self._address, self._messages, self._rng = kind, address, messages, rng
        self._identity = f"{kind}-{rng.randrange(10**6)}".encode()
        self._context = zmq.Context()
        self._connect()

    def act(self) -> int:
        frames = 0
        with suppress(zmq.Again):
            for _ in range(_BURST):
                message = next(self._messages) or [b""]
                self.socket.send_multipart(message, zmq.NOBLOCK)
                frames += min(len(message), _MOST_COUNTED)
        self._listen()
        if self._rng.random() < 0.001:
            self.socket.close(linger=self._rng.choice([0, 200]))
            self._connect()
        return frames

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _connect(self) -> None:
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, self._identity)
        self.socket.setsockopt(zmq.SNDHWM, 200)
        self.socket.connect(self._address)

    def _listen(self) -> None:
        with suppress(zmq.Again):
            while True:
                self._on_answer(self.socket.recv_multipart(zmq.NOBLOCK))

    def _on_answer(self, frames: Frames) -> None:
        pass


class Turncoat(Peer):
    """Joins as an actor, is given leases, and sends back groups that are not what was asked for."""

    def __init__(self, address: str, rng: random.Random) -> None:
        self._leases: list = []
        super().__init__("turncoat", address, self._bad_groups(), rng)

    def _bad_groups(self) -> Iterator[Frames]:
        name = self._identity.decode()
        yield encode(Hello(protocol=PROTOCOL_VERSION, actor_id=name, host="h", pid=1))
        while True:
            yield encode(Heartbeat(actor_id=name, capacity=2, held=[lease.lease_id for lease in self._leases]))
            for lease in self._leases:
                task = lease.task
                size = self._rng.choice([1, lease.group_size, 5])
                made = group(self._rng, lease.lease_id, task.task_id, task.dataset, size, self._rng.choice([0, 10**6]))
                frames = [bytes(frame) for frame in encode_group(name, made)]
                yield mutate(self._rng, frames) if self._rng.random() < 0.9 else frames
            self._leases = self._leases[-4:]

    def _on_answer(self, frames: Frames) -> None:
        with suppress(ProtocolError):
            if isinstance(message := decode(frames)[0], Leases):
                self._leases += message.leases


class Crowd(Attacker):
    """Says Hello under ever new names and is gone again."""

    name = "crowd"

    def __init__(self, address: str, rng: random.Random) -> None:
        self._address, self._rng, self._count = address, rng, 0
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket] = []

    def act(self) -> int:
        if self._rng.random() < 0.8:
            return 0
        self._count += 1
        peer = self._context.socket(zmq.DEALER)
        name = f"crowd-{self._count}"
        peer.setsockopt(zmq.IDENTITY, name.encode())
        peer.connect(self._address)
        peer.send_multipart(encode(Hello(protocol=PROTOCOL_VERSION, actor_id=name, host="h", pid=1)))
        peer.send_multipart(encode(Heartbeat(actor_id=name, capacity=0, held=[], stats={"x": "y" * 1000})))
        self._sockets.append(peer)
        if len(self._sockets) > 40:
            self._sockets.pop(0).close(linger=0)
        return 2

    def close(self) -> None:
        self._context.destroy(linger=0)


class Raw(Attacker):
    """Speaks ZMTP by hand over TCP, which allows what libzmq's own sockets do not. Comes back when it is cut."""

    def __init__(self, kind: str, port: int, stream: bytes, frames: int, handshake: bytes) -> None:
        self.name, self._port, self._stream, self._frames = kind, port, stream, frames
        self._handshake = handshake
        self._socket: socket.socket | None = None
        self._left = b""

    def act(self) -> int:
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=1.0)
                self._socket.setblocking(False)
                self._left = self._handshake
            if not self._left:
                self._left = self._stream
            self._left = self._left[self._socket.send(self._left) :]
            return 0 if self._left else self._frames
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return 0

    def close(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None


def greeting() -> bytes:
    """ZMTP 3.0, mechanism NULL, and the READY command of a nameless DEALER."""
    hello = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    return hello + b"\x04" + bytes([len(body)]) + body


def zmtp(frames: Frames) -> bytes:
    """One message as its bytes on the wire."""
    wire = b""
    for place, frame in enumerate(frames):
        more = place < len(frames) - 1
        long = len(frame) > 255
        wire += bytes([more | (2 * long)]) + (struct.pack(">Q", len(frame)) if long else bytes([len(frame)])) + frame
    return wire


def make_attackers(address: str, port: int, limits: Limits, seed: int) -> list[Attacker]:
    """Two of each kind of garbage, and one of each other villain."""
    villains: list[Attacker] = []
    for number in range(2):
        for place, (kind, generate) in enumerate(KINDS.items()):
            rng = random.Random(f"{seed} {number} {place}")
            villains.append(Peer(kind, address, generate(rng, kind), rng))
    rng = random.Random(seed)
    villains.append(Peer("giants", address, giants(rng, "giants", limits), rng))
    villains.append(Turncoat(address, rng))
    villains.append(Crowd(address, rng))
    status = zmtp(encode(StatusRequest(protocol=PROTOCOL_VERSION)))
    # Asks and never listens; a message of frames without end (they are not counted); a frame, byte by byte.
    villains.append(Raw("deaf", port, status * 50, 50, greeting()))
    villains.append(Raw("endless", port, b"\x01\x00" * 50_000, 0, greeting()))
    villains.append(Raw("slow", port, b"\x02" + struct.pack(">Q", limits.frame_bytes) + b"x", 0, greeting()))
    villains.append(Raw("http", port, b"GET / HTTP/1.1\r\n\r\n", 0, b""))
    return villains
