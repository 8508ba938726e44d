"""The gateway's socket: bound safely, what peers send bounded, every byte accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from configs.schema import GatewayConfig
from learner.gateway.access import AccessError, Admission, is_dashboard, open_door
from learner.gateway.doorkeeper import Doorkeeper, frame_cost
from protocol.codec import GROUP_FRAMES, Frame
from protocol.keys import KeysError
from protocol.limits import Limits

_LINGER_MS = 1000
#: Messages of one connection that wait unread before TCP makes it wait.
_QUEUE = 64
#: What all connections may take together, unless the largest groups need more.
_BUFFER_BYTES = 64 << 20
#: A connection that does not get through its handshake is dropped after this long.
_HANDSHAKE_MS = 5000


class StartError(RuntimeError):
    """The gateway cannot start; the text tells what to change."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message: who sent it, over which connection, and the sizes of all its frames.

    ``frames`` has no more of them than show that there are too many.
    """

    identity: bytes
    connection: int
    frames: list[zmq.Frame]
    sizes: list[int]

    @property
    def from_dashboard(self) -> bool:
        """Whether it came with a dashboard's key: such a peer may look, and nothing else."""
        return bool(self.frames) and is_dashboard(self.frames[0])


def _budget(config: GatewayConfig, limits: Limits) -> int:
    """Bytes for all connections: room for two of the largest groups, however they come in."""
    needed = 2 * frame_cost(keyed=config.keys is not None) * limits.message_bytes
    if config.buffer_mb is None:
        return max(_BUFFER_BYTES, needed)
    if config.buffer_mb << 20 < needed:
        raise StartError(
            f"gateway.buffer_mb ({config.buffer_mb}) has no room for two groups of learner.group_size × "
            f"model.max_tokens tokens: set {(needed >> 20) + 1} or more, or leave it out"
        )
    return config.buffer_mb << 20


class Door:
    """A ROUTER socket. Made and bound by one thread, then used by another, and by that alone.

    silence_s: a connection without a valid message for so long is cut.
    Raises ``StartError``, e.g. where the port is in use or keys are missing.
    """

    def __init__(self, config: GatewayConfig, limits: Limits, silence_s: float) -> None:
        budget = _budget(config, limits)
        self.address = f"tcp://{config.host}:{config.port}"
        self._max_peers = config.max_peers
        self._routes: dict[bytes, int] = {}  # identity → connection that its last message came by
        self._admission: Admission | None = None
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes)
        self.socket.setsockopt(zmq.RCVHWM, _QUEUE)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # an actor that reconnects takes its name over
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # what is dropped must not count as under way
        try:
            self._admission = open_door(self._context, self.socket, config)
            keyed = self._admission is not None
            self.keeper = Doorkeeper(self.socket, config.port, config.max_peers, budget, silence_s, keyed)
            self.socket.bind(self.address)
        except (AccessError, KeysError) as error:
            self._destroy(linger_ms=0)
            raise StartError(str(error)) from None
        except zmq.ZMQError as error:
            self._destroy(linger_ms=0)
            raise StartError(
                f"the gateway cannot listen on {self.address}: {error.strerror}; "
                "set gateway.host and gateway.port to a free address, or end the run that has this one"
            ) from None
        self.keeper.start()

    def receive(self) -> Arrival | None:
        """The next message, None where there is none. ``done`` has to follow."""
        try:
            first = self.socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self.keeper.drained()
            return None
        frames: list[zmq.Frame] = []
        sizes: list[int] = []
        more = first.more
        while more:
            frame = self.socket.recv(copy=False)
            more = frame.more
            sizes.append(len(frame))
            if len(frames) <= GROUP_FRAMES:
                frames.append(frame)
        arrival = Arrival(first.bytes, first.get(zmq.SRCFD), frames, sizes)
        if arrival.identity not in self._routes and len(self._routes) > 4 * self._max_peers:
            self._routes = {name: fd for name, fd in self._routes.items() if self.keeper.connected(fd)}
        self._routes[arrival.identity] = arrival.connection
        return arrival

    def done(self, arrival: Arrival, valid: bool) -> None:
        """The message was handled; ``valid``: it was one of the protocol."""
        self.keeper.heard(arrival.connection, arrival.sizes, valid)

    def send(self, identity: bytes, frames: Sequence[Frame]) -> None:
        """To a peer that is gone, or does not read, nothing is sent: messages carry state, not deltas."""
        try:
            self.socket.send_multipart([identity, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return
            raise
        if (connection := self._routes.get(identity)) is not None:
            self.keeper.said(connection, map(len, frames))

    def is_behind(self, arrival: Arrival) -> bool:
        """Whether the sender has yet to read a good part of what it was sent before."""
        return self.keeper.is_behind(arrival.connection)

    def check(self) -> None:
        """Raise ``RuntimeError`` where one of the threads that guard the door has died."""
        if not self.keeper.is_alive() or (self._admission and not self._admission.is_alive()):
            raise RuntimeError("a thread that guards the gateway's socket died; the log has its last words")

    def close(self) -> None:
        """Send what was said within a second, and close."""
        self.keeper.stop()
        self._destroy(_LINGER_MS)

    def _destroy(self, linger_ms: int) -> None:
        if self._admission:
            self._admission.stop()
        self._context.destroy(linger=linger_ms)
