"""Process rewards on a sparse task: episodes to a given exact match on four-hop questions, with and without.

Both arms see the same environment, which pays for each passage needed when a search first brings it up;
they differ in the weight of that pay alone. Nothing else differs, and the outcome is worth 1 in both.

    python -m benchmarks.process_rewards --em 0.3      three seeds each
    python -m benchmarks.process_rewards --quick       few steps, one seed, to see it work
    python -m benchmarks.process_rewards --dry-run     what would be run

The same command goes on where it was stopped; another --em reads the same runs. The last line printed is
one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cell_cli import guarded, parser, plan_arms, run_arms
from benchmarks.cells import Cell
from benchmarks.long_chains import DATASET

COMMON = (
    "run.steps=16",
    "learner.groups=4",  # small batches, to see after how many episodes it turns
    "learner.group_size=4",
    "eval.every=1",
    "eval.size=100",
    "eval.final_size=200",
    "checkpoint.keep=1",
    "baselines=[]",
    "env.path=benchmarks.long_chains:LongChains",
    f"env.train=[{DATASET}]",
    f"env.eval=[{DATASET}]",
    "env.args.hops=4",
    "env.args.process_reward=0.5",  # of all four passages together; the outcome is 1
    "algorithm.advantage.type=turn_level",  # which is GRPO where only outcomes count
)
ARMS = {
    "with": ("algorithm.process_reward_weight=1.0",),
    "without": ("algorithm.process_reward_weight=0.0",),
}
QUICK = (
    "run.steps=6",
    "eval.every=2",
    "eval.size=12",
    "eval.final_size=12",
)


@dataclass(frozen=True)
class Curve:
    """Held-out exact match of a finished cell along its training: (episodes, em) pairs, from 0 episodes on."""

    arm: str
    seed: int
    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, cell: Cell, summary: dict) -> Curve:
        points = {cell.episodes_at(row["version"]): row["em"] for row in summary["eval"]}
        return cls(cell.method, cell.seed, tuple(sorted(points.items())))

    def episodes_to(self, em: float) -> int | None:
        """Episodes trained on at the first evaluation that reached ``em``; None if none did."""
        return next((episodes for episodes, value in self.points if value >= em), None)

    @property
    def budget(self) -> int:
        return self.points[-1][0]


def compare(curves: list[Curve], em: float) -> dict:
    """``ratio``: mean episodes with process rewards / without, to reach ``em``.

    A run without them that never got there counts with its whole budget: ``at_most`` then says
    that the true ratio is lower still. None where a run with them never got there, where an
    arm has no run, or where the policy was there from the start.
    """
    arms = {arm: [c for c in curves if c.arm == arm] for arm in ARMS}
    reached = {arm: [c.episodes_to(em) for c in found] for arm, found in arms.items()}
    ratio, at_most = None, None in reached["without"]
    usable = all(arms.values()) and None not in reached["with"] and 0 not in reached["without"]
    if usable:
        spent = [c.budget if r is None else r for c, r in zip(arms["without"], reached["without"], strict=True)]
        ratio = statistics.fmean(reached["with"]) / statistics.fmean(spent)
    return {
        "em": em,
        **{f"episodes_{arm}": found for arm, found in reached.items()},
        "ratio": ratio,
        "at_most": usable and at_most,
        "em_start": _mean(c.points[0][1] for c in curves),
        **{f"em_final_{arm}": _mean(c.points[-1][1] for c in found) for arm, found in arms.items()},
    }


def plan(args: argparse.Namespace) -> list[Cell]:
    return plan_arms(args, ARMS, *COMMON, *(QUICK if args.quick else ()))


def report(cells: list[tuple[Cell, dict[str, Any]]], em: float) -> dict[str, Any]:
    curves = [Curve.of(cell, summary) for cell, summary in cells]
    _show(curves, em)
    return compare(curves, em)


def _show(curves: list[Curve], em: float) -> None:
    """The curves, and episodes to tenths of exact match on the way: a single target may be a lucky choice."""
    targets = sorted({em, *(n / 10 for n in range(1, 10))})
    table = Table(title=f"Four hops: held-out exact match, and episodes to reach it ({em:g} was asked for)")
    for name in ("process rewards", "seed", "start", "end", *(f"to {target:g}" for target in targets)):
        table.add_column(name, justify="right")
    for curve in sorted(curves, key=lambda c: (c.arm, c.seed)):
        to = [curve.episodes_to(target) for target in targets]
        ends = (f"{curve.points[0][1]:.3f}", f"{curve.points[-1][1]:.3f}")
        table.add_row(curve.arm, str(curve.seed), *ends, *("–" if n is None else f"{n:,}" for n in to))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _mean(values) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def main(argv: list[str] | None = None) -> int:
    """0; 1 where a cell failed; 2 for a wrong option; 130 where stopped by a person."""
    made = parser("benchmarks.process_rewards", __doc__, "runs/process-rewards")
    made.add_argument("--em", type=_share, default=0.3, help="exact match to reach (default 0.3)")
    args = made.parse_intermixed_args(argv)
    return guarded(lambda: run_arms(args, plan(args), partial(report, em=args.em)))


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("above 0, at most 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
