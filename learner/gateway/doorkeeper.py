"""Bounds what all peers together can make the gateway hold.

libzmq bounds the size of a frame and the number of queued messages, but not the number of
frames of a message: one that never ends grows in its memory unseen. Nor does it bound the
bytes that wait for a peer that does not read. So both are counted from outside: bytes that
libzmq has read from a connection less those that the gateway has handled, and bytes that
the gateway has sent less those that the peer has acknowledged. Where the sum over all
connections is beyond the budget, the greediest connection is cut.

A message that is still coming in may be made of empty frames, each of which takes many times
its size on the wire (``frame_cost``), so it is counted at that rate. That a connection has
nothing but such a message is known when the socket, which takes from its peers in turn, has
gone round them all and had nothing from this one.
"""

from __future__ import annotations

import array
import fcntl
import logging
import os
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

log = logging.getLogger("rollway.gateway")

#: Seconds between looks at the connections: at 1 GB/s, loopback's best, 20 MB go by.
_LOOK_S = 0.02
#: Of a core, for looking: with very many connections the looks are further apart.
_SHARE = 0.05
#: The longest that the thread may take to end, in seconds.
_END_S = 5.0
#: Seconds between two log lines of the same kind.
_COMPLAIN_S = 5.0
#: ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in Linux's struct tcp_info.
_ACKED_RECEIVED = struct.Struct("<120xQQ")
#: A peer that has so much unacknowledged does not keep up.
_BEHIND_BYTES = 64 << 10
_CURVE_BYTES = 33  # "\x07MESSAGE", nonce, authenticator, flags
_MSG_T_BYTES = 64  # libzmq's account of a frame, whatever is in it

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED


