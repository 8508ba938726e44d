"""The dispatcher as a state machine: a clock and actors by hand, no sockets."""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict

import numpy as np
import pytest

from learner.gateway.dispatch import GRACE_BEATS, SILENT_BEATS, Dispatcher
from learner.gateway.gate import StalenessGate
from learner.gateway.ledger import MAX_ATTEMPTS, Ledger
from protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Cancel,
    Goodbye,
    GroupDone,
    GroupFailed,
    Heartbeat,
    Hello,
    Lease,
    Leases,
    Pong,
    Shutdown,
    Unknown,
    Welcome,
)
from protocol.trajectory import NO_VERSION
from tests.wire_samples import config, group_of, tasks


class World:
    """Actors that hold what they are given, and what the dispatcher told them."""

    def __init__(self, actors=("a",), capacity=4, groups=2, staleness=1, task_count=20, ledger=None):
        self.ledger = ledger or Ledger(":memory:", tasks(task_count), 0)
        self.dispatcher = Dispatcher(config(groups, staleness), self.ledger, "run", {"model": {}})
        self.now = 0.0
        self.held: dict[str, dict[str, Lease]] = defaultdict(dict)
        self.told: list = []
        self.capacity = capacity
        for actor in actors:
            self.join(actor)

    def _apply(self, out):
        self.told = out
        for actor, message in out:
            match message:
                case Leases(leases=leases):
                    self.held[actor] |= {lease.lease_id: lease for lease in leases}
                case Cancel(lease_ids=lease_ids):
                    for lease_id in lease_ids:
                        self.held[actor].pop(lease_id, None)

    def say(self, actor, message, group=None):
        self._apply(self.dispatcher.on_message(actor, message, group, self.now))
        return self.told

    def join(self, actor, pid=1):
        told = self.say(actor, Hello(protocol=PROTOCOL_VERSION, actor_id=actor, host="h", pid=pid))
        self.beat(actor)
        return told

    def beat(self, actor, oldest=None, held=None, capacity=None):
        held = list(self.held[actor]) if held is None else held
        capacity = self.capacity if capacity is None else capacity
        return self.say(actor, Heartbeat(actor_id=actor, capacity=capacity, held=held, oldest=oldest or {}))

    def done(self, actor, lease, version=0, group=None):
        group = group or group_of(lease, version)
        self.held[actor].pop(lease.lease_id, None)
        message = GroupDone(
            actor_id=actor, lease_id=lease.lease_id, task_id=lease.task.task_id,
            lengths=[], turn_counts=[], terminated=[], facts=[],
        )  # fmt: skip
        return self.say(actor, message, group)

    def fail(self, actor, lease):
        self.held[actor].pop(lease.lease_id, None)
        return self.say(actor, GroupFailed(actor_id=actor, lease_id=lease.lease_id, reason="broken"))

    def tick(self, seconds=0.0):
        """Time passes in small steps while nobody says anything."""
        end = self.now + seconds
        out = []
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self._apply(self.dispatcher.tick(self.now))
            out += self.told
        self._apply(self.dispatcher.tick(self.now))
        return out + self.told

    def leases(self, actor="a"):
        return sorted(self.held[actor].values(), key=seq_of)

    def seqs(self, actor="a"):
        return [seq_of(lease) for lease in self.leases(actor)]

    def queue(self, *names):
        queue = self.dispatcher.queue()
        assert queue["lost"] == 0
        assert queue["leased"] + queue["waiting"] + queue["taken"] <= queue["capacity"]
        return tuple(queue[name] for name in names)


def seq_of(lease):
    return int(lease.lease_id.split(".")[1].removeprefix(lease.purpose))


# ── the gate ─────────────────────────────────────────────────────────────────


def test_gate_exhaustively_for_small_numbers():
    """Room is what is left of (η + 1)·B, and no take ever hands out what is too old."""
    for groups, staleness, leased, waiting, taken in itertools.product(range(1, 4), range(3), *[range(4)] * 3):
        gate = StalenessGate(groups, staleness)
        gate.waiting = dict.fromkeys(range(waiting + taken), 0)
        gate.take(taken)
        assert gate.room(leased) == (staleness + 1) * groups - leased - waiting - taken
        for version in range(5):
            gate.set_version(version)
            assert gate.stale(0) == (version > staleness)
            assert not gate.stale(version) and not gate.stale(NO_VERSION)
        gate.commit(6)
        assert (gate.taken, gate.committed) == ([], taken)
        gate.set_version(6)
        assert gate.committed == 0


