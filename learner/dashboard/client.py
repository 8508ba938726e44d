"""Attach to a running learner: ask for its status twice a second and show it."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Any, Self

import zmq

from configs.schema import Config
from learner.run.history import History
from protocol.codec import MAX_FRAME_BYTES, ProtocolError, decode, encode
from protocol.handshake import Handshake
from protocol.keys import DASHBOARD, ClientKeys, KeysError
from protocol.messages import PROTOCOL_VERSION, Reject, Shutdown, Status, StatusRequest

from .format import clean, seconds
from .live import REFRESH_S, View, open_view
from .model import Snapshot

#: Seconds: the first answer, one later answer, silence after which the learner is given up.
CONNECT_S, ANSWER_S, LOST_S = 5.0, 2.0, 60.0

#: The longest that one snapshot goes on asking for more of a long history, seconds.
_HURRY_S = 0.5


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
        self._history = History()
        self._sections: dict[str, Any] = {}
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
        """The learner's state now, with the whole history as far as it has come.

        Only what was not seen yet travels, and a long history comes in pages: the first answers may
        lack its newest part. Raises ``LearnerSilent`` after ``timeout_s`` seconds without an answer
        and ``LearnerRefused`` where it is a refusal.
        """
        hurry = time.monotonic() + min(timeout_s, _HURRY_S)
        while True:
            had = self._history.last_step
            snapshot = self._ask(timeout_s)
            step = Snapshot(snapshot).run.get("step")
            more = isinstance(step, int) and had < self._history.last_step < step
            if not more or time.monotonic() > hurry:
                return snapshot

    def _ask(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        socket = self._socket or self._connect()
        try:
            since = self._history.last_step + 1
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
        """Add what is new to what is kept; a learner that restarted from a checkpoint takes some back."""
        s = Snapshot(answer)
        if s.run.get("id") != self._run_id:
            self._history, self._sections, self._run_id = History(), {}, s.run.get("id")
        for record in s.history:
            if isinstance(record.get("step"), int):
                self._history.append(record)
        if isinstance(step := s.run.get("step"), int):
            self._history.cut(step)
        self._sections = {**self._sections, **answer}
        return {**self._sections, "history": self._history.since(0)}


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
    exit_on_signals()
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


def exit_on_signals() -> None:
    """SIGTERM and SIGHUP as exceptions, so that the terminal is restored on the way out."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _exit)


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _say(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 1