def frame_cost(keyed: bool) -> int:
    """The most bytes of memory that an unfinished message can take for one byte on the wire."""
    return -(-_MSG_T_BYTES // _on_wire(0, keyed))


def _on_wire(size: int, keyed: bool) -> int:
    """Bytes on the wire of one frame (ZMTP 3, RFC 37; CURVE's envelope: RFC 26)."""
    body = size + _CURVE_BYTES if keyed else size
    return body + (2 if body < 256 else 9)


@dataclass(slots=True)
class _Connection:
    """``connection`` is our own handle: it stays this connection's even after libzmq has closed its.

    mark: ``handled``, and the round of the socket, when it was last known to have been served.
    """

    connection: socket.socket
    sound: float  # when its last valid message came
    handled: int = 0
    sent: int = 0
    mark: tuple[int, int] = (0, 0)
    is_cut: bool = False

    def progress(self) -> tuple[int, int]:
        """Bytes sent and not acknowledged; bytes that the kernel has received."""
        info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_RECEIVED.size)
        acked, received = _ACKED_RECEIVED.unpack(info)
        return max(0, self.sent - acked), received

    def load(self, cost: int, round_: int) -> int:
        """Bytes of our memory that it may be taking."""
        waiting, received = self.progress()
        unread = array.array("i", [0])
        fcntl.ioctl(self.connection, termios.FIONREAD, unread)
        held = max(0, received - unread[0] - self.handled)
        handled, since = self.mark
        # The round in which the mark was made and the one that goes on do not count.
        if handled != self.handled or held == 0:
            self.mark = (self.handled, round_)
        elif round_ >= since + 2:
            held *= cost
        return held + waiting

    def cut(self) -> None:
        self.is_cut = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Doorkeeper(threading.Thread):
    """Watches the connections of a ROUTER socket, about to be bound to ``port``, from a thread of its own.

    max_peers: connections at a time; newer ones are cut. budget: bytes. silence_s: a peer
    without a valid message for so long is cut. keyed: whether the socket has CURVE keys.
    ``heard``, ``said`` and ``drained`` belong to the thread of the socket.
    """

    def __init__(
        self, router: zmq.Socket, port: int, max_peers: int, budget: int, silence_s: float, keyed: bool
    ) -> None:
        super().__init__(name="doorkeeper", daemon=True)
        self._router, self._port = router, port
        self._monitor = router.get_monitor_socket(_EVENTS)
        self._max_peers, self._budget, self._silence, self._keyed = max_peers, budget, silence_s, keyed
        self._round, self._in_round = 0, 0
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}  # by libzmq's file descriptor
        self._over = threading.Event()
        self._complain_at: dict[str, float] = {}
        self.refused = 0
        """Connections that were refused or cut."""

    def stop(self) -> None:
        """To be called by the socket's thread, before it closes the socket."""
        self._router.disable_monitor()  # while we still listen: libzmq waits for a reader
        self._over.set()
        self.join(timeout=_END_S)
        for peer in self._connections.values():
            peer.connection.close()

    def heard(self, fd: int, sizes: Iterable[int], valid: bool) -> None:
        """A message with frames of these sizes has come from a connection and was handled."""
        with self._lock:
            self._catch_up()
            if peer := self._connections.get(fd):
                peer.handled += self._wire_bytes(sizes)
                if valid:
                    peer.sound = time.monotonic()
            self._in_round += 1
            if self._in_round > len(self._connections):
                self._round, self._in_round = self._round + 1, 0

    def drained(self) -> None:
        """No connection had a whole message left."""
        self._round, self._in_round = self._round + 1, 0

    def said(self, fd: int, sizes: Iterable[int]) -> None:
        """A message was given to libzmq for a connection."""
        with self._lock:
            if peer := self._connections.get(fd):
                peer.sent += self._wire_bytes(sizes)

    def is_behind(self, fd: int) -> bool:
        """Whether the peer has yet to read a good part of what it was sent."""
        with self._lock:
            peer = self._connections.get(fd)
            return peer is not None and peer.progress()[0] > _BEHIND_BYTES

    def loads(self) -> dict[int, int]:
        """Bytes of memory that each connection may be taking."""
        with self._lock:
            self._catch_up()
            cost = frame_cost(self._keyed)
            return {fd: peer.load(cost, self._round) for fd, peer in self._connections.items() if not peer.is_cut}

    def connected(self, fd: int) -> bool:
        with self._lock:
            return fd in self._connections

    # ── the thread ───────────────────────────────────────────────────────────

    def run(self) -> None:
        took = 0.0
        while not self._over.wait(max(_LOOK_S, took / _SHARE)):
            began = time.thread_time()
            loads = self.loads()
            with self._lock:
                self._look(loads)
            took = time.thread_time() - began

    def _look(self, loads: dict[int, int]) -> None:
        now, total = time.monotonic(), sum(loads.values())
        for fd in sorted(loads, key=loads.get, reverse=True):
            peer = self._connections.get(fd)
            if peer is None:
                continue
            if now - peer.sound > self._silence:
                self._refuse(peer, f"no valid message for {self._silence:g} s")
            elif total > self._budget:
                total -= loads[fd]
                room = f"gateway.buffer_mb allows {self._budget >> 20} in all"
                self._refuse(peer, f"it may take {loads[fd] >> 20} MiB, {room}")

    def _catch_up(self) -> None:
        """Read what libzmq tells about connections that came and went."""
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            kind, fd = event["event"], int(event["value"])
            if kind == zmq.EVENT_ACCEPTED:
                self._on_accepted(fd)
            elif kind == zmq.EVENT_DISCONNECTED:
                if gone := self._connections.pop(fd, None):
                    gone.connection.close()
            elif kind & _FAILED:
                self.refused += 1
                self._complain("a connection is refused: wrong keys, no keys, or not ZeroMQ")

    def _on_accepted(self, fd: int) -> None:
        try:
            connection = socket.socket(fileno=os.dup(fd))
            at = connection.getsockname()
        except OSError:  # gone already
            return
        # The number may be another file's by now; only a connection of the gateway's own port is ours to cut.
        if not isinstance(at, tuple) or at[1] != self._port:
            connection.close()
            return
        peer = self._connections[fd] = _Connection(connection, time.monotonic())
        if len(self._connections) > self._max_peers:
            self._refuse(peer, f"gateway.max_peers ({self._max_peers}) are connected")

    def _refuse(self, peer: _Connection, why: str) -> None:
        peer.cut()
        self.refused += 1
        self._complain(f"a connection is cut: {why}")

    def _complain(self, what: str) -> None:
        now, kind = time.monotonic(), what[:25]
        if now >= self._complain_at.get(kind, 0.0):
            self._complain_at[kind] = now + _COMPLAIN_S
            log.warning("%s (%d so far)", what, self.refused)

    def _wire_bytes(self, sizes: Iterable[int]) -> int:
        return sum(_on_wire(size, self._keyed) for size in sizes)