def test_lock_step_issues_b_units_a_version():
    world = World(staleness=0, capacity=9)
    for version in range(3):
        assert world.seqs() == [2 * version, 2 * version + 1]
        assert all(lease.min_version == version for lease in world.leases())
        for lease in world.leases():
            world.done("a", lease, version)
            world.tick(1)
            world.beat("a")
        assert world.seqs() == [] and len(world.dispatcher.take(2)) == 2
        world.beat("a")
        world.dispatcher.commit(version + 1)
        world.tick()
        assert world.seqs() == []  # committed, but the version is not open yet
        world.dispatcher.set_version(version + 1)
        world.tick()


def test_admission_counts_leased_waiting_and_taken():
    world = World(groups=2, staleness=1, capacity=9)
    assert world.seqs() == [0, 1, 2, 3]
    world.done("a", world.leases()[0])
    assert world.seqs() == [1, 2, 3]
    world.done("a", world.leases()[0])
    assert world.queue("leased", "waiting", "taken") == (2, 2, 0)
    world.dispatcher.take(2)
    world.tick()
    assert world.queue("leased", "waiting", "taken") == (2, 0, 2)
    world.dispatcher.commit(1)
    world.dispatcher.set_version(1)
    world.tick()
    assert world.seqs() == [2, 3, 4, 5]
    assert world.queue("consumed") == (2,)


def test_leases_go_out_lowest_first_and_evenly():
    world = World(actors=(), groups=4, staleness=1)
    for actor, capacity in (("a", 1), ("b", 4), ("c", 8)):
        world.say(actor, Hello(protocol=PROTOCOL_VERSION, actor_id=actor, host="h", pid=1))
        world.dispatcher.paused = True
        world.beat(actor, capacity=capacity)
    world.dispatcher.paused = False
    world.tick()
    assert [world.seqs(actor) for actor in "abc"] == [[0], [1, 3, 5, 7], [2, 4, 6]]


def test_take_is_sorted_whatever_the_order_of_arrival():
    world = World(groups=3, staleness=0)
    first, second, third = world.leases()
    for lease in (third, first, second):
        assert world.dispatcher.take(3) is None
        world.done("a", lease)
    assert [g.lease_id for g in world.dispatcher.take(3)] == [x.lease_id for x in (first, second, third)]


# ── staleness ────────────────────────────────────────────────────────────────


def test_waiting_groups_that_became_too_old_are_dropped_counted_and_issued_again():
    world = World(groups=2, staleness=1)
    old, fresh, *_ = world.leases()
    world.done("a", old, version=0)
    world.done("a", fresh, version=1)
    world.dispatcher.set_version(2)
    assert world.dispatcher.take(2) is None
    world.tick()
    assert seq_of(old) in world.seqs()
    assert world.queue("stale_dropped", "waiting", "reissued") == (1, 1, 1)
    again = world.leases()[0]
    assert again.lease_id != old.lease_id and again.min_version == 1
    world.done("a", again, version=2)
    assert [g.oldest_version for g in world.dispatcher.take(2)] == [2, 1]


def test_a_group_that_arrives_too_old_is_acknowledged_but_never_used():
    world = World(groups=2, staleness=1)
    lease = world.leases()[0]
    world.dispatcher.set_version(5)
    told = world.done("a", lease, version=3)
    assert ("a", Ack(lease_id=lease.lease_id)) in told
    assert world.queue("stale_dropped", "waiting") == (1, 0)
    assert world.seqs()[0] == seq_of(lease)  # issued again already


def test_leases_whose_tokens_are_too_old_are_cancelled_in_flight():
    world = World(groups=2, staleness=1)
    first, second, *_ = world.leases()
    world.beat("a", oldest={first.lease_id: 0, second.lease_id: 1})
    world.dispatcher.set_version(2)
    told = world.tick()
    assert ("a", Cancel(lease_ids=[first.lease_id])) in told
    assert first.lease_id not in world.held["a"] and second.lease_id in world.held["a"]
    assert world.seqs()[0] == 0  # the unit came back under a new lease
    assert world.queue("stale_cancelled", "reissued", "stale_dropped") == (1, 1, 0)


