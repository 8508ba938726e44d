"""The ledger: every unit exactly once, whatever is restarted, rolled back or delivered twice."""

from __future__ import annotations

import time

import pytest

from learner.gateway.ledger import MAX_ATTEMPTS, Ledger, LedgerError
from tests.wire_samples import assert_same, group, tasks


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def deliver(ledger: Ledger, count: int, version: int = 0) -> list[int]:
    seqs = []
    for _ in range(count):
        unit = ledger.lease()
        assert ledger.deliver(unit.seq, "actor-0", group(f"l{unit.seq}", unit.task.task_id, version=version))
        seqs.append(unit.seq)
    return seqs


def test_every_epoch_is_a_seeded_permutation_of_all_tasks():
    def order(seed):
        ledger = Ledger(":memory:", tasks(5), seed)
        return [(u.epoch, u.task.task_id, u.seed) for u in (ledger.lease() for _ in range(10))]

    assert order(1) == order(1) != order(2)
    epochs = [{task for epoch, task, _ in order(1) if epoch == e} for e in (0, 1)]
    assert epochs == [{f"q{i}" for i in range(5)}] * 2
    assert len({seed for _, _, seed in order(1)}) == 10


def test_a_restart_returns_leases_and_keeps_what_was_delivered_and_consumed(path):
    ledger = Ledger(path, tasks(6), 0)
    first, run_id = deliver(ledger, 3), ledger.run_id
    ledger.consume(first[:1], step=1)
    ledger.lease()  # seq 3, dies with the process
    del ledger  # no close: as after kill -9

    again = Ledger(path, tasks(6), 0)
    assert (again.run_id, again.boot) == (run_id, 2)
    assert again.delivered() == {1: 0, 2: 0}
    assert_same(again.group(1), group("l1", again.unit(1).task.task_id))
    assert [again.lease().seq for _ in range(3)] == [3, 4, 5]
    assert again.audit() == {"consumed": 1, "duplicates": 0, "lost": 0, "stale_dropped": 0}


def test_delivered_twice_counts_once_in_every_state(path):
    ledger = Ledger(path, tasks(4), 0)
    (seq,) = deliver(ledger, 1)
    assert not ledger.deliver(seq, "actor-1", group("l", "q"))
    ledger.consume([seq], step=1)
    assert not ledger.deliver(seq, "actor-1", group("l", "q"))
    assert not ledger.deliver(99, "actor-1", group("l", "q"))  # never issued
    assert ledger.audit() == {"consumed": 1, "duplicates": 3, "lost": 0, "stale_dropped": 0}


def test_a_released_unit_comes_first_and_a_late_group_takes_it_off_the_list():
    ledger = Ledger(":memory:", tasks(9), 0)
    units = [ledger.lease() for _ in range(3)]
    ledger.release(2)
    ledger.release(0)
    assert ledger.deliver(0, "late", group("l", units[0].task.task_id))
    assert [ledger.lease().seq for _ in range(2)] == [2, 3]
    assert ledger.counts()["reissued"] == 2 and ledger.counts()["lost"] == 0


def test_stale_groups_go_back_without_their_payload():
    ledger = Ledger(":memory:", tasks(3), 0)
    (seq,) = deliver(ledger, 1)
    ledger.drop_stale(seq)
    assert ledger.delivered() == {} and ledger.lease().seq == seq
    assert ledger.audit()["stale_dropped"] == 1
    assert ledger.deliver(seq, "a", group("again", "q", version=5))
    assert ledger.delivered() == {seq: 5}


def test_a_task_fails_after_its_attempts_with_a_new_seed_each():
    ledger = Ledger(":memory:", tasks(3), 0)
    seeds = set()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        unit = ledger.lease()
        assert unit.seq == 0
        seeds.add(unit.seed)
        assert ledger.fail_attempt(0) == (attempt == MAX_ATTEMPTS)
    assert len(seeds) == MAX_ATTEMPTS
    assert ledger.lease().seq == 1
    assert ledger.counts()["failed"] == 1 and ledger.counts()["lost"] == 0


def test_rollback_returns_later_steps_with_their_groups(path):
    ledger = Ledger(path, tasks(9), 0)
    for step in (1, 2, 3):
        ledger.consume(deliver(ledger, 2, version=step), step)
    ledger.checkpointed(1)
    ledger.close()

    again = Ledger(path, tasks(9), 0)
    assert again.rollback(1) == 4
    assert again.delivered() == {2: 2, 3: 2, 4: 3, 5: 3}
    assert again.audit()["consumed"] == 2
    with pytest.raises(LedgerError, match="not delivered"):
        again.consume([0], step=4)
    assert again.rollback(0) == 2  # their payloads are gone with the checkpoint of step 1
    assert again.lease().seq == 0
    assert again.counts()["lost"] == 0


def test_checkpoints_free_payloads_up_to_their_step_only(path):
    ledger = Ledger(path, tasks(9), 0)
    for step in (1, 2, 3):
        ledger.consume(deliver(ledger, 2), step)
    assert ledger.checkpointed(2, at_most=3)  # four are to go
    assert not ledger.checkpointed(2, at_most=3)
    kept = [seq for (seq,) in ledger._db.execute("SELECT seq FROM payloads ORDER BY seq")]
    assert kept == [4, 5]


def test_consume_is_all_or_nothing():
    ledger = Ledger(":memory:", tasks(9), 0)
    seqs = deliver(ledger, 2)
    with pytest.raises(LedgerError, match="1 of 3 units"):
        ledger.consume([*seqs, 7], step=1)
    assert ledger.audit()["consumed"] == 0 and list(ledger.delivered()) == seqs


def test_the_audit_finds_a_row_that_is_missing_and_a_unit_that_nobody_would_issue():
    ledger = Ledger(":memory:", tasks(9), 0)
    deliver(ledger, 3)
    ledger._db.execute("DELETE FROM units WHERE seq = 1")
    assert ledger.audit()["lost"] == 1
    ledger.lease()
    ledger._leased.clear()
    assert ledger.audit()["lost"] == 2


def test_another_task_list_or_seed_is_refused(path):
    Ledger(path, tasks(3), 0).close()
    for other in ((tasks(4), 0), (tasks(3), 1)):
        with pytest.raises(LedgerError, match=r"other tasks or another run\.seed"):
            Ledger(path, *other)


def test_pending_counts_the_rest_of_the_epoch():
    ledger = Ledger(":memory:", tasks(5), 0)
    assert ledger.counts()["pending"] == 0  # no epoch is open yet
    deliver(ledger, 6)
    assert (ledger.counts()["epoch"], ledger.counts()["pending"]) == (1, 4)


def test_an_operation_costs_the_same_with_many_tasks():
    def seconds(size):
        ledger = Ledger(":memory:", tasks(size), 0)
        ledger.lease()  # pays for the epoch's permutation
        began = time.perf_counter()
        for _ in range(200):
            ledger.lease()
            ledger.counts()
        return time.perf_counter() - began

    small, large = min(seconds(10) for _ in range(3)), min(seconds(30_000) for _ in range(3))
    assert large < 5 * small + 0.05
