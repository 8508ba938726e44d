"""Keeps the vLLM servers at the learner's weights while they generate.

Each server has its own group and thread: one that dies or fails half way is left paused
and *excluded*, the others go on. An excluded or new server comes (back) with the next
push or ``rejoin``, on a new group, and is listed only when it has the current weights.
One that is known not to answer is left alone, so that it holds nobody up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from configs.schema import Config
from learner.weights import weight_backend
from learner.weights.control import ControlError, Deadline, NoAnswer, ServerControl
from learner.weights.transport import GlooTransport, NcclTransport, Transport, Weights, in_thread
from learner.weights.verify import compare, digest

log = logging.getLogger("rollway.weights")

#: Grace beyond ``weights.timeout_s``, seconds: every step inside keeps to that limit by itself.
_MARGIN_S = 5.0
#: A look at a server, or a farewell, seconds.
_LOOK_S = 5.0
#: How often a push under way looks whether to go on waiting, and what it still gets when the run stops, seconds.
_POLL_S, _STOP_S = 0.2, 3.0


class VerificationError(RuntimeError):
    """A server's parameters are not the learner's."""


@dataclass(frozen=True)
class ServerPush:
    """One push to one server. Times in seconds: the whole, generation paused, bytes on their way."""

    url: str
    seconds: float
    paused_s: float
    wire_s: float
    nbytes: int
    error: str | None = None


@dataclass(frozen=True)
class PushReport:
    version: int
    servers: list[ServerPush]

    def errors(self) -> dict[str, str]:
        """url → why it did not take the weights."""
        return {s.url: s.error for s in self.servers if s.error}

    def as_record(self) -> dict[str, float]:
        """Plain values for metrics: the slowest server's times, seconds; bytes sent to one server."""
        good = [s for s in self.servers if not s.error]
        slowest = {key: max((getattr(s, key) for s in good), default=0.0) for key in ("seconds", "paused_s", "wire_s")}
        return slowest | {
            "bytes": max((s.nbytes for s in good), default=0),
            "servers": len(good),
            "failed": len(self.servers) - len(good),
        }


@dataclass
class _Server:
    url: str
    transport: Transport | None = None
    version: int | None = None
    listed: bool = False
    updating: bool = False
    torn: bool = False  # an update began that did not end
    error: str | None = None
    last_push_s: float | None = None

    @property
    def state(self) -> Literal["current", "updating", "excluded", "waiting"]:
        if self.updating:
            return "updating"
        if self.error:
            return "excluded"
        return "current" if self.listed else "waiting"