def test_a_group_in_which_nothing_was_sampled_is_not_old():
    world = World(groups=1, staleness=0)
    lease = world.leases()[0]
    silent = group_of(lease)
    for t in silent.trajectories:
        t.action_mask[:], t.versions[:], t.rewards[:] = 0, NO_VERSION, 0
    world.dispatcher.set_version(9)
    world.done("a", lease, group=silent)
    assert len(world.dispatcher.take(1)) == 1


# ── death, loss, lateness ────────────────────────────────────────────────────


def test_a_silent_actor_is_given_up_and_its_units_go_to_another(caplog):
    world = World(actors=("a", "b"), groups=2, staleness=1, capacity=2)
    lost = world.seqs("a")
    for _ in range(SILENT_BEATS):
        world.tick(1)
        world.beat("b")
    assert world.dispatcher.roster.rows(world.now)[0]["id"] == "a"
    world.tick(1)
    world.beat("b", capacity=4)
    assert [row["id"] for row in world.dispatcher.roster.rows(world.now)] == ["b"]
    assert "a is given up: silent for" in caplog.text
    assert set(lost) <= set(world.seqs("b"))
    assert world.queue("reissued", "leased") == (2, 4)
    # It was only cut off: it is told so, says Hello and is welcome, without its old leases.
    assert world.say("a", Heartbeat(actor_id="a", capacity=2, held=[])) == [("a", Unknown())]
    assert any(isinstance(m, Welcome) for _, m in world.join("a"))


def test_actors_are_not_given_up_because_the_learner_slept():
    world = World()
    world.tick(1)
    world.now += 60  # the whole process was stopped
    world._apply(world.dispatcher.tick(world.now))
    assert len(world.dispatcher.roster.rows(world.now)) == 1
    world.tick(SILENT_BEATS + 1.0)
    assert world.dispatcher.roster.rows(world.now) == []


def test_an_old_lease_is_void_whatever_its_holder_says():
    world = World(groups=1, staleness=0)
    lease = world.leases()[0]
    for _ in range(101):
        world.tick(1)
        world.beat("a", held=[lease.lease_id] if lease.lease_id in world.held["a"] else None)
    assert lease.lease_id not in world.held["a"] and world.seqs() == [0]


def test_a_lost_leases_message_is_noticed_after_a_grace():
    world = World(groups=1, staleness=0)
    lost = world.held["a"].popitem()[0]
    for beats in range(1, GRACE_BEATS + 2):
        world.tick(1)
        world.beat("a", held=[])
        assert (lost in world.dispatcher.roster.leases) == (beats <= GRACE_BEATS)
    assert world.seqs() == [0]  # issued again under another lease
    assert lost not in world.held["a"]


def test_leases_that_nobody_knows_are_cancelled():
    world = World()
    told = world.beat("a", held=[*world.held["a"], "stranger"])
    assert told == [("a", Cancel(lease_ids=["stranger"])), ("a", Pong(version=0, servers=[]))]


def test_delivered_twice_counts_once_and_is_acknowledged_twice():
    world = World(groups=1, staleness=1)
    lease = world.leases()[0]
    for _ in range(2):
        assert ("a", Ack(lease_id=lease.lease_id)) in world.done("a", lease)
    assert world.queue("duplicates", "waiting") == (1, 1)
    world.dispatcher.take(1)
    world.dispatcher.commit(1)
    world.done("a", lease)
    assert world.queue("duplicates", "consumed", "waiting") == (2, 1, 0)


@pytest.mark.parametrize("reissued", [False, True])
def test_a_late_group_of_a_void_lease_is_the_same_unit(reissued):
    world = World(actors=("a", "b"), groups=1, staleness=0, capacity=1)
    lease = world.leases("a")[0]
    if not reissued:
        world.beat("b", capacity=0)
    for _ in range(SILENT_BEATS + 1):
        world.tick(1)
        world.beat("b", capacity=1 if reissued else 0)
    assert world.seqs("b") == ([0] if reissued else [])
    told = world.done("a", lease)
    assert ("a", Ack(lease_id=lease.lease_id)) in told
    assert world.queue("waiting", "leased", "duplicates") == (1, 0, 0)
    assert world.seqs("b") == []  # its lease was cancelled
    assert len(world.dispatcher.take(1)) == 1


