"""The learner's door: a ROUTER socket in a thread of its own, which training cannot starve.

Only that thread touches the socket. The learner's calls change the dispatcher under a
lock and wake the thread, which sends what follows from them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import zmq

from configs.schema import Config
from learner.gateway.dispatch import SILENT_BEATS, Dispatcher, Outgoing
from learner.gateway.door import Arrival, Door, StartError
from learner.gateway.ledger import Ledger
from learner.gateway.watchdog import Watchdog, describe_servers
from learner.gateway.watchers import Watchers
from learner.run.history import History
from protocol.codec import ProtocolError, VersionError, decode, encode
from protocol.limits import Limits
from protocol.messages import (
    Goodbye,
    GroupDone,
    GroupFailed,
    Heartbeat,
    Hello,
    Reject,
    Status,
    StatusRequest,
    Task,
)
from protocol.trajectory import Group, Trajectory
from tools.progress import Pace

__all__ = ["Gateway", "Interrupted", "StartError", "WaitTimeout"]

log = logging.getLogger("rollway.gateway")

#: Messages handled before time is looked at again, so that a flood cannot stop the clock.
_BURST = 256
#: Least silence, in seconds, after which a connection is cut.
_SILENCE_S = 60.0
#: The longest that the thread may take to end, in seconds.
_STOP_S = 8.0
#: Seconds that dismissed actors have to say goodbye.
_FAREWELL_S = 1.0
#: Seconds between two looks of the watchdog.
_WATCH_S = 1.0
#: Seconds between two log lines about rejected frames.
_COMPLAIN_S = 5.0
_FROM_ACTORS = (Hello, Heartbeat, GroupDone, GroupFailed, Goodbye)


class Interrupted(Exception):
    """A wait ended because ``interrupt`` was called, not because anything is wrong."""


class WaitTimeout(TimeoutError):
    """The learner waited for too long; the text says who waits for what."""


class Gateway:
    """Thread-safe. ``welcome`` is the share of the configuration that actors are given."""

    def __init__(self, config: Config, ledger: Ledger, run_id: str, welcome: dict[str, Any]) -> None:
        self._config = config.gateway
        contexts = config.agent.contexts if config.agent else 1
        self._limits = Limits(tokens=config.learner.group_size * config.model.max_tokens * contexts)
        self._silence_s = max(_SILENCE_S, 2 * SILENT_BEATS * config.actor.heartbeat_s)
        self._tick_s = config.actor.heartbeat_s / 10
        self._ledger = ledger
        # The ledger's own id tells two runs in folders of the same name apart.
        self._dispatcher = Dispatcher(config, ledger, f"{run_id}-{ledger.run_id}"[-128:], welcome)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._stop_reason: str | None = None
        self._crash: BaseException | None = None
        self._interrupted = False
        self._dismiss = True
        self._watchers = Watchers(self._config.max_peers)
        self._watchdog = Watchdog(config.gateway.watchdog_s)
        self._watchdog_due = 0.0
        self._rejected = 0
        self._complain_at = 0.0
        self._sections: dict[str, Any] = {"run": {}, "evals": [], "servers": [], "latest": {}}
        self._history = History()

    # ── the learner's calls ──────────────────────────────────────────────────

    def start(self) -> None:
        """Bind and serve. Raises ``StartError``, e.g. where the port is in use or keys are missing."""
        self._door = Door(self._config, self._limits, self._silence_s)
        self._thread.start()

    def interrupt(self) -> None:
        """Make waits, now and later, raise ``Interrupted``. Safe in a signal handler."""
        self._interrupted = True

    def stop(self, reason: str, dismiss: bool = True) -> None:
        """Close the socket and the ledger. May be called twice, or without ``start``.

        dismiss: tell all actors to leave; without it they wait for the learner to come back.
        """
        with self._lock:
            self._dismiss = dismiss
            self._stop_reason = self._stop_reason or reason
        if self._thread.is_alive():
            self._wake()
            self._thread.join(timeout=_STOP_S)
            if self._thread.is_alive():
                log.error("the gateway's thread did not end; its socket is left to the operating system")
                return
        self._wake_in.close()
        self._wake_out.close()
        self._ledger.close()

    def set_version(self, version: int) -> None:
        with self._change():
            self._dispatcher.set_version(version)

    def set_vocabulary(self, size: int) -> None:
        """Refuse groups with token ids of ``size`` or more."""
        with self._change():
            self._dispatcher.vocabulary = size

    def set_servers(self, urls: list[str]) -> None:
        """Servers that have the current weights: the only ones that actors may sample from."""
        with self._change():
            self._dispatcher.servers = list(urls)

    def pause_training(self, paused: bool) -> None:
        """Issue no new training leases while ``paused``; those out go on."""
        with self._change():
            self._dispatcher.paused = paused

    def take_batch(self, count: int, timeout_s: float) -> list[Group]:
        """``count`` finished groups, lowest seq first, none with a token older than η versions.

        Raises ``WaitTimeout`` where they are not there after ``timeout_s``.
        """
        return self._wait(lambda: self._dispatcher.take(count), timeout_s, f"batch of {count} groups")

    def evaluate(self, tasks: list[Task], min_version: int, timeout_s: float) -> list[Trajectory]:
        """One episode of every task by weights of at least ``min_version``, in the order of the tasks.

        A task that failed several times comes back as an episode without tokens and metrics,
        ``finish`` "failed". Raises ``WaitTimeout``.
        """
        pace = Pace()

        def attempt() -> list[Trajectory] | None:
            if pace.due() and (progress := self._dispatcher.evaluation):
                log.info("evaluation: %d of %d episodes", *progress)
            return self._dispatcher.eval_results()

        with self._change():
            self._dispatcher.submit_eval(tasks, min_version)
        return self._wait(attempt, timeout_s, f"evaluation of {len(tasks)} tasks")

    def commit(self, step: int) -> None:
        """The groups taken since the last commit made version ``step``; ``set_version(step)`` has to follow."""
        with self._change():
            self._dispatcher.commit(step)

    def checkpointed(self, step: int) -> None:
        """The checkpoint of ``step`` is in place: nothing earlier will be rolled back to."""
        more = True
        while more:  # bit by bit: heartbeats are answered in between
            with self._lock:
                more = self._ledger.checkpointed(step)

    def rollback(self, to_step: int) -> int:
        """Go on from the checkpoint of ``to_step`` (0: from the start); returns the units to be used again."""
        with self._change():
            return self._dispatcher.rollback(to_step)

    def audit(self) -> dict[str, int]:
        """{consumed, duplicates, lost, stale_dropped}."""
        with self._lock:
            return self._ledger.audit()

    def publish(self, section: str, value: dict[str, Any] | list[Any]) -> None:
        """Show ``value`` in ``run``, ``evals``, ``servers`` or ``latest``: dicts are merged, lists replaced."""
        with self._lock:
            if isinstance(value, dict) and isinstance(self._sections[section], dict):
                value = {**self._sections[section], **value}
            self._sections[section] = value

    def append_history(self, record: dict[str, Any]) -> None:
        """Add one step's record (it has a ``step``), for dashboards."""
        with self._lock:
            self._history.append(record)

    def snapshot(self, since_step: int = 0) -> dict[str, Any]:
        """What a dashboard shows, as plain values; ``history`` from ``since_step`` on."""
        with self._lock:
            return {
                **self._sections,
                "run": {**self._run_section(), "now": time.time()},
                "history": self._history.since(since_step),
                "queue": self._dispatcher.queue() | {"rejected_frames": self._rejected},
                "actors": self._dispatcher.roster.rows(time.monotonic()),
            }

    def _run_section(self) -> dict[str, Any]:
        run = dict(self._sections["run"])
        if progress := self._dispatcher.evaluation:
            run["evaluation"] = progress
        if self._watchdog.message:
            run["message"] = self._watchdog.message
        return run

    def _watch_over(self, now: float) -> None:
        if now < self._watchdog_due:
            return
        self._watchdog_due = now + _WATCH_S
        phase, dispatcher = str(self._sections["run"].get("phase", "")), self._dispatcher
        mark = (dispatcher.version, dispatcher.arrived)
        self._watchdog.look(now, phase, mark, dispatcher.roster.tokens, self._facts)

    def _facts(self) -> str:
        """Who holds what, and how the servers are, as far as it is known here."""
        return f"{self._dispatcher.describe(time.monotonic())}, {describe_servers(self._sections['servers'])}"

    # ── waiting ──────────────────────────────────────────────────────────────

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._lock:
            yield
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full of wake-ups that were not read yet: it will wake
            self._wake_out.send(b"\0")

    def _wait(self, attempt: Callable[[], list | None], timeout_s: float, what: str) -> list:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._crash:
                    raise RuntimeError(f"the gateway's thread died: {self._crash!r}") from self._crash
                if self._interrupted:
                    raise Interrupted
                result = attempt()
                if result is not None:
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(f"the learner waited {timeout_s:g} s for a {what}: {self._facts()}")
                self._changed.wait(left)
        self._wake()
        return result

    # ── the thread ───────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            poller.register(self._door.socket, zmq.POLLIN)
            poller.register(self._wake_in, zmq.POLLIN)
            tick_due = time.monotonic()
            while self._stop_reason is None:
                poller.poll(max(0.0, 1000 * (tick_due - time.monotonic())))
                self._door.check()
                woken = self._drain_wakeups()
                self._receive()
                if not woken and time.monotonic() < tick_due:
                    continue  # a tick goes through all leases: not for every message
                tick_due = time.monotonic() + self._tick_s
                with self._lock:
                    out = self._dispatcher.tick(time.monotonic())
                    self._watch_over(time.monotonic())
                    self._changed.notify_all()
                self._send(out)
            if self._dismiss:
                self._send(self._dispatcher.shutdown(self._stop_reason))
                self._show_the_end()
                self._see_off(poller)
        except BaseException as error:
            log.exception("the gateway's thread died")
            with self._lock:
                self._crash = error
                self._changed.notify_all()
        finally:
            self._door.close()

    def _see_off(self, poller: zmq.Poller) -> None:
        """Listen until all actors have said goodbye, a second at most.

        A connection that is closed with something unread in it is reset, and what was just sent may be lost with it.
        """
        deadline = time.monotonic() + _FAREWELL_S
        with self._lock:
            self._dispatcher.paused = True
        while self._dispatcher.roster.actors and (left := deadline - time.monotonic()) > 0:
            poller.poll(1000 * min(left, 0.05))
            self._drain_wakeups()
            self._receive()

    def _drain_wakeups(self) -> bool:
        """Whether the learner has called since the last time."""
        woken = False
        with suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                woken = True
        return woken

    def _receive(self) -> None:
        for _ in range(_BURST):
            arrival = self._door.receive()
            if arrival is None:
                return
            valid = False
            try:
                self._handle(arrival)
                valid = True
            except ProtocolError as error:
                self._reject(arrival.identity, error)
            finally:
                self._door.done(arrival, valid)

    def _handle(self, arrival: Arrival) -> None:
        message, group = decode([frame.buffer for frame in arrival.frames], self._limits)
        if isinstance(message, StatusRequest):
            self._watchers.asked(arrival.identity, message.since_step, time.monotonic())
            if not self._door.is_behind(arrival):  # one large answer at a time: a dashboard asks again
                self._show(arrival.identity, message.since_step)
            return
        if not isinstance(message, _FROM_ACTORS):
            raise ProtocolError(f"{message.type} is for the learner to send")
        if arrival.from_dashboard:
            raise ProtocolError(f"{message.type}: a dashboard's key may only look")
        if arrival.identity != message.actor_id.encode():
            raise ProtocolError("actor_id is not the identity of the socket")
        known = self._dispatcher.roster.actors
        if isinstance(message, Hello) and message.actor_id not in known and len(known) >= self._config.max_peers:
            raise ProtocolError(f"gateway.max_peers ({self._config.max_peers}) actors are there already")
        with self._lock:
            out = self._dispatcher.on_message(message.actor_id, message, group, time.monotonic())
            self._changed.notify_all()
        self._send(out)

    def _show(self, identity: bytes, since_step: int) -> None:
        self._door.send(identity, encode(Status(snapshot=self._watchers.news(identity, self.snapshot(since_step)))))

    def _show_the_end(self) -> None:
        """The last state to every dashboard still there: the run may end between two of its questions."""
        for identity, since_step in self._watchers.present(time.monotonic()):
            self._show(identity, since_step)

    def _send(self, messages: Outgoing) -> None:
        for actor_id, message in messages:
            self._door.send(actor_id.encode(), encode(message))

    def _reject(self, identity: bytes, error: ProtocolError) -> None:
        self._rejected += 1
        # One line now and then: a flood of garbage must not become a flood of log.
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAIN_S
            level = logging.ERROR if isinstance(error, VersionError) else logging.WARNING
            log.log(level, "frames of %r are rejected (%d so far): %s", identity[:40], self._rejected, error)
        self._door.send(identity, encode(Reject(reason=str(error))))
