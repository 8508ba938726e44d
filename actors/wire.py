"""The thread that speaks to the learner for an actor: Hello, heartbeats, deliveries.

It keeps heartbeats going whatever the event loop is busy with, and alone touches the
socket. All that it sends is repeated until it is answered or replaced by newer state, so
it survives a learner that restarts: it says Hello again by itself and delivers again.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import zmq

from protocol import messages as wire
from protocol.codec import MAX_FRAME_BYTES, Frame, ProtocolError, decode, encode
from protocol.handshake import Handshake
from protocol.keys import ClientKeys

log = logging.getLogger("rollway.link")

#: A group without an acknowledgement is sent again after this many heartbeats.
RESEND_BEATS = 10
_LINGER_MS = 1000
_NEVER = float("-inf")


class LinkError(ConnectionError):
    """The learner is not there, is gone, or does not want us; the text tells what to do."""


@dataclass(slots=True)
class _Delivery:
    frames: list[Frame]
    sent: float = _NEVER


class WireThread(threading.Thread):
    """``tell`` is called in this thread with every ``Welcome``, ``Ack``, ``Cancel``, ``Leases`` and
    ``Shutdown``, and with one ``LinkError`` if the thread ends before ``close``.

    ``heartbeat_s``: pace until the learner's ``Welcome`` tells its own, which it judges silence by.
    ``patience_s``: longest silence of the learner that is borne. ``keys``: for a learner that asks for them.
    """

    def __init__(
        self,
        address: str,
        actor_id: str,
        heartbeat_s: float,
        patience_s: float,
        tell: Callable[[wire.Message | LinkError], None],
        clock: Callable[[], float] = time.monotonic,
        keys: ClientKeys | None = None,
    ) -> None:
        super().__init__(name="link", daemon=True)
        self._address, self._actor_id = address, actor_id
        self._beat, self._patience = heartbeat_s, patience_s
        self._tell, self._clock = tell, clock
        self._keys, self._handshake = keys, None
        self._process = (socket.gethostname()[:255], os.getpid())
        self.servers: list[str] = []
        self.version = 0
        self.heard = clock()
        # Shared with the callers, under the lock.
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"capacity": 0, "held": [], "oldest": {}, "stats": {}}
        self._outbox: dict[str, _Delivery] = {}  # by lease
        self._requests: list[wire.Message] = []
        self._beat_now = False
        self._closing = False
        # The thread's own.
        self._error: LinkError | None = None
        self._welcomed = False
        self._run_id: str | None = None
        self._next_beat = 0.0
        self._context = zmq.Context()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)

    # ── callers, from any thread ─────────────────────────────────────────────

    def report(self, **state: Any) -> None:
        """Fields of the next heartbeats; the first of them goes at once if the credit in it is new."""
        with self._lock:
            news = any(self._state[name] != state[name] for name in ("capacity", "held"))
            self._state = state
            self._beat_now |= news
        if news:
            self._wake()

    def deliver(self, lease_id: str, frames: list[Frame]) -> None:
        """Send ``frames`` until the lease is acknowledged or withdrawn; it counts as held until then."""
        with self._lock:
            self._outbox[lease_id] = _Delivery(frames)
        self._wake()

    def withdraw(self, lease_id: str) -> None:
        with self._lock:
            self._outbox.pop(lease_id, None)

    def request(self, message: wire.Message) -> None:
        """Send ``message`` once."""
        with self._lock:
            self._requests.append(message)
        self._wake()

    def close(self) -> bool:
        """Send what was asked for and end; False where the thread does not."""
        with self._lock:
            self._closing = True
        self._wake()
        self.join(5.0 + _LINGER_MS / 1000)
        if self.is_alive():
            return False
        self._wake_in.close()
        self._wake_out.close()
        return True

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full of wake-ups that were not read yet: it will wake
            self._wake_out.send(b"\0")

    # ── the thread ───────────────────────────────────────────────────────────

    def run(self) -> None:
        try:
            self._open()
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(self._wake_in, zmq.POLLIN)
            while self._error is None:
                closing = self._closing  # read first: what was asked for before it is still sent
                self._send_due(self._clock())
                if closing:
                    return
                poller.poll(1000 * min(max(self._next_beat - self._clock(), 0.0), 0.5))
                with suppress(BlockingIOError):
                    while self._wake_in.recv(4096):
                        pass
                self._listen()
        except Exception as error:
            log.exception("the link's thread died")
            self._give_up(f"the link to {self._address} broke: {error!r}")
        finally:
            self._context.destroy(linger=_LINGER_MS)

    def _open(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, self._actor_id.encode())
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # no heap of old heartbeats for a learner that comes back
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        if self._keys:
            self._keys.apply(self._socket)
        self._handshake = Handshake(self._socket, keyed=self._keys is not None)
        self._socket.connect(self._address)

    def _give_up(self, reason: str) -> None:
        self._error = LinkError(reason)
        self._tell(self._error)

    def _silence(self) -> str:
        if self._handshake and (problem := self._handshake.problem()):
            return f"the learner at {self._address} does not let this actor in: {problem}"
        if self._run_id is None:
            return (
                f"no learner answers at {self._address} after {self._patience:g} s: start it with "
                "`python run.py --role learner`, or correct gateway.host and gateway.port"
            )
        return f"the learner at {self._address} has been silent for {self._patience:g} s: see its log"

    # ── sending ──────────────────────────────────────────────────────────────

    def _send_due(self, now: float) -> None:
        if not self._welcomed:
            if now >= self._next_beat:
                host, pid = self._process
                hello = wire.Hello(protocol=wire.PROTOCOL_VERSION, actor_id=self._actor_id, host=host, pid=pid)
                self._send(encode(hello))
                self._next_beat = now + min(self._beat, 1.0)
            return
        with self._lock:
            requests, self._requests = self._requests, []
            beat, self._beat_now = self._beat_now or now >= self._next_beat, False
            state = {**self._state, "held": sorted({*self._state["held"], *self._outbox})}
            due = [d for d in self._outbox.values() if now - d.sent > RESEND_BEATS * self._beat]
        for message in requests:
            self._send(encode(message))
        for delivery in due:
            if self._send(delivery.frames):
                delivery.sent = now
        if beat:
            self._send(encode(wire.Heartbeat(actor_id=self._actor_id, **state)))
            self._next_beat = now + self._beat

    def _send(self, frames: list[Frame]) -> bool:
        """False where nobody is connected: heartbeats tell the whole state, deliveries come again."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
            return True
        except zmq.Again:
            return False

    # ── receiving ────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        self._receive()
        if self._error is None and self._clock() - self.heard > self._patience:
            self._give_up(self._silence())

    def _receive(self) -> None:
        while self._error is None:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message, _ = decode(frames)
            except ProtocolError as error:
                log.warning("a message from %s is not understood: %s", self._address, error)
                continue
            self.heard = self._clock()
            self._on_message(message)

    def _on_message(self, message: wire.Message) -> None:
        match message:
            case wire.Welcome():
                self._on_welcome(message)
            case wire.Pong():
                self.version, self.servers = message.version, message.servers
            case wire.Unknown():
                if self._welcomed:
                    log.warning("the learner at %s does not know this actor any more: Hello again", self._address)
                self._welcomed, self._next_beat = False, 0.0
            case wire.Ack(lease_id=lease_id):
                with self._lock:
                    self._outbox.pop(lease_id, None)
                    held = [held for held in self._state["held"] if held != lease_id]
                    self._state = {**self._state, "held": held}
                self._tell(message)
            case wire.Cancel():
                with self._lock:  # a group on its way is acknowledged, whatever became of its lease
                    lease_ids = [lease_id for lease_id in message.lease_ids if lease_id not in self._outbox]
                if lease_ids:
                    self._tell(wire.Cancel(lease_ids=lease_ids))
            case wire.Leases(leases=leases):
                with self._lock:  # held from here on, however long the loop takes to look at them
                    held = [*self._state["held"], *(lease.lease_id for lease in leases)]
                    self._state = {**self._state, "held": held}
                self._tell(message)
            case wire.Shutdown():
                self._tell(message)
            case wire.Reject(reason=reason):
                self._give_up(f"the learner at {self._address} rejects this actor: {reason}")

    def _on_welcome(self, welcome: wire.Welcome) -> None:
        if self._run_id not in (None, welcome.run_id):
            self._give_up(f"another run ({welcome.run_id}) has {self._address} now: start this actor anew")
            return
        self._run_id, self._welcomed, self._next_beat = welcome.run_id, True, 0.0
        self.version, self.servers = welcome.version, welcome.servers
        self._beat = welcome.config.get("actor", {}).get("heartbeat_s", self._beat)
        with self._lock:
            for delivery in self._outbox.values():
                delivery.sent = _NEVER
        self._tell(welcome)