def test_groups_of_leases_that_never_were_are_forgotten_and_not_counted():
    world = World()
    foreign = world.leases()[0].model_copy(update={"lease_id": "0123456789ab.train0.1.1"})
    assert ("a", Ack(lease_id=foreign.lease_id)) in world.done("a", foreign)
    assert world.queue("duplicates", "waiting") == (0, 0)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda t: t.facts.update(dataset="other"), "another task"),
        (lambda t: t.versions.__setitem__(2, 2_000_000), "beyond run.steps"),
        (lambda t: t.token_ids.__setitem__(2, 1000), "beyond the vocabulary of 1000"),
    ],
)
def test_a_group_that_would_poison_the_ledger_is_refused(caplog, spoil, says):
    world = World(groups=1, staleness=0)
    world.dispatcher.vocabulary = 1000
    lease = world.leases()[0]
    bad = group_of(lease)
    spoil(bad.trajectories[1])
    world.done("a", lease, group=bad)
    assert says in caplog.text and world.queue("waiting") == (0,)


def test_a_group_that_is_not_what_was_leased_is_a_failed_attempt(caplog):
    world = World(groups=1, staleness=0)
    for _ in range(MAX_ATTEMPTS):
        lease = world.leases()[0]
        bad = group_of(lease)
        bad.trajectories.pop()
        world.done("a", lease, group=bad)
    assert "episodes missing" in caplog.text
    assert world.queue("failed", "waiting") == (1, 0) and world.seqs() == [1]


def test_failed_groups_are_issued_again_until_the_cap(caplog):
    world = World(groups=1, staleness=0)
    for attempt in range(MAX_ATTEMPTS):
        assert world.queue("failed") == (0,) and world.seqs() == [0], attempt
        world.fail("a", world.leases()[0])
    assert world.queue("failed", "leased", "pending") == (1, 1, 18)
    assert "failed 3 times and is left out of this epoch" in caplog.text
    assert world.seqs() == [1]


def test_only_the_holder_can_fail_a_lease():
    world = World(actors=("a", "b"), groups=1, staleness=0)
    lease = world.leases("a")[0]
    world.fail("b", lease)
    assert world.queue("leased", "reissued") == (1, 0) and world.leases("a") == [lease]


def test_goodbye_hands_everything_back():
    world = World(actors=("a", "b"), groups=1, staleness=0)
    world.say("a", Goodbye(actor_id="a"))
    assert world.seqs("b") == [0]
    assert [row["id"] for row in world.dispatcher.roster.rows(world.now)] == ["b"]


def test_a_new_process_under_an_old_name_starts_with_nothing():
    world = World(groups=1, staleness=0)
    old = world.held["a"].copy()
    world.join("a", pid=1)  # only a reconnect
    assert world.held["a"] == old
    world.held["a"].clear()
    world.join("a", pid=2)
    assert world.seqs() == [0] and not old.keys() & world.held["a"].keys()


def test_no_counter_leaks_after_a_storm():
    """A seeded mix of every fault; then the batch must still fill, and every unit be accounted for."""
    rng = np.random.default_rng(0)
    world = World(actors=("a", "b", "c"), groups=3, staleness=1, capacity=3, task_count=50)
    logging.getLogger("rollway.dispatch").setLevel(logging.CRITICAL)
    finished, version = [], 0
    for _ in range(4000):
        actor = "abc"[rng.integers(3)]
        lease = next(iter(world.held[actor].values()), None)
        match rng.integers(9):
            case 0 | 1 if lease:
                finished.append((actor, lease, max(0, version - int(rng.integers(3)))))
                world.done(*finished[-1])
            case 2 if finished:
                world.done(*finished[rng.integers(len(finished))])
            case 3 if lease:
                world.fail(actor, lease)
            case 4:
                world.held[actor].clear()  # the process dies
                world.join(actor, pid=int(rng.integers(1, 1000)))
            case 5:
                world.tick(float(rng.random() * 4))
            case 6:
                world.beat(actor, oldest={lease.lease_id: max(0, version - 1)} if lease else {})
            case 7 if groups := world.dispatcher.take(3):
                assert all(version - g.oldest_version <= 1 for g in groups)
                version += 1
                world.dispatcher.commit(version)
                world.dispatcher.set_version(version)
        world.queue()
        for name in "abc":
            if (name, Unknown()) in world.told:
                world.join(name)
    logging.getLogger("rollway.dispatch").setLevel(logging.NOTSET)
    assert version > 20
    for actor in "abc":
        world.held[actor].clear()
        world.join(actor, pid=2000)
    for _ in range(20):
        for actor in "abc":
            for lease in world.leases(actor):
                world.done(actor, lease, version)
        world.tick(0.1)
    assert world.dispatcher.take(3)
    queue = world.dispatcher.queue()
    assert queue["consumed"] == 3 * version
    issued = world.ledger._db.execute("SELECT count(*), max(seq) + 1 FROM units").fetchone()
    assert issued[0] == issued[1]


