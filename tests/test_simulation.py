"""A hundred simulated schedules; and faults planted in the production code, which the simulation has to catch."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from benchmarks import simulate
from benchmarks.simulation.world import run_schedule
from learner.gateway.dispatch import Dispatcher
from learner.gateway.gate import StalenessGate
from learner.gateway.ledger import Ledger
from learner.gateway.roster import Roster
from protocol.trajectory import NO_VERSION

#: A planted fault has to be found within so many schedules.
PATIENCE = 300


def test_a_hundred_schedules(capsys):
    assert simulate.main(["--schedules", "100"]) == 0, capsys.readouterr().out
    *table, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert summary.pop("wall_s") > 0
    assert summary == {
        "schedules": 100, "lost": 0, "duplicates": 0, "over_stale": 0, "stuck": 0, "unbounded": 0, "error": 0,
    }  # fmt: skip
    happened = {row.split("│")[1].strip() for row in table if row.startswith("│")}
    wanted = {
        "messages lost", "messages doubled", "messages late", "actors killed", "actors left", "actors cut off",
        "learner killed", "learner cut off from power", "learner stopped", "clocks jumped", "servers down",
        "pushes failed", "episodes failed", "episodes hung", "requests failed", "evaluations",
    }  # fmt: skip
    assert wanted <= happened


def test_a_seed_tells_the_same_story_every_time(capsys):
    """In another process too, where strings hash differently."""
    assert simulate.main(["--seed", "7", "--trace"]) == 0
    here = capsys.readouterr().out
    command = [sys.executable, "-m", "benchmarks.simulate", "--seed", "7", "--trace"]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, second = ([_without_run_id(line) for line in story.splitlines()] for story in (here, there))
    assert first == second and len(first) > 50
    assert any("group_done" in line for line in first) and any("learner is started" in line for line in first)


def _without_run_id(line):
    return " ".join(word for word in line.split() if ".train" not in word and ".eval" not in word)


# ── planted faults ───────────────────────────────────────────────────────────


def acknowledge_before_writing(monkeypatch):
    """A group's transaction stays open until the next one: acknowledged, and gone if the process dies."""
    transaction, deliver, consume = Ledger._transaction, Ledger.deliver, Ledger.consume

    def write(ledger):
        if ledger.__dict__.pop("unwritten", False):
            ledger._db.execute("COMMIT")

    @contextmanager
    def written_later(ledger):
        write(ledger)
        ledger._db.execute("BEGIN IMMEDIATE")
        yield
        ledger.unwritten = True

    @contextmanager
    def written(ledger):
        write(ledger)
        with transaction(ledger):
            yield

    def deliver_later(self, *args):
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_transaction", written_later)
            return deliver(self, *args)

    def consume_written(self, *args):
        write(self)
        consume(self, *args)

    monkeypatch.setattr(Ledger, "_transaction", written)
    monkeypatch.setattr(Ledger, "deliver", deliver_later)
    monkeypatch.setattr(Ledger, "consume", consume_written)


def consume_without_waiting_for_the_disk(monkeypatch):
    def consume(self, seqs, step):
        with self._transaction():
            query = "UPDATE units SET state = 'consumed', step = ? WHERE seq = ?"
            self._db.executemany(query, [(step, seq) for seq in seqs])

    monkeypatch.setattr(Ledger, "consume", consume)


def forget_to_void_expired_leases(monkeypatch):
    monkeypatch.setattr(Roster, "expired", lambda self, now, timeout: iter(()))


def forget_the_leases_of_the_dead(monkeypatch):
    def forget(self, actor_id):
        for held in self.roster.of_actor(actor_id):
            self.roster.drop(held)
        del self.roster.actors[actor_id]

    monkeypatch.setattr(Dispatcher, "_forget", forget)


def accept_duplicates(monkeypatch):
    deliver = Ledger.deliver

    def deliver_again(self, seq, actor_id, group):
        self._db.execute("DELETE FROM payloads WHERE seq = ?", (seq,))
        return deliver(self, seq, actor_id, group)

    monkeypatch.setattr(Ledger, "state", lambda self, seq: "pending")
    monkeypatch.setattr(Ledger, "deliver", deliver_again)


def be_off_by_one_in_the_gate(monkeypatch):
    monkeypatch.setattr(StalenessGate, "stale", lambda self, oldest: NO_VERSION < oldest < self.floor - 1)


def check_age_only_on_arrival(monkeypatch):
    monkeypatch.setattr(StalenessGate, "drop_stale", lambda self: [])


def never_issue_again(monkeypatch):
    monkeypatch.setattr(Ledger, "_give_back", lambda self, seq: self._returned.add(seq))


def let_the_evaluation_forget_a_dead_actors_episodes(monkeypatch):
    monkeypatch.setattr("learner.gateway.evalqueue.EvalQueue.retry", lambda self, index: None)


def grant_without_looking_at_the_gate(monkeypatch):
    monkeypatch.setattr(StalenessGate, "room", lambda self, leased: 1)


@pytest.mark.parametrize(
    ("plant", "kind", "first"),
    [
        (acknowledge_before_writing, "lost", 1),
        (consume_without_waiting_for_the_disk, "lost", 11),
        (forget_to_void_expired_leases, "stuck", 59),
        (forget_the_leases_of_the_dead, "lost", 5),
        (accept_duplicates, "duplicates", 132),
        (be_off_by_one_in_the_gate, "over_stale", 0),
        (check_age_only_on_arrival, "over_stale", 0),
        (never_issue_again, "stuck", 34),
        (let_the_evaluation_forget_a_dead_actors_episodes, "stuck", 37),
        (grant_without_looking_at_the_gate, "unbounded", 0),
    ],
)
def test_a_planted_fault_is_caught(monkeypatch, plant, kind, first):
    """``first``: a seed that shows it soon; without the fault it is in order."""
    assert run_schedule(first).problem is None
    plant(monkeypatch)
    problems = (run_schedule(seed).problem for seed in range(first, first + PATIENCE))
    assert any(problem and problem[0] == kind for problem in problems)


def test_a_failing_schedule_says_how_to_see_it_again(monkeypatch, capsys):
    be_off_by_one_in_the_gate(monkeypatch)
    assert simulate.main(["--schedules", "1"]) == 1
    told = capsys.readouterr().out
    assert "seed 0: over_stale: unit" in told and "python -m benchmarks.simulate --seed 0 --trace" in told
    assert json.loads(told.splitlines()[-1])["over_stale"] == 1
