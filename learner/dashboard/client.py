"""Attach to a running learner: ask for its status twice a second and show it."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Any, Self

import zmq

from configs.schema import Config
from protocol.codec import MAX_FRAME_BYTES, ProtocolError, decode, encode
from protocol.handshake import Handshake
from protocol.keys import DASHBOARD, ClientKeys, KeysError
from protocol.messages import PROTOCOL_VERSION, Reject, Shutdown, Status, StatusRequest

from .format import clean, seconds
from .live import REFRESH_S, View, open_view
from .model import Snapshot

#: Seconds: the first answer, one later answer, silence after which the learner is given up.
CONNECT_S, ANSWER_S, LOST_S = 5.0, 2.0, 60.0


class LearnerSilent(ConnectionError):
    """No answer in time."""


class LearnerRefused(ConnectionError):
    """The learner answered, but will not serve this dashboard; the text says why."""


class DashboardClient:
    """Asks a gateway for snapshots. Not safe for use from several threads."""

    def __init__(self, address: str, keys: ClientKeys | None = None):
        """``address``: tcp://host:port of the gateway. Raises ``ValueError`` if it is not one."""
        self.address = address
        self._keys = keys
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._history: dict[int, dict[str, Any]] = {}
        self._run_id: Any = None
        try:
            self._connect()
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(f"{address} is not an address like tcp://127.0.0.1:5600 ({error})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def snapshot(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The learner's state now, with the whole history.

        Only steps not seen yet travel. Raises ``LearnerSilent`` after ``timeout_s`` seconds
        and ``LearnerRefused`` where the answer is a refusal.
        """
        deadline = time.monotonic() + timeout_s
        socket = self._socket or self._connect()
        try:
            since = max(self._history, default=0)
            socket.send_multipart(encode(StatusRequest(protocol=PROTOCOL_VERSION, since_step=since)))
            while (left := deadline - time.monotonic()) > 0 and socket.poll(int(left * 1000) + 1):
                if (answer := self._read(socket.recv_multipart())) is not None:
                    return self._merge(answer)
        except zmq.Again:
            pass  # no peer to send to yet
        problem = self._handshake.problem()
        self._handshake.close()
        # A fresh socket: an answer to this request that still comes must not be taken for the next one's.
        socket.close(linger=0)
        self._socket = None
        if problem and self._run_id is None:  # one that has let us in before is only starting again
            raise LearnerRefused(f"the learner at {self.address} does not let this dashboard in: {problem}")
        raise LearnerSilent(f"no learner answers at {self.address}")

    def _connect(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDTIMEO, int(ANSWER_S * 1000))
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        if self._keys:
            self._keys.apply(socket)
        self._handshake = Handshake(socket, keyed=self._keys is not None)
        socket.connect(self.address)
        self._socket = socket
        return socket

    @staticmethod
    def _read(frames: list[bytes]) -> dict[str, Any] | None:
        try:
            message, _ = decode(frames)
        except ProtocolError as error:
            raise LearnerRefused(str(error)) from None
        if isinstance(message, (Reject, Shutdown)):
            raise LearnerRefused(message.reason)
        return message.snapshot if isinstance(message, Status) else None

    def _merge(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add the new steps to those kept; a learner that restarted from a checkpoint takes some back."""
        s = Snapshot(answer)
        if s.run.get("id") != self._run_id:
            self._history, self._run_id = {}, s.run.get("id")
        for record in s.history:
            if isinstance(step := record.get("step"), int):
                self._history[step] = record
        if isinstance(step := s.run.get("step"), int):
            self._history = {k: record for k, record in self._history.items() if k <= step}
        return {**answer, "history": [self._history[k] for k in sorted(self._history)]}


def learner_of(config: Config) -> tuple[str, ClientKeys | None]:
    """Address of a configuration's gateway and the keys to show there. Raises ``KeysError``."""
    gateway = config.gateway
    host = "127.0.0.1" if gateway.host in ("0.0.0.0", "*") else gateway.host
    return f"tcp://{host}:{gateway.port}", ClientKeys.load(gateway.keys, DASHBOARD) if gateway.keys else None


def run_dashboard(
    address: str, keys: ClientKeys | None = None, connect_s: float = CONNECT_S, lost_s: float = LOST_S
) -> int:
    """Show the learner at ``address`` until the person leaves or the run ends.

    Returns the exit code: 0 after q, Ctrl-C or the end of the run, 1 where no learner answers.
    """
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _exit)
    try:
        with DashboardClient(address, keys) as client:
            first = client.snapshot(connect_s)
            with open_view() as view:
                outcome = _follow(client, view, first, lost_s)
    except KeyboardInterrupt:
        return 0
    except LearnerSilent:
        return _say(f"no learner answers at {address}: start one with run.py, or set gateway.host and gateway.port")
    except (LearnerRefused, ValueError) as error:
        return _say(clean(error))
    return _say(outcome) if outcome else 0


def main(config: Config) -> int:
    """``--role dashboard``: the learner at gateway.host:gateway.port."""
    try:
        return run_dashboard(*learner_of(config))
    except KeysError as error:
        return _say(str(error))


def _follow(client: DashboardClient, view: View, snapshot: dict[str, Any], lost_s: float) -> str:
    """Show until there is an end; returns "" for a good one, else a line that says what happened."""
    heard, note = time.monotonic(), ""
    while True:
        view.update(snapshot, note)
        if not view.wait(REFRESH_S):
            return ""
        try:
            snapshot, note = client.snapshot(), ""
            heard = time.monotonic()
        except LearnerSilent:
            silent = time.monotonic() - heard
            note = f"no answer for {seconds(silent)}: this is the last picture"
            if Snapshot(snapshot).phase == "done":
                return ""
            if silent > lost_s:
                return f"the learner at {client.address} has not answered for {seconds(silent)}; its log says why"


def _exit(number: int, _: FrameType | None) -> None:
    """As an exception, so that the terminal is restored on the way out."""
    raise SystemExit(128 + number)


def _say(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 1
