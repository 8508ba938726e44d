"""Train every row of the paper's Tables 3 and 4 on the built-in world, and write the tables.

    python -m benchmarks.paper_table                        all rows, three seeds each
    python -m benchmarks.paper_table --only grpo --seed 1   one cell
    python -m benchmarks.paper_table --quick                few steps, one seed, to see it work
    python -m benchmarks.paper_table --dry-run              what would be run

The same command goes on where it was stopped. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.cell_cli import check_overrides, chosen, folder_of, guarded, parser, seeds_of, show_plan
from benchmarks.cells import Cell, play
from benchmarks.paper_table.markdown import page
from benchmarks.paper_table.methods import COMMON, METHODS, QUICK
from benchmarks.paper_table.results import collect
from learner.run.durable import replace_text


def plan(args: argparse.Namespace) -> list[Cell]:
    """All cells of the tables, seed by seed: wherever it is stopped, whole tables of fewer seeds are there."""
    check_overrides(args.overrides, (method.overrides for method in METHODS.values() if method.trained))
    common = (*COMMON, *(QUICK if args.quick else ()), *args.overrides)
    return [
        Cell.of(name, seed, folder_of(args), (*common, *method.overrides))
        for seed in seeds_of(args)
        for name, method in METHODS.items()
    ]


def run(args: argparse.Namespace) -> int:
    cells = plan(args)
    asked = [cell for cell in cells if chosen(cell, args) and (not args.only or cell.method in args.only)]
    if args.dry_run:
        show_plan(asked)
        return 0
    out = args.out or folder_of(args) / "tables.md"
    failed: dict[str, str] = {}
    for cell, problem in play(asked, 60 * args.minutes):
        if problem:
            failed[cell.name] = problem
        write(out, cells, failed)
    print(write(out, cells, failed))
    print(f"written to {out}" + (f"; {len(failed)} cells failed, see above" if failed else ""))
    results = collect(cells)
    print(json.dumps({"cells": [result.as_dict() for result in results], "failed": failed}))
    return int(bool(failed))


def write(out: Path, cells: list[Cell], failed: dict[str, str]) -> str:
    """The page of everything that is done by now, also from earlier calls."""
    text = page(cells, collect(cells), failed)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, text)
    return text


def main(argv: list[str] | None = None) -> int:
    """0; 1 where a cell failed; 2 for a wrong option; 130 where stopped by a person."""
    made = parser("benchmarks.paper_table", __doc__, "runs/paper-table")
    made.add_argument("--only", action="append", choices=METHODS, metavar="METHOD", help=f"one of {', '.join(METHODS)}")
    made.add_argument("--out", type=Path, help="where the tables go (default DIR/tables.md)")
    args = made.parse_intermixed_args(argv)
    return guarded(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
