"""The ledger and the dispatcher as a run grows to a million tasks: ``python -m benchmarks.dispatch``.

What one small group costs from its lease to its consumption (a step is 32 groups), with the ledger
on disk, at the start and after more and more units have been used up. Units in between are written
in bulk, as rows of the state that a consumed unit has. Then the process of a resumed run: tasks,
ledger, dispatcher. Compared with itself: the windows are measured in turn on ledgers of all sizes.
CPU time counts, not the clock; fsyncs are left out of it. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.transport.samples import trajectory
from configs.schema import Config
from learner.gateway.dispatch import Dispatcher
from learner.gateway.ledger import Ledger
from protocol import messages as wire
from protocol.codec import decode, encode_group
from protocol.messages import Task
from protocol.trajectory import Group, Trajectory

BATCH, SIZE, LEASES = 32, 2, 64
_CONFIG = Config.model_validate(
    {
        "run": {"steps": 1_000_000_000},
        "learner": {"groups": BATCH, "mini_batches": 1, "group_size": SIZE},
        "staleness": 2,
        "actor": {"leases": LEASES},
    }
)


def make_tasks(count: int) -> list[Task]:
    return [Task(task_id=f"q{i}", dataset="load", payload={"id": f"q{i}", "question": "Who?"}) for i in range(count)]


class Run:
    """A learner's books with ``grown`` consumed units, and one actor that finishes what it is given."""

    def __init__(self, path: Path, tasks: list[Task], grown: int) -> None:
        self.path, self.tasks = path, tasks
        self.step = 1
        self._grow(grown)
        self.open()

    def _grow(self, units: int) -> None:
        ledger = Ledger(self.path, self.tasks, 0)
        with ledger._transaction():
            rows = ((seq, "consumed", 0, 1 + seq // BATCH) for seq in range(units))
            ledger._db.executemany("INSERT INTO units (seq, state, oldest, step) VALUES (?, ?, ?, ?)", rows)
        ledger.close()
        self.step += units // BATCH

    def open(self) -> None:
        """As a learner that starts: tasks of the run, ledger, dispatcher."""
        self.ledger = Ledger(self.path, self.tasks, 0)
        self.dispatcher = Dispatcher(_CONFIG, self.ledger, "load", {})
        self.dispatcher.set_version(self.step)
        self._now = 0.0
        self._leases: list[wire.Lease] = []
        self._say(wire.Hello(protocol=wire.PROTOCOL_VERSION, actor_id="a", host="load", pid=1))
        self._say(wire.Heartbeat(actor_id="a", capacity=LEASES, held=[], oldest={}))

    def _say(self, message: wire.Message, group: Group | None = None) -> None:
        self._now += 0.001
        for _, answer in self.dispatcher.on_message("a", message, group, self._now):
            if isinstance(answer, wire.Leases):
                self._leases += answer.leases

    def one_step(self, members: dict[str, list[Trajectory]]) -> None:
        """A batch of groups, finished, delivered, taken, consumed."""
        for _ in range(BATCH):
            lease = self._leases.pop(0)
            made = [self._of(member, lease.task) for member in members["episodes"]]
            message, group = decode(encode_group("a", Group(lease.lease_id, lease.task.task_id, made)))
            self._say(message, group)
        assert len(self.dispatcher.take(BATCH)) == BATCH
        self.step += 1
        self.dispatcher.commit(self.step)
        self.dispatcher.set_version(self.step)
        while self.ledger.checkpointed(self.step):
            pass
        self._say(wire.Heartbeat(actor_id="a", capacity=LEASES, held=[lease.lease_id for lease in self._leases]))

    def _of(self, member: Trajectory, task: Task) -> Trajectory:
        facts = {**member.facts, "task_id": task.task_id, "dataset": task.dataset}
        versions = member.versions.copy()
        versions[versions >= 0] = self.dispatcher.version
        fields = {name: getattr(member, name) for name in ("token_ids", "action_mask", "behaviour_logprobs", "rewards")}
        return Trajectory(**fields, versions=versions, turns=member.turns, facts=facts)


def measure(run: Run, steps: int, members: dict[str, list[Trajectory]]) -> float:
    """CPU of one group, µs."""
    before = time.process_time()
    for _ in range(steps):
        run.one_step(members)
    return 1e6 * (time.process_time() - before) / (steps * BATCH)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dispatch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under a minute")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="tasks of an epoch (default 1000000)")
    parser.add_argument("--rounds", type=int, default=10, help="how often each size is measured (default 10)")
    args = parser.parse_args(argv)
    rounds, steps = (3, 4) if args.quick else (args.rounds, 10)
    tasks = make_tasks(args.tasks)
    members = {"episodes": [trajectory(seed, tokens=100) for seed in range(SIZE)]}
    sizes = [0, args.tasks // 10, args.tasks // 2, args.tasks]
    with tempfile.TemporaryDirectory(prefix="rollway-dispatch-") as folder:
        runs = {size: Run(Path(folder, f"{size}.sqlite"), tasks, size) for size in sizes}
        cost: dict[int, list[float]] = {size: [] for size in sizes}
        for number in range(rounds + 1):  # the first is a warm-up
            for size, run in runs.items():
                taken = measure(run, steps, members)
                if number:
                    cost[size].append(taken)
        largest = runs[args.tasks]
        largest.ledger.close()
        megabytes = largest.path.stat().st_size / 2**20
        before = time.process_time()
        largest.tasks = make_tasks(args.tasks)
        made = time.process_time() - before
        largest.open()
        resume = time.process_time() - before - made
        audit = largest.ledger.audit()
        for run in runs.values():
            run.ledger.close()
    table = Table(title=f"One group of {SIZE} × 100 tokens, {args.tasks:,} tasks an epoch")
    table.add_column("units used up before", justify="right")
    table.add_column("µs of CPU a group", justify="right")
    for size in sizes:
        table.add_row(f"{size:,}", f"{median(cost[size]):.0f}")
    Console(width=None if sys.stdout.isatty() else 80).print(table)
    print(
        f"a resumed run, a ledger of {megabytes:.0f} MiB: ledger and dispatcher are ready after {resume:.2f} s of CPU, "
        f"beside {made:.2f} s to make the tasks; {audit}"
    )
    growth = median(b / a for a, b in zip(cost[0], cost[args.tasks], strict=True))
    result = {"cost_growth": round(growth, 3), "resume_s": round(made + resume, 2), "ledger_s": round(resume, 2)}
    print(json.dumps(result | {"us_per_group": round(median(cost[0]))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
