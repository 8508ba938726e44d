"""Who works on what, and what may still be used: the learner's side of the protocol.

A state machine without sockets, threads or a clock: messages and ``now`` go in, messages
come out. The rules it keeps, whatever is lost, doubled, late or dead:

- The gate (``gate``) bounds what is under way. With η = 0 that is lock-step: B units a
  version, none more until the next.
- A group with a token older than version − η is never taken for training. Stale groups and
  leases are counted and their units issued again, lowest seq first.
- A group is acknowledged once the ledger has it, or had it already.
- A lease dies with its holder's heartbeat, with its age, or when its holder does not list it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

from configs.schema import Config
from learner.gateway.evalqueue import EvalQueue
from learner.gateway.gate import StalenessGate
from learner.gateway.ledger import MAX_ATTEMPTS, Ledger
from learner.gateway.roster import Actor, Held, LeaseIds, Roster
from protocol import messages as wire
from protocol.trajectory import NO_VERSION, Group, Trajectory

log = logging.getLogger("rollway.dispatch")

#: An actor silent for this many heartbeats is given up.
SILENT_BEATS = 5
#: A lease that its holder does not list this many heartbeats after its issue never arrived.
GRACE_BEATS = 3

Outgoing = list[tuple[str, wire.Message]]


class Dispatcher:
    """Not thread-safe. ``run_id`` and ``welcome`` (the actors' share of the configuration) go into ``Welcome``."""

    def __init__(self, config: Config, ledger: Ledger, run_id: str, welcome: dict[str, Any]) -> None:
        self.roster = Roster(config.learner.group_size)
        self.servers: list[str] = []  # those that have the current weights
        self.paused = False  # no new training leases
        self.vocabulary: int | None = None  # token ids end here, once the model is known
        # Not the current one: a learner that went back to a checkpoint meets tokens of versions yet to be made again.
        self._last_version = config.run.steps
        self._ledger = ledger
        self._gate = StalenessGate(config.learner.groups, config.staleness)
        self._gate.waiting = ledger.delivered()
        self._group_size = config.learner.group_size
        self._beat = config.actor.heartbeat_s
        self._lease_timeout = config.gateway.lease_timeout_s
        self._run_id, self._welcome = run_id, welcome
        self._eval: EvalQueue | None = None
        self.arrived = 0  # groups and evaluation episodes taken, ever
        self._ids = LeaseIds(ledger.run_id, ledger.boot)
        self._announced: tuple[int, list[str]] = (0, [])
        self._last_tick: float | None = None
        self._out: Outgoing = []

    # ── events ───────────────────────────────────────────────────────────────

    def on_message(self, actor_id: str, message: wire.Message, group: Group | None, now: float) -> Outgoing:
        """Take one message of an actor (``group``: of a GroupDone); return what is to be sent, and to whom."""
        if actor := self.roster.actors.get(actor_id):
            actor.seen = now
        match message:
            case wire.Hello():
                self._on_hello(message, now)
            case wire.Heartbeat() if actor:
                self._on_heartbeat(actor, message, now)
            case wire.Heartbeat():
                self._send(actor_id, wire.Unknown())
            case wire.GroupDone() if group is not None:
                self._on_group(actor_id, group)
                self._send(actor_id, wire.Ack(lease_id=message.lease_id))
            case wire.GroupFailed():
                self._on_failed(actor_id, message)
            case wire.Goodbye() if actor:
                log.info("%s leaves, %d leases handed back", actor_id, len(actor.leases))
                self._forget(actor_id)
        self._issue(now)
        return self._flush()

    def tick(self, now: float) -> Outgoing:
        """What time alone brings about. Call it several times a heartbeat."""
        # One tick adds a heartbeat of silence at most: beyond that it was us who did not listen.
        deaf = 0.0 if self._last_tick is None else max(0.0, now - self._last_tick - self._beat)
        self._last_tick = now
        for actor_id, actor in list(self.roster.actors.items()):
            actor.seen = min(now, actor.seen + deaf)
            silence = now - actor.seen
            if silence > SILENT_BEATS * self._beat:
                log.error("%s is given up: silent for %.1f s, its leases are issued again", actor_id, silence)
                self._forget(actor_id)
        for held in self.roster.expired(now, self._lease_timeout):
            log.warning("lease %s of %s is void: older than %g s", held.lease_id, held.actor_id, self._lease_timeout)
            self._void(held)
        for held in self.roster.of_purpose("train"):
            if self._gate.stale(held.oldest):
                self._ledger.count("stale_cancelled")
                self._void(held)
        if self._announced != (self.version, self.servers):  # else actors would learn it a heartbeat late
            self._announced = (self.version, self.servers)
            for actor_id in self.roster.actors:
                self._send(actor_id, self._pong())
        self._issue(now)
        return self._flush()

    def shutdown(self, reason: str) -> Outgoing:
        """Tell every actor that the run is over."""
        return [(actor_id, wire.Shutdown(reason=reason)) for actor_id in self.roster.actors]

    # ── the learner's calls; what they cause is sent by the next tick ────────

    @property
    def version(self) -> int:
        return self._gate.version

    def set_version(self, version: int) -> None:
        """The policy is at ``version`` now; waiting groups that this makes too old are dropped."""
        self._gate.set_version(version)
        self._drop_stale()

    def take(self, count: int) -> list[Group] | None:
        """The ``count`` waiting groups with the lowest seq, in that order; None if there are fewer."""
        self._drop_stale()
        seqs = self._gate.take(count)
        return None if seqs is None else [self._ledger.group(seq) for seq in seqs]

    def commit(self, step: int) -> None:
        """All taken groups are used up by the update that made version ``step``, durably.

        ``set_version(step)`` has to follow, also after an update that changed nothing.
        """
        self._ledger.consume(self._gate.taken, step)
        self._gate.commit(step)

    def rollback(self, to_step: int) -> int:
        """Go on from the checkpoint of ``to_step``; returns how many units are to be used again."""
        for held in self.roster.of_purpose("train"):
            self._void(held)
        units = self._ledger.rollback(to_step)
        self._gate.reset(to_step, self._ledger.delivered())
        self._drop_stale()
        return units

    def submit_eval(self, tasks: list[wire.Task], min_version: int) -> None:
        """Have ``tasks`` attempted once each, before any training; an evaluation still open is given up."""
        for held in self.roster.of_purpose("eval"):
            self._void(held)
        self._eval = EvalQueue(tasks, min_version)

    def eval_results(self) -> list[Trajectory] | None:
        """Episodes in the order of the tasks, which closes the evaluation; None until all are there."""
        results = self._eval.results() if self._eval else None
        if results is not None:
            self._eval = None
        return results

    # ── what people see ──────────────────────────────────────────────────────

    def queue(self) -> dict[str, int]:
        """Units by state, the ledger's counters and the gate's ``capacity``, in groups."""
        counts = self._ledger.counts()
        taken = len(self._gate.taken)
        return counts | {"waiting": counts.pop("delivered") - taken, "taken": taken, "capacity": self._gate.capacity}

    @property
    def evaluation(self) -> tuple[int, int] | None:
        """(tasks done, all tasks) of the evaluation under way; None where there is none."""
        return self._eval.progress if self._eval else None

    def describe(self, now: float) -> str:
        """One line on what is there and who works on what."""
        parts = [f"{len(self._gate.waiting)} groups delivered", self.roster.describe(now)]
        if self._eval:
            parts.append(str(self._eval))
        if not self.servers:
            parts.append("no server has the current weights")
        if self.paused:
            parts.append("training leases are paused")
        if self._gate.committed:
            parts.append(f"{self._gate.committed} used groups hold their places until set_version")
        return ", ".join(parts)

    # ── messages ─────────────────────────────────────────────────────────────

    def _on_hello(self, hello: wire.Hello, now: float) -> None:
        actor_id = hello.actor_id
        known = self.roster.actors.get(actor_id)
        if known and (known.hello.host, known.hello.pid) != (hello.host, hello.pid):
            log.warning("%s is a new process: %d leases of the old one are issued again", actor_id, len(known.leases))
            self._forget(actor_id)
        self.roster.actors.setdefault(actor_id, Actor(hello, now))
        welcome = {"protocol": wire.PROTOCOL_VERSION, "run_id": self._run_id, "config": self._welcome}
        self._send(actor_id, wire.Welcome(**welcome, servers=self.servers, version=self.version))

    def _on_heartbeat(self, actor: Actor, beat: wire.Heartbeat, now: float) -> None:
        self.roster.heard(actor, beat.capacity, beat.stats)
        listed = set(beat.held)
        if strange := sorted(listed - actor.leases):
            self._send(beat.actor_id, wire.Cancel(lease_ids=strange))
        for held in self.roster.of_actor(beat.actor_id):
            held.oldest = beat.oldest.get(held.lease_id, NO_VERSION)
            if held.lease_id not in listed and now - held.issued > GRACE_BEATS * self._beat:
                log.warning("lease %s never reached %s, or was lost there: issued again", held.lease_id, held.actor_id)
                self._void(held)
        self._send(beat.actor_id, self._pong())

    def _pong(self) -> wire.Pong:
        return wire.Pong(version=self.version, servers=self.servers)

    def _on_group(self, actor_id: str, group: Group) -> None:
        held = self.roster.leases.get(group.lease_id)
        if held and held.is_eval:
            if problem := self._problem(group, held.lease.task, 1):
                self._refuse(actor_id, group, problem, held)
                return
            self.roster.drop(held)
            self._eval.done(held.unit, group.trajectories[0])
            self.arrived += 1
            return
        seq = self._ids.seq(group.lease_id)
        if seq is None:
            if not self._ids.ours(group.lease_id):  # else of an evaluation that is over, or a second copy
                log.error("%s: no lease was ever called %r", actor_id, group.lease_id)
        elif self._ledger.state(seq) != "pending":
            self._ledger.count("duplicates")
        elif problem := self._problem(group, self._ledger.task(seq), self._group_size):
            self._refuse(actor_id, group, problem, held)
        elif self._gate.stale(oldest := group.oldest_version):
            self._ledger.count("stale_dropped")
            if held:
                self._void(held, tell=False)
        else:  # also where the lease is void by now: it is the same unit, whoever has it today
            if current := self.roster.of_unit(seq):
                self.roster.drop(current)
                if current is not held:
                    self._send(current.actor_id, wire.Cancel(lease_ids=[current.lease_id]))
            self._ledger.deliver(seq, actor_id, group)
            self._gate.waiting[seq] = oldest
            self.arrived += 1

    def _problem(self, group: Group, task: wire.Task, size: int) -> str | None:
        """Why a group cannot be what its lease asked for, though each trajectory is sound by itself."""
        if len(group.trajectories) != size or group.task_id != task.task_id:
            return "another task, or episodes missing"
        for trajectory in group.trajectories:
            if (trajectory.facts["task_id"], trajectory.facts["dataset"]) != (task.task_id, task.dataset):
                return "episodes of another task"
            if trajectory.versions.max(initial=NO_VERSION) > self._last_version:
                return f"tokens of a version beyond run.steps ({self._last_version})"
            if self.vocabulary and trajectory.token_ids.max(initial=0) >= self.vocabulary:
                return f"token ids beyond the vocabulary of {self.vocabulary}"
        return None

    def _refuse(self, actor_id: str, group: Group, problem: str, held: Held | None) -> None:
        log.error("%s: lease %s came back with %s", actor_id, group.lease_id, problem)
        if held:
            self._attempt_failed(held)

    def _on_failed(self, actor_id: str, message: wire.GroupFailed) -> None:
        held = self.roster.leases.get(message.lease_id)
        if held and held.actor_id == actor_id:
            log.warning("%s could not complete lease %s: %s", actor_id, message.lease_id, message.reason)
            self._attempt_failed(held)

    # ── leases ───────────────────────────────────────────────────────────────

    def _issue(self, now: float) -> None:
        new: dict[str, list[wire.Lease]] = defaultdict(list)
        while self._eval and self._eval.todo and (actor_id := self.roster.freest(1)):
            index = self._eval.todo.popleft()
            fields = {"task": self._eval.tasks[index], "group_size": 1, "seed": index, "purpose": "eval"}
            new[actor_id].append(self._grant(actor_id, index, now, min_version=self._eval.min_version, **fields))
        while self._may_train() and (actor_id := self.roster.freest(self._group_size)):
            unit = self._ledger.lease()
            fields = {"task": unit.task, "group_size": self._group_size, "seed": unit.seed, "purpose": "train"}
            new[actor_id].append(self._grant(actor_id, unit.seq, now, min_version=self._gate.floor, **fields))
        for actor_id, leases in new.items():
            self._send(actor_id, wire.Leases(leases=leases))

    def _may_train(self) -> bool:
        return not self.paused and self._ledger.epoch_size > 0 and self._gate.room(self.roster.training) > 0

    def _grant(self, actor_id: str, unit: int, now: float, **fields: Any) -> wire.Lease:
        lease = wire.Lease(lease_id=self._ids.new(unit, fields["purpose"]), **fields)
        self.roster.grant(Held(lease, unit, actor_id, now))
        return lease

    def _void(self, held: Held, tell: bool = True) -> None:
        """Take a lease back; its unit will be issued again."""
        self.roster.drop(held)
        if held.is_eval:
            self._eval.retry(held.unit)
        else:
            self._ledger.release(held.unit)
        if tell:
            self._send(held.actor_id, wire.Cancel(lease_ids=[held.lease_id]))

    def _attempt_failed(self, held: Held) -> None:
        self.roster.drop(held)
        if held.is_eval:
            self._eval.failed(held.unit)
        elif self._ledger.fail_attempt(held.unit):
            task = held.lease.task
            log.error("task %s failed %d times and is left out of this epoch", task.task_id, MAX_ATTEMPTS)

    def _forget(self, actor_id: str) -> None:
        for held in self.roster.of_actor(actor_id):
            self._void(held, tell=False)
        del self.roster.actors[actor_id]

    def _drop_stale(self) -> None:
        for seq in self._gate.drop_stale():
            self._ledger.drop_stale(seq)

    def _send(self, actor_id: str, message: wire.Message) -> None:
        self._out.append((actor_id, message))

    def _flush(self) -> Outgoing:
        out, self._out = self._out, []
        return out
