"""Off-policy training: staleness 8 with and without correction, against lock-step.

The same algorithm, batches and budget of episodes in all arms. Actors hold as many groups as the staleness
gate lets be under way, so that tokens really are old when they are trained on; how old is in the table.

    python -m benchmarks.off_policy                    three seeds each
    python -m benchmarks.off_policy --quick            few steps, one seed, to see it work
    python -m benchmarks.off_policy --dry-run          what would be run

The same command goes on where it was stopped. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cell_cli import guarded, parser, plan_arms, run_arms
from benchmarks.cells import Cell, scores

STALENESS = 8
#: What final exact match may differ by from lock-step's with the correction on.
TOLERANCE = 0.03
#: Below this share of the bound, tokens were hardly off-policy, and the comparison says little.
HARDLY = 0.5

COMMON = (
    "run.steps=80",
    "learner.groups=8",  # small batches: many versions, so that 8 of them are a way to go
    "actor.count=2",
    "actor.leases=36",  # (8 + 1) · 8 groups over two actors
    "eval.every=0",
    "eval.final_size=600",
    "checkpoint.keep=1",
    "baselines=[]",
    "env.train=[hotpot,wiki2]",
    "env.eval=[hotpot,wiki2]",
)
ARMS = {
    "lockstep": ("staleness=0",),
    "corrected": (f"staleness={STALENESS}", "algorithm.correction.type=tis"),
    "uncorrected": (f"staleness={STALENESS}", "algorithm.correction.type=none"),
}
QUICK = ("run.steps=12", "learner.groups=4", "learner.group_size=4", "actor.leases=18", "eval.final_size=12")


@dataclass(frozen=True)
class Outcome:
    """A finished cell: final exact match by data set, and how old the tokens were that it trained on."""

    arm: str
    seed: int
    episodes: int
    em: dict[str, float]
    staleness_mean: float
    staleness_max: float

    @classmethod
    def of(cls, cell: Cell, summary: dict[str, Any]) -> Outcome:
        age = summary["staleness"]
        em = scores(summary, cell.config.run.steps)
        return cls(cell.method, cell.seed, summary["episodes"], em, age["mean"], age["max"])

    @property
    def average(self) -> float:
        return statistics.fmean(self.em.values())


def compare(outcomes: list[Outcome]) -> dict[str, Any]:
    """Mean exact match of each arm, and that of the stale arms less lock-step's; None where an arm has no run."""
    arms = {arm: [o for o in outcomes if o.arm == arm] for arm in ARMS}
    em = {arm: statistics.fmean(o.average for o in found) if found else None for arm, found in arms.items()}
    less = {
        f"{arm}_difference": em[arm] - em["lockstep"] if None not in (em[arm], em["lockstep"]) else None
        for arm in ("corrected", "uncorrected")
    }
    within = less["corrected_difference"]
    return {
        "staleness": STALENESS,
        **em,
        **less,
        "within": None if within is None else abs(within) <= TOLERANCE,
        "staleness_mean": {
            arm: statistics.fmean(o.staleness_mean for o in found) for arm, found in arms.items() if found
        },
        "staleness_max": {arm: max(o.staleness_max for o in found) for arm, found in arms.items() if found},
        "cells": [{"arm": o.arm, "seed": o.seed, "episodes": o.episodes, "em": o.em} for o in outcomes],
    }


def plan(args: argparse.Namespace) -> list[Cell]:
    return plan_arms(args, ARMS, *COMMON, *(QUICK if args.quick else ()))


def report(cells: list[tuple[Cell, dict[str, Any]]]) -> dict[str, Any]:
    found = compare([Outcome.of(cell, summary) for cell, summary in cells])
    _show(found)
    return found


def _show(found: dict[str, Any]) -> None:
    table = Table(title=f"Final exact match, mean of the trained sets; the bound of the stale arms is {STALENESS}")
    for name in ("arm", "runs", "exact match", "less lock-step", "staleness: mean", "max"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for arm, age in found["staleness_mean"].items():
        less = found.get(f"{arm}_difference")
        runs = sum(cell["arm"] == arm for cell in found["cells"])
        change = "–" if less is None else f"{less:+.3f}"
        table.add_row(arm, str(runs), f"{found[arm]:.3f}", change, f"{age:.1f}", f"{found['staleness_max'][arm]:g}")
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    if found["within"] is not None:
        print(f"with the correction: {'within' if found['within'] else 'NOT within'} {TOLERANCE} of lock-step")
    for arm in ("corrected", "uncorrected"):
        if (age := found["staleness_mean"].get(arm)) is not None and age < HARDLY * STALENESS:
            print(f"{arm}: tokens were {age:.1f} versions old on average, hardly off-policy for a bound of {STALENESS}")


def main(argv: list[str] | None = None) -> int:
    """0; 1 where a cell failed; 2 for a wrong option; 130 where stopped by a person."""
    args = parser("benchmarks.off_policy", __doc__, "runs/off-policy").parse_intermixed_args(argv)
    return guarded(lambda: run_arms(args, plan(args), report))


if __name__ == "__main__":
    sys.exit(main())
