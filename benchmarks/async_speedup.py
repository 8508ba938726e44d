"""Asynchronous against lock-step, with tools whose latency has a long tail (median 0.3 s, p99 5 s; slept).

Both arms are the same code, policy, questions, latencies and number of trained episodes; they differ in
``staleness`` and in how many groups the actors hold. What is compared is the learner's clock from the first batch it
waits for to the last step's push; start-up and the evaluations before and after do not count.

    python -m benchmarks.async_speedup                 about 20 minutes on two cores
    python -m benchmarks.async_speedup --quick         few steps, to see it work
    python -m benchmarks.async_speedup --dry-run       what would be run

The same command goes on where it was stopped. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cell_cli import guarded, parser, plan_arms, run_arms
from benchmarks.cells import Cell, scores

#: Wall-clock of lock-step over that of the asynchronous arm.
TARGET = 3.5
#: Of the trained sets' exact match while training, a mean of this many steps: one step's is noise.
WINDOW = 5

COMMON = (
    "run.steps=60",
    "learner.groups=8",
    "eval.every=0",
    "eval.final_size=200",
    "checkpoint.keep=1",
    "baselines=[]",
    "env.path=benchmarks.slow_tools:SlowTools",
    "env.train=[hotpot,wiki2]",
    "env.eval=[hotpot,wiki2]",
    "actor.count=2",
)
ARMS = {
    "lockstep": ("staleness=0", "actor.leases=4"),  # all groups of a batch at once
    "async": ("staleness=4", "actor.leases=20"),  # all that the staleness gate lets be under way
}
QUICK = ("run.steps=4", "learner.groups=4", "learner.group_size=4", "eval.final_size=4")


@dataclass(frozen=True)
class Outcome:
    """A finished cell. clock: seconds at the end of each step; em: of the episodes of each step, mean of the sets;
    busy: the learner's share of the time; final: held-out exact match, mean of the sets."""

    arm: str
    seed: int
    clock: tuple[float, ...]
    em: tuple[float, ...]
    busy: float
    final: float
    staleness: float

    @classmethod
    def of(cls, cell: Cell, summary: dict[str, Any]) -> Outcome:
        lines = (cell.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [record for record in map(json.loads, lines) if "eval" not in record]
        spent = [step["seconds"] for step in steps]
        return cls(
            cell.method,
            cell.seed,
            tuple(accumulate(s["step"] for s in spent)),
            tuple(statistics.fmean(step["em"].values()) for step in steps),
            sum(s["update"] for s in spent) / sum(s["step"] for s in spent),
            statistics.fmean(scores(summary, cell.config.run.steps).values()),
            summary["staleness"]["mean"],
        )

    @property
    def smooth(self) -> list[float]:
        """Exact match of the last ``WINDOW`` steps, from the first step that has so many behind it."""
        return [statistics.fmean(self.em[end - WINDOW : end]) for end in range(WINDOW, len(self.em) + 1)]

    def seconds_to(self, em: float) -> float | None:
        """Seconds until the smooth exact match reached ``em``; None if it never did."""
        return next((s for s, value in zip(self.clock[WINDOW - 1 :], self.smooth, strict=True) if value >= em), None)


def compare(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Ratios of lock-step's seconds to the asynchronous arm's: to the same number of episodes, and to the exact match
    that is 0.9 of the lower of the two best (it must be one that both reached). None where an arm has no run."""
    arms = {arm: [o for o in outcomes if o.arm == arm] for arm in ARMS}
    found: dict[str, Any] = {"speedup": None, "speedup_to_em": None, "em_target": None}
    for arm, runs in arms.items():
        for key in ("final", "busy", "staleness"):
            name = f"{'em' if key == 'final' else key}_{arm}"
            found[name] = statistics.fmean(getattr(o, key) for o in runs) if runs else None
        found[f"seconds_{arm}"] = statistics.fmean(o.clock[-1] for o in runs) if runs else None
    if not all(arms.values()):
        return found
    found["speedup"] = found["seconds_lockstep"] / found["seconds_async"]
    if all(o.smooth for o in outcomes):
        found["em_target"] = target = 0.9 * min(max(o.smooth) for o in outcomes)
        to = {arm: statistics.fmean(o.seconds_to(target) for o in runs) for arm, runs in arms.items()}
        found["speedup_to_em"] = to["lockstep"] / to["async"]
    return found


def plan(args: argparse.Namespace) -> list[Cell]:
    return plan_arms(args, ARMS, *COMMON, *(QUICK if args.quick else ()))


def report(cells: list[tuple[Cell, dict[str, Any]]]) -> dict[str, Any]:
    found = compare([Outcome.of(cell, summary) for cell, summary in cells])
    _show(found)
    return found | {"target": TARGET}


def _show(found: dict[str, Any]) -> None:
    table = Table(title="The same episodes, lock-step and asynchronous")
    for name in ("", "seconds", "learner busy", "staleness", "held-out exact match"):
        table.add_column(name, justify="right" if name else "left")
    for arm in ARMS:
        if found[f"seconds_{arm}"] is not None:
            figures = (
                f"{found[f'{key}_{arm}']:.{n}f}"
                for key, n in (("seconds", 1), ("busy", 2), ("staleness", 1), ("em", 3))
            )
            table.add_row(arm, *figures)
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    if found["speedup"] is not None:
        print(f"to the same number of episodes: {found['speedup']:.2f}× (target {TARGET}×)")
    if found["speedup_to_em"] is not None:
        print(f"to an exact match of {found['em_target']:.2f} while training: {found['speedup_to_em']:.2f}×")


def main(argv: list[str] | None = None) -> int:
    """0; 1 where a cell failed; 2 for a wrong option; 130 where stopped by a person."""
    args = parser("benchmarks.async_speedup", __doc__, "runs/async-speedup", seeds=1).parse_intermixed_args(argv)
    return guarded(lambda: run_arms(args, plan(args), report))


if __name__ == "__main__":
    sys.exit(main())
