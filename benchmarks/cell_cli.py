"""The command line that all benchmarks made of cells share."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell, begun, finished, play
from configs.load import ConfigError

#: Set for each cell by the benchmark itself, or by options of its own.
_RESERVED = ("run.seed", "run.dir", "run.resume", "run.max_minutes", "env.path", "env.train", "env.eval", "baselines")


def parser(module: str, doc: str, folder: str, seeds: int = 3) -> argparse.ArgumentParser:
    """Options of every benchmark: seeds, folder, --quick, --dry-run, and dotted overrides as ``run.py`` takes them."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seed", type=_natural, action="append", metavar="N", help="run this seed only; may be repeated")
    made.add_argument("--seeds", type=_positive, default=seeds, metavar="K", help=f"seeds 0 to K − 1 (default {seeds})")
    made.add_argument("--dir", type=Path, default=Path(folder), help=f"run folders go here (default {folder})")
    made.add_argument(
        "--quick", action="store_true", help="few and small steps of one seed, in DIR/quick: to see it work"
    )
    made.add_argument("--dry-run", action="store_true", help="show the cells, their state and commands; run nothing")
    made.add_argument("--minutes", type=_minutes, default=90.0, help="longest time of a cell (default 90)")
    made.add_argument("overrides", nargs="*", metavar="section.field=value", help="options of run.py, for all cells")
    return made


def seeds_of(args: argparse.Namespace) -> list[int]:
    """Seeds of the whole table: ``--seeds`` of them, and those asked for by name."""
    return sorted({*range(1 if args.quick else args.seeds), *(args.seed or ())})


def chosen(cell: Cell, args: argparse.Namespace) -> bool:
    return not args.seed or cell.seed in args.seed


def folder_of(args: argparse.Namespace) -> Path:
    return args.dir / "quick" if args.quick else args.dir


def check_overrides(overrides: list[str], arms: Iterable[Iterable[str]]) -> None:
    """Raises ``ConfigError`` for options that the benchmark itself decides, or in which its ``arms`` differ."""
    own = {word.partition("=")[0] for arm in arms for word in arm}
    for override in overrides:
        name = override.partition("=")[0]
        if any(key == name or key.startswith(f"{name}.") for key in (*_RESERVED, *own)):
            raise ConfigError(f"{name} is set by the benchmark itself: --dry-run shows where, --help its options")


def plan_arms(args: argparse.Namespace, arms: dict[str, tuple[str, ...]], *common: str) -> list[Cell]:
    """A cell for each seed and arm: ``common`` options, those of the command line, then the arm's own."""
    check_overrides(args.overrides, arms.values())
    options = (*common, *args.overrides)
    return [
        Cell.of(arm, seed, folder_of(args), (*options, *own)) for seed in seeds_of(args) for arm, own in arms.items()
    ]


def run_arms(
    args: argparse.Namespace, cells: list[Cell], report: Callable[[list[tuple[Cell, dict[str, Any]]]], dict[str, Any]]
) -> int:
    """Run the cells that were asked for, or show them; 1 where one failed.

    report: gets every finished cell of the table with its summary, prints what people read, and returns the last line.
    """
    asked = [cell for cell in cells if chosen(cell, args)]
    if args.dry_run:
        show_plan(asked)
        return 0
    failed = {cell.name: problem for cell, problem in play(asked, 60 * args.minutes) if problem}
    found = report([(cell, summary) for cell in cells if (summary := finished(cell))])
    print(json.dumps(found | {"failed": failed}))
    return int(bool(failed))


def show_plan(cells: list[Cell]) -> None:
    """One line a cell: its state, and the command that ``run.py`` is called with."""
    for cell in cells:
        state = "done" if finished(cell) else "begun" if begun(cell) else "to run"
        print(f"{cell.name}: {state}\n    python run.py {shlex.join(cell.overrides)}")


def guarded(main: Callable[[], int]) -> int:
    """Exit code of ``main``: 2 with one line for a wrong option, 130 for Ctrl-C, after the running cell has saved."""
    try:
        return main()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("at least 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("more than 0")
    return value