# ── restart ──────────────────────────────────────────────────────────────────


def test_a_restarted_learner_goes_on_with_what_was_delivered(tmp_path):
    path = tmp_path / "ledger.sqlite"
    world = World(groups=1, staleness=2, ledger=Ledger(path, tasks(9), 0))
    trained, waiting, running = world.leases()
    world.done("a", trained)
    world.dispatcher.take(1)
    world.dispatcher.commit(1)
    world.dispatcher.set_version(1)
    world.done("a", waiting)
    after = World(actors=(), groups=1, staleness=2, ledger=Ledger(path, tasks(9), 0))
    assert after.dispatcher.rollback(1) == 0
    after.join("a")
    # The lease of before the restart is void, but its group is welcome.
    told = after.done("a", running, version=0)
    assert ("a", Ack(lease_id=running.lease_id)) in told
    assert [g.lease_id for g in after.dispatcher.take(2)] == [waiting.lease_id, running.lease_id]
    assert after.queue("consumed", "duplicates") == (1, 0)


def test_rollback_trains_again_on_the_groups_of_undone_steps():
    world = World(groups=1, staleness=1)
    lease = world.leases()[0]
    world.done("a", lease)
    world.dispatcher.take(1)
    world.dispatcher.commit(1)
    world.dispatcher.set_version(1)
    assert world.dispatcher.rollback(0) == 1
    assert world.dispatcher.version == 0
    assert [g.lease_id for g in world.dispatcher.take(1)] == [lease.lease_id]
    world.tick()
    assert world.queue("leased", "taken", "consumed") == (1, 1, 0)


# ── evaluation ───────────────────────────────────────────────────────────────


def test_evaluation_comes_first_beyond_the_gate_and_is_aligned_with_its_tasks():
    world = World(actors=(), groups=1, staleness=0)
    wanted = [task.model_copy(update={"dataset": "held-out"}) for task in tasks(5)]
    world.dispatcher.submit_eval(wanted, min_version=3)
    world.join("a")
    leases = list(world.held["a"].values())
    evals = [lease for lease in leases if lease.purpose == "eval"]
    assert [lease.task for lease in evals] == wanted and len(leases) == 6
    assert {(lease.group_size, lease.min_version) for lease in evals} == {(1, 3)}
    assert world.dispatcher.eval_results() is None
    for i, lease in enumerate(reversed(evals)):
        episode = group_of(lease, version=3)
        episode.trajectories[0].facts["n"] = 4 - i
        world.done("a", lease, group=episode)
    assert [t.facts["n"] for t in world.dispatcher.eval_results()] == [0, 1, 2, 3, 4]
    assert world.queue("waiting", "leased", "duplicates") == (0, 1, 0)


def test_evaluation_fills_capacity_by_episodes():
    world = World(capacity=3, actors=(), groups=9, staleness=0)
    world.dispatcher.submit_eval(tasks(5), 0)
    world.join("a")  # room for 3 groups of 2: five single episodes, and no whole group more
    assert [lease.purpose for lease in world.held["a"].values()] == ["eval"] * 5


