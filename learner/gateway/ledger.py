"""The ledger: the durable truth of every unit of work, in SQLite in the run folder.

A unit is one task of one epoch, numbered by ``seq``: its place in the run's order.
States: pending → leased → delivered → consumed, or failed. A row exists once a unit has
been issued; all later ones are implicitly pending, so the cost of an operation depends
neither on the number of tasks nor on the length of the run. Leases are volatile: they
die with the learner, and their units are pending again.

WAL with synchronous=NORMAL loses nothing when the process dies. When the machine dies,
the last transactions may be lost whole: a group delivered in them is made again. A unit
forgotten to be consumed, though, would be trained on twice, so ``consume`` alone, once a
step, waits for the disk (as does opening).
"""

from __future__ import annotations

import hashlib
import heapq
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np

from learner.gateway.ledger_schema import COUNTERS, SCHEMA
from protocol.codec import decode, encode_group
from protocol.messages import Task
from protocol.trajectory import Group

MAX_ATTEMPTS = 3


class LedgerError(RuntimeError):
    """The ledger does not belong to this run, or a unit was moved against the rules."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One task of one epoch. ``seed`` depends on the run's seed, ``seq`` and failed attempts only."""

    seq: int
    epoch: int
    task: Task
    attempts: int
    seed: int


class Ledger:
    """Not thread-safe: its owner (the gateway) holds a lock around every call.

    path: a file, or ":memory:". tasks: all tasks of an epoch, in the environment's order;
    none where a gateway only evaluates.
    Raises ``LedgerError`` where ``path`` was made with other tasks or another seed.
    """

    def __init__(self, path: Path | str, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = tasks
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA page_size = 16384")  # payloads are large: a third of the time that 4 KiB pages take
        self._db.execute("PRAGMA journal_mode = WAL")
        # On disk before anything is issued: a boot that a power cut forgets would name its leases anew.
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(SCHEMA)
        with self._transaction():
            self._db.executemany("INSERT OR IGNORE INTO counters VALUES (?, 0)", [(name,) for name in COUNTERS])
            self._check_same_tasks()
            self.run_id = self._meta("run_id", uuid.uuid4().hex[:12])
            #: How often this ledger has been opened; makes lease ids unique across restarts.
            self.boot = int(self._meta("boot", "0")) + 1
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'boot'", (str(self.boot),))
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._load()

    def close(self) -> None:
        self._db.close()

    # ── issuing ──────────────────────────────────────────────────────────────

    @property
    def epoch_size(self) -> int:
        return len(self._tasks)

    def lease(self) -> Unit:
        """Lease the pending unit with the lowest seq. The next epoch opens when one is used up."""
        while self._heap:
            seq = heapq.heappop(self._heap)
            if seq in self._returned:  # else it was delivered late, after its lease had been voided
                self._returned.remove(seq)
                break
        else:
            seq = self._frontier
            self._db.execute("INSERT INTO units (seq, state) VALUES (?, 'pending')", (seq,))
            self._frontier += 1
        self._leased.add(seq)
        return self.unit(seq)

    def release(self, seq: int) -> None:
        """leased → pending: the unit is issued again."""
        self._leased.remove(seq)
        self._give_back(seq)

    def fail_attempt(self, seq: int) -> bool:
        """leased → pending, or → failed after ``MAX_ATTEMPTS``. True if it failed for good."""
        row = "UPDATE units SET attempts = attempts + 1 WHERE seq = ? RETURNING attempts"
        (attempts,) = self._db.execute(row, (seq,)).fetchone()
        if attempts < MAX_ATTEMPTS:
            self.release(seq)
            return False
        self._leased.remove(seq)
        self._db.execute("UPDATE units SET state = 'failed' WHERE seq = ?", (seq,))
        return True

    # ── delivered groups ─────────────────────────────────────────────────────

    def deliver(self, seq: int, actor_id: str, group: Group) -> bool:
        """leased or pending → delivered, durably with its arrays. False (and counted) for a duplicate."""
        if self.state(seq) != "pending":
            self.count("duplicates")
            return False
        # As they came where they came from an actor: they were checked on the way in.
        frames = msgpack.packb(group.frames or encode_group(actor_id, group))
        with self._transaction():
            self._db.execute("INSERT INTO payloads VALUES (?, ?)", (seq, frames))
            self._db.execute(
                "UPDATE units SET state = 'delivered', oldest = ? WHERE seq = ?", (group.oldest_version, seq)
            )
        self._leased.discard(seq)
        self._returned.discard(seq)
        return True

    def delivered(self) -> dict[int, int]:
        """seq → oldest version of every group that waits to be consumed, lowest seq first."""
        query = "SELECT seq, oldest FROM units WHERE state = 'delivered' ORDER BY seq"
        return dict(self._db.execute(query).fetchall())

    def group(self, seq: int) -> Group:
        """The delivered group of a unit, its arrays as they came from the wire."""
        (frames,) = self._db.execute("SELECT frames FROM payloads WHERE seq = ?", (seq,)).fetchone()
        _, group = decode(msgpack.unpackb(frames))
        return group

    def drop_stale(self, seq: int) -> None:
        """delivered → pending, counted: the group is too old to be trained on."""
        with self._transaction():
            self._db.execute("DELETE FROM payloads WHERE seq = ?", (seq,))
            self._db.execute("UPDATE units SET state = 'pending', oldest = NULL WHERE seq = ?", (seq,))
            self.count("stale_dropped")
        self._give_back(seq)

    # ── consumption and checkpoints ──────────────────────────────────────────

    def consume(self, seqs: Sequence[int], step: int) -> None:
        """delivered → consumed by ``step``, all or none, on disk when it returns."""
        self._db.execute("PRAGMA synchronous = FULL")
        try:
            with self._transaction():
                query = "UPDATE units SET state = 'consumed', step = ? WHERE seq = ? AND state = 'delivered'"
                moved = self._db.executemany(query, [(step, seq) for seq in seqs]).rowcount
                if moved != len(seqs):
                    raise LedgerError(f"step {step}: {len(seqs) - moved} of {len(seqs)} units were not delivered")
        finally:
            self._db.execute("PRAGMA synchronous = NORMAL")

    def checkpointed(self, step: int, at_most: int = 64) -> bool:
        """The weights after ``step`` are safe: free payloads that only an earlier rollback needs.

        Frees ``at_most`` groups, about 1 ms each, and says whether there are more to free.
        """
        with self._transaction():
            freed = int(self._meta("freed", "-1"))
            old = "SELECT seq FROM units JOIN payloads USING (seq) WHERE step > ? AND step <= ? LIMIT ?"
            query = f"DELETE FROM payloads WHERE seq IN ({old})"
            more = self._db.execute(query, (freed, step, at_most)).rowcount == at_most
            if not more:
                self._db.execute("UPDATE meta SET value = ? WHERE key = 'freed'", (str(max(step, freed)),))
        return more

    def rollback(self, to_step: int) -> int:
        """Undo the consumption of every step after ``to_step``; returns the number of units.

        They are delivered again where their groups are still kept, else pending.
        """
        kept = "UPDATE units SET state = 'delivered', step = NULL WHERE step > ? AND seq IN (SELECT seq FROM payloads)"
        gone = "UPDATE units SET state = 'pending', oldest = NULL, step = NULL WHERE step > ?"
        with self._transaction():
            units = sum(self._db.execute(query, (to_step,)).rowcount for query in (kept, gone))
            freed = min(int(self._meta("freed", "-1")), to_step)
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'freed'", (str(freed),))
        self._load()
        return units

    # ── accounts ─────────────────────────────────────────────────────────────

    def unit(self, seq: int) -> Unit:
        """The unit at place ``seq``. Raises ``KeyError`` if it was never issued."""
        row = self._db.execute("SELECT attempts FROM units WHERE seq = ?", (seq,)).fetchone()
        if row is None:
            raise KeyError(seq)
        seed = int(np.random.SeedSequence([self._seed, seq, row[0]]).generate_state(1)[0])
        return Unit(seq, seq // len(self._tasks), self.task(seq), row[0], seed)

    def task(self, seq: int) -> Task:
        """What the unit at place ``seq`` is about, whether it was issued or not."""
        epoch, place = divmod(seq, len(self._tasks))
        return self._tasks[self._order(epoch)[place]]

    def state(self, seq: int) -> str | None:
        """Durable state of a unit (a leased one is ``pending``); None if it was never issued."""
        row = self._db.execute("SELECT state FROM units WHERE seq = ?", (seq,)).fetchone()
        return row[0] if row else None

    def count(self, counter: str) -> None:
        self._db.execute("UPDATE counters SET n = n + 1 WHERE name = ?", (counter,))

    def counts(self) -> dict[str, int]:
        """Units by state, the counters, and ``epoch`` (from 0) of the newest unit.

        ``pending`` counts the rest of the open epoch; ``lost`` must be 0: units below the
        frontier without a row, or pending ones that nobody would ever issue again.
        """
        states = dict(self._db.execute("SELECT state, n FROM states"))
        size = max(1, len(self._tasks))
        (frontier,) = self._db.execute("SELECT coalesce(max(seq) + 1, 0) FROM units").fetchone()
        unlisted = states["pending"] - len(self._leased) - len(self._returned)
        return {
            **dict(self._db.execute("SELECT name, n FROM counters")),
            "pending": len(self._returned) + -frontier % size,
            "leased": len(self._leased),
            "delivered": states["delivered"],
            "consumed": states["consumed"],
            "failed": states["failed"],
            "lost": frontier - sum(states.values()) + abs(unlisted),
            "epoch": max(frontier - 1, 0) // size,
        }

    def audit(self) -> dict[str, int]:
        """{consumed, duplicates, lost, stale_dropped}, for the run's summary."""
        counts = self.counts()
        return {name: counts[name] for name in ("consumed", "duplicates", "lost", "stale_dropped")}

    # ── inside ───────────────────────────────────────────────────────────────

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _meta(self, key: str, default: str) -> str:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, default))
        return self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]

    def _check_same_tasks(self) -> None:
        digest = hashlib.sha256(f"{self._seed}\n".encode())
        for task in self._tasks:
            digest.update(f"{task.dataset}\t{task.task_id}\n".encode())
        if self._meta("tasks", digest.hexdigest()) != digest.hexdigest():
            raise LedgerError(
                "this run folder was made with other tasks or another run.seed: "
                "restore env.train, env.args and run.seed, or choose another run.dir"
            )

    def _load(self) -> None:
        """Rebuild what lives in memory; whoever held a lease before holds it no more."""
        self._frontier: int = self._db.execute("SELECT coalesce(max(seq) + 1, 0) FROM units").fetchone()[0]
        self._heap = [seq for (seq,) in self._db.execute("SELECT seq FROM units WHERE state = 'pending' ORDER BY seq")]
        self._returned = set(self._heap)
        self._leased: set[int] = set()

    def _give_back(self, seq: int) -> None:
        self.count("reissued")
        self._returned.add(seq)
        heapq.heappush(self._heap, seq)

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            while len(self._orders) > 1:  # late groups may still ask for the epoch before
                del self._orders[min(self._orders)]
            self._orders[epoch] = np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))
        return self._orders[epoch]
