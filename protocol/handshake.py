"""Why a connection does not come about: what ZeroMQ knows of it, in words for a person."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import parse_monitor_message

_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Handshake:
    """Watches the handshakes of a socket that connects. Belongs to the socket's thread."""

    def __init__(self, socket: zmq.Socket, keyed: bool) -> None:
        """``keyed``: the socket has keys. To be made before ``socket.connect``."""
        self._monitor = socket.get_monitor_socket(_FAILURES | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._keyed = keyed
        self._last: zmq.Event | None = None

    def close(self) -> None:
        """Before the socket is closed."""
        self._monitor.close()

    def problem(self) -> str | None:
        """What was wrong with the newest handshake; None if nothing was, or if there was none."""
        while self._monitor.poll(0):
            self._last = parse_monitor_message(self._monitor.recv_multipart())["event"]
        if self._last in (None, zmq.EVENT_HANDSHAKE_SUCCEEDED):
            return None
        if self._last == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return "it does not allow this key: put the public key into its keys folder (docs/security.md)"
        if self._keyed:
            return "it does not accept these keys, or has none itself: compare gateway.keys on both ends"
        return (
            "it asks for keys, or is no learner of Rollway: set gateway.keys to a copy of the keys made for this host"
        )
