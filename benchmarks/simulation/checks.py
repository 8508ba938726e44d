"""What must hold after every event. Each check names what it found, in the words of the guarantees."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from protocol.messages import Task
from protocol.trajectory import NO_VERSION, Group, Trajectory

if TYPE_CHECKING:
    from benchmarks.simulation.learner import LearnerProcess
    from benchmarks.simulation.world import World

_UNIT = re.compile(r"\.train(\d+)\.")


class Checks:
    """Reads the insides of the machines, and never goes by what they say of themselves where it can count."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._promised: set[int] = set()
        self._committed: dict[int, tuple[int, ...]] = {}
        self._power_cut = False
        self._checked = -1

    @staticmethod
    def seq(group: Group) -> int:
        return int(_UNIT.search(group.lease_id)[1])

    # ── nothing twice, nothing too old ───────────────────────────────────────

    def batch(self, learner: LearnerProcess, groups: list[Group]) -> None:
        """Groups that the learner is about to train on."""
        scenario, problem = self._world.scenario, self._world.problem
        seqs = [self.seq(group) for group in groups]
        if seqs != sorted(seqs) or len(groups) != scenario.groups:
            problem("error", f"a batch of units {seqs}, not {scenario.groups} in order")
        used = {seq for step in learner.trained for seq in step}
        if twice := sorted(used & {*seqs}) or sorted({seq for seq in seqs if seqs.count(seq) > 1}):
            problem("duplicates", f"units {twice} are trained on again")
        for seq, group in zip(seqs, groups, strict=True):
            with learner.connection.aside():
                task = learner.ledger.unit(seq).task
            if group.task_id != task.task_id or len(group.trajectories) != scenario.group_size:
                problem("error", f"unit {seq} came back as {group.task_id}, {len(group.trajectories)} episodes")
            for trajectory in group.trajectories:
                sampled = trajectory.versions[trajectory.versions != NO_VERSION]
                if sampled.size and sampled.min() < learner.version - scenario.staleness:
                    text = f"unit {seq} has tokens of version {sampled.min()} in an update of version {learner.version}"
                    problem("over_stale", text)

    def committed(self, learner: LearnerProcess) -> None:
        self._committed[learner.version] = learner.trained[-1]

    def evaluation(self, tasks: list[Task], episodes: list[Trajectory], version: int) -> None:
        for task, episode in zip(tasks, episodes, strict=True):
            if episode.facts["task_id"] != task.task_id or NO_VERSION < episode.oldest_version < version:
                self._world.problem("error", f"evaluation of {task.task_id} by version {version}: {episode.facts}")

    # ── nothing lost ─────────────────────────────────────────────────────────

    def died(self, learner: LearnerProcess, power_cut: bool) -> None:
        """What the dead process had acknowledged has to be on the disk, but for a power cut."""
        gate = learner.dispatcher._gate
        self._promised, self._power_cut = {*gate.waiting, *gate.taken}, power_cut
        self._checked = -1

    def reopened(self, learner: LearnerProcess) -> None:
        """``learner`` has just opened the ledger that the one before left."""
        states, problem = _states(learner), self._world.problem
        if not self._power_cut:
            lost = [seq for seq in sorted(self._promised) if states.get(seq) not in ("delivered", "consumed")]
            if lost:
                problem("lost", f"units {lost} were acknowledged, but the ledger does not have them")
        for step, seqs in self._committed.items():
            if forgotten := [seq for seq in seqs if states.get(seq) != "consumed"]:
                problem("lost", f"the ledger forgot that step {step} used units {forgotten}")

    def rolled_back(self, version: int) -> None:
        self._committed = {step: seqs for step, seqs in self._committed.items() if step <= version}

    # ── accounts and bounds ──────────────────────────────────────────────────

    @staticmethod
    def open_units(learner: LearnerProcess) -> int:
        """Units issued, but not used up."""
        ledger, gate = learner.ledger, learner.dispatcher._gate
        return len(gate.waiting) + len(gate.taken) + gate.committed + len(ledger._leased) + len(ledger._returned)

    def after_event(self, learner: LearnerProcess) -> None:
        with learner.connection.aside():
            self._accounts(learner)

    def _accounts(self, learner: LearnerProcess) -> None:
        dispatcher, ledger, problem = learner.dispatcher, learner.ledger, self._world.problem
        gate, roster, scenario = dispatcher._gate, dispatcher.roster, self._world.scenario
        if self.open_units(learner) > max(gate.capacity, learner.restored):
            problem("unbounded", f"{self.open_units(learner)} units under way, {gate.capacity} are allowed")
        for actor_id, actor in roster.actors.items():
            episodes = sum(roster.leases[lease_id].lease.group_size for lease_id in actor.leases)
            if actor.episodes != episodes or not 0 <= episodes <= scenario.leases * scenario.group_size:
                problem(
                    "unbounded", f"{actor_id}: {actor.episodes} episodes of credit in use, {episodes} in its leases"
                )
        if len(roster.leases) != sum(len(actor.leases) for actor in roster.actors.values()):
            problem("lost", "a lease without a holder")
        if learner.connection.statements == self._checked:
            return
        counts = ledger.counts()
        self._checked = learner.connection.statements
        if counts["lost"]:
            problem("lost", f"the ledger's audit: {counts}")
        if counts["leased"] != roster.training:
            problem("lost", f"{counts['leased']} units leased in the ledger, {roster.training} held by actors")
        if ledger.delivered().keys() != {*gate.waiting, *gate.taken}:
            problem("lost", f"the ledger has {[*ledger.delivered()]}, the gate {[*gate.waiting]} and {gate.taken}")

    @staticmethod
    def unsettled(learner: LearnerProcess, frontier: int) -> list[int]:
        """Units issued before ``frontier`` that are neither used up nor failed too often."""
        states = _states(learner)
        return [seq for seq in range(frontier) if states.get(seq) not in ("consumed", "failed")]


def _states(learner: LearnerProcess) -> dict[int, str]:
    """By seq, as they are in the file."""
    return dict(learner.connection.real.execute("SELECT seq, state FROM units"))