def test_evaluation_survives_failures_deaths_and_old_weights(caplog):
    world = World(actors=("a",), groups=1, staleness=0)
    world.dispatcher.paused = True
    world.dispatcher.submit_eval(tasks(2), min_version=1)
    world.tick()
    old_weights, broken = [x for x in world.held["a"].values() if x.purpose == "eval"]
    world.done("a", old_weights, version=0)
    assert world.dispatcher.eval_results() is None
    world.held["a"].clear()
    world.join("a", pid=7)
    assert len(world.held["a"]) == 2
    for _ in range(MAX_ATTEMPTS):
        broken = next(x for x in world.held["a"].values() if x.task.task_id == "q1")
        world.fail("a", broken)
    good = next(x for x in world.held["a"].values() if x.task.task_id == "q0")
    world.done("a", good, version=1)
    first, second = world.dispatcher.eval_results()
    assert len(first) and (len(second), second.facts["finish"], second.facts["metrics"]) == (0, "failed", {})
    assert "counts as not answered" in caplog.text


def test_a_second_copy_of_an_evaluation_episode_is_thrown_away_without_alarm(caplog):
    world = World(actors=(), groups=1, staleness=0)
    world.dispatcher.submit_eval(tasks(2), 0)
    world.join("a")
    lease = next(lease for lease in world.held["a"].values() if lease.purpose == "eval")
    for _ in range(2):
        assert ("a", Ack(lease_id=lease.lease_id)) in world.done("a", lease)
    assert world.dispatcher.eval_results() is None and not caplog.text
    world.done("a", lease.model_copy(update={"lease_id": "another.eval0.1.1"}))
    assert "no lease was ever called" in caplog.text


def test_a_new_evaluation_replaces_one_that_was_given_up():
    world = World(actors=(), groups=1, staleness=0)
    world.dispatcher.paused = True
    world.dispatcher.submit_eval(tasks(1), 0)
    world.join("a")
    old = world.held["a"].copy()
    world.dispatcher.submit_eval(tasks(2), 0)
    told = world.tick()
    assert ("a", Cancel(lease_ids=list(old))) in told
    world.done("a", *old.values())
    assert world.dispatcher.eval_results() is None
    for lease in world.leases():
        world.done("a", lease)
    assert len(world.dispatcher.eval_results()) == 2


# ── the rest ─────────────────────────────────────────────────────────────────


def test_pause_stops_new_training_leases_only():
    world = World(groups=1, staleness=1)
    world.dispatcher.paused = True
    world.done("a", world.leases()[0])
    world.dispatcher.take(1)
    world.dispatcher.commit(1)
    world.dispatcher.set_version(1)
    world.tick()
    assert world.seqs() == [1]
    world.dispatcher.paused = False
    world.tick()
    assert world.seqs() == [1, 2]


def test_welcome_and_pong_carry_version_servers_and_configuration():
    world = World(actors=())
    world.dispatcher.servers = ["http://one"]
    world.dispatcher.set_version(4)
    (_, welcome) = world.say("a", Hello(protocol=PROTOCOL_VERSION, actor_id="a", host="h", pid=1))[0]
    assert (welcome.run_id, welcome.config, welcome.servers, welcome.version) == (
        "run",
        {"model": {}},
        ["http://one"],
        4,
    )
    assert ("a", Pong(version=4, servers=["http://one"])) in world.beat("a")


def test_news_of_weights_does_not_wait_for_a_heartbeat():
    world = World(actors=("a", "b"), groups=1, staleness=0)
    world.dispatcher.set_version(1)
    world.dispatcher.servers = ["http://one"]
    news = Pong(version=1, servers=["http://one"])
    assert world.tick() == [("a", news), ("b", news)]
    assert world.tick() == []


def test_shutdown_reaches_every_actor():
    world = World(actors=("a", "b"))
    assert world.dispatcher.shutdown("over") == [("a", Shutdown(reason="over")), ("b", Shutdown(reason="over"))]


def test_a_wait_is_explained():
    world = World(groups=2, staleness=0)
    world.done("a", world.leases()[0])
    world.tick(2)
    assert world.dispatcher.describe(world.now) == (
        "1 groups delivered, 1 leased to a (last heard 2 s ago), no server has the current weights"
    )
    assert "no actor is connected" in World(actors=()).dispatcher.describe(0.0)
    crowd = World(actors=tuple(f"a{number:02}" for number in range(12)))
    crowd.dispatcher.roster.actors["a07"].seen -= 30
    words = crowd.dispatcher.describe(crowd.now)
    assert "leased to a07 (last heard 30 s ago)" in words and "leased to 4 other actors, heard since" in words