class WeightPusher:
    """Lives in the learner's rank 0. Methods may be called from any thread; they take turns."""

    def __init__(self, config: Config, urls: Iterable[str]):
        self._config = config.weights
        self._backend = weight_backend(config)
        self._turn = threading.Lock()
        self._servers = {url: _Server(url) for url in urls}
        self._weights: Weights | None = None
        self._digests: dict[str, str] = {}
        self._silent: Mapping[str, str] = {}
        self._stopping = False

    def push(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> PushReport:
        """Bring every server, excluded ones included and silent ones not, to ``tensors`` as ``version``.

        tensors: (name as in the checkpoint, whole tensor on any device). They are kept for
        servers that come later, so they must not change afterwards: pass copies.
        Does not raise for a failing server: see the report.
        """
        with self._turn:
            self._weights = Weights(dict(tensors), version, self._config.bucket_mb << 20)
            if self._config.verify:
                self._digests = {name: digest(tensor) for name, tensor in self._weights.tensors.items()}
            return self._update([server for server in self._servers.values() if server.url not in self._silent])

    def note_silent(self, servers: Mapping[str, str]) -> None:
        """These servers (url → in what way) do not answer: a push that waits for one of them gives it up."""
        self._silent = dict(servers)

    def rejoin(self) -> PushReport:
        """Look at every server: exclude those that lost the current weights, then bring all excluded ones up to date.

        A listed server that was noted as silent, refuses the connection or reports another
        version (it was started again) is excluded; one that only answers slowly is not.
        """
        with self._turn:
            if self._weights is None:
                raise RuntimeError("rejoin before the first push: there are no weights yet")
            listed = [server for server in self._servers.values() if server.listed]
            for server, look in [(server, in_thread(lambda s=server: self._lost(s))) for server in listed]:
                reason = look.result(timeout=_LOOK_S + _MARGIN_S)
                if reason:
                    self._exclude(server, reason)
            left_out = [server for server in self._servers.values() if not server.listed]
            return self._update([server for server in left_out if server.url not in self._silent])

    def add_server(self, url: str) -> None:
        """Take in one more server. It is listed once it has the current weights: at once if there are any yet."""
        with self._turn:
            server = self._servers.setdefault(url, _Server(url))
            if self._weights is not None and not server.listed:
                self._update([server])

    @property
    def has_weights(self) -> bool:
        """Whether there was a push, so that servers can be brought up to date."""
        return self._weights is not None

    def current_servers(self) -> list[str]:
        """Servers that may generate: those with the current weights, or with the last ones while a push is under way."""
        return [server.url for server in self._servers.values() if server.listed]

    def state(self, url: str) -> dict[str, Any]:
        """One row for a dashboard: state, version, last_push_s, error."""
        server = self._servers[url]
        return {
            "state": server.state,
            "version": server.version,
            "last_push_s": server.last_push_s,
            "error": server.error,
        }

    def interrupt(self) -> None:
        """The run stops: a push now or later has a few seconds, its servers are excluded after that. Safe in a signal handler."""
        self._stopping = True

    def close(self) -> None:
        """Release all servers. They keep generating with the weights that they have."""
        self.interrupt()
        if not self._turn.acquire(timeout=_STOP_S + _MARGIN_S):
            log.warning("a push does not end: the servers are left as they are")
            return
        try:
            connected = [server for server in self._servers.values() if server.transport is not None]
            wait([in_thread(lambda s=server: self._release(s)) for server in connected], timeout=_LOOK_S + _MARGIN_S)
        finally:
            self._turn.release()

    # ── inside ───────────────────────────────────────────────────────────────

    def _update(self, servers: list[_Server]) -> PushReport:
        weights, began = self._weights, time.monotonic()
        pushes: list[tuple[_Server, Deadline, Future[ServerPush]]] = []
        for server in servers:
            server.updating = True
            deadline = Deadline(self._config.timeout_s)
            pushes.append((server, deadline, in_thread(lambda s=server, d=deadline: self._update_one(s, weights, d))))
        rows = []
        for server, deadline, push in pushes:
            if why := self._await(push, server, began):
                deadline.expire()  # what the server may still answer must lead to nothing
                row = ServerPush(server.url, time.monotonic() - began, 0.0, 0.0, 0, why)
            else:
                row = push.result(timeout=0)
            if row.error:
                self._exclude(server, row.error)
            else:
                server.version, server.listed, server.error = weights.version, True, None
                server.last_push_s = row.seconds
            server.updating = False
            rows.append(row)
        return PushReport(weights.version, rows)

    def _await(self, push: Future[ServerPush], server: _Server, began: float) -> str | None:
        """Wait for one server's push; why it was given up, if it was."""
        while not push.done():
            wait([push], timeout=_POLL_S)
            spent = time.monotonic() - began
            if push.done():
                break
            if why := self._silent.get(server.url):
                return why
            if spent > self._config.timeout_s + _MARGIN_S:
                return "a step of the push hangs"
            if self._stopping and spent > _STOP_S:
                return "the run stops"
        return None

    def _update_one(self, server: _Server, weights: Weights, deadline: Deadline) -> ServerPush:
        """pause, start, update, finish, resume. A failure leaves the server as it is then: paused, once paused."""
        began = time.monotonic()
        control = ServerControl(server.url, deadline)
        transport: Transport | None = None
        try:
            if server.error:  # one that hangs must not hold up a push to the others
                ServerControl(server.url, Deadline(_LOOK_S)).weight_version()
            elif server.transport is not None and control.weight_version() != str(server.version):
                server.transport.close()  # it was started again, and knows no group
                server.transport = None
            transport = server.transport
            if transport is None:
                transport = GlooTransport() if self._backend == "gloo" else NcclTransport(weights.bucket_bytes)
                transport.connect(control, deadline)
                deadline.left()
                server.transport = transport
                # A server found paused was left so by a push, perhaps of a learner now gone.
                server.torn = server.torn or control.is_paused()
            paused = time.monotonic()
            control.pause()
            if server.torn:
                control.discard_update()
            server.torn = True
            control.start()
            wire = time.monotonic()
            transport.update(control, weights, deadline)
            wire_s = time.monotonic() - wire
            control.finish(weights.version)
            server.torn = False
            if self._config.verify and (wrong := compare(control, weights, self._digests, deadline)):
                raise VerificationError(f"{len(wrong)} parameters are wrong after the push: {'; '.join(wrong[:3])}")
            control.resume()
        except Exception as error:
            if transport is not None:
                transport.close()
            reason = str(error) or type(error).__name__
            return ServerPush(server.url, time.monotonic() - began, 0.0, 0.0, 0, reason)
        now = time.monotonic()
        return ServerPush(server.url, now - began, now - paused, wire_s, weights.nbytes)

    def _release(self, server: _Server) -> None:
        try:
            ServerControl(server.url, Deadline(_LOOK_S)).disconnect()
        except (ControlError, TimeoutError) as error:
            log.warning("server %s was not released: %s", server.url, error)
        server.transport.close()
        server.transport = None

    def _exclude(self, server: _Server, reason: str) -> None:
        server.listed, server.error = False, reason
        transport, server.transport = server.transport, None
        if transport is not None:
            transport.close()

    def _lost(self, server: _Server) -> str | None:
        """Why a listed server has no longer the weights that it was given; None if it has, or is slow to say."""
        if why := self._silent.get(server.url):
            return why
        try:
            version = ServerControl(server.url, Deadline(_LOOK_S)).weight_version()
        except (NoAnswer, TimeoutError):
            return None
        except ControlError as error:
            return str(error)
        if version == str(server.version):
            return None
        return f"it has weights {version}, not {server.version}: was it started again?"
