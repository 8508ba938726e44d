"""Thousands of simulated runs under seeded faults; prints what went wrong, and how to see it again.

    python -m benchmarks.simulate --schedules 10000 --workers 4
    python -m benchmarks.simulate --seed 17 --trace

The machines under test are those of production: dispatcher, gate, ledger (on a real SQLite
file), the actors' link, wire thread, pool and episodes. Network, disk, servers, clocks and
the trainer's calls are simulated; see ``benchmarks/simulation``.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from benchmarks.simulation.world import KINDS, Outcome, run_schedule

#: Failing seeds that are printed in full.
_SHOWN = 20


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if any schedule failed."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.trace and options.seed is None:
        parser.error("--trace goes with --seed")
    if options.seed is not None:
        return _replay(options.seed, options.trace)
    began = time.monotonic()
    seeds = range(options.first, options.first + options.schedules)
    failures, steps, virtual_s, recovery_s, counts = Counter(), 0, 0.0, 0.0, Counter()
    for number, outcome in enumerate(_play(seeds, options.workers), 1):
        counts.update(outcome.counts)
        steps += outcome.steps
        virtual_s += outcome.virtual_s
        recovery_s = max(recovery_s, outcome.recovery_s)
        if outcome.problem:
            _complain(outcome, sum(failures.values()))
            failures[outcome.problem[0]] += 1
        if number % 1000 == 0:
            print(f"{number} schedules, {sum(failures.values())} failed, {time.monotonic() - began:.0f} s", flush=True)
    _print_table(counts)
    print(
        f"{options.schedules} schedules, {steps} training steps, {virtual_s / 3600:.1f} simulated hours, "
        f"longest recovery {recovery_s:.1f} s, {sum(failures.values())} schedules failed"
    )
    found = {kind: failures[kind] for kind in KINDS}
    print(json.dumps({"schedules": options.schedules, **found, "wall_s": round(time.monotonic() - began, 1)}))
    return int(bool(failures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=_positive, default=1000, help="how many seeds to play (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--workers", type=_positive, default=1, help="processes to share the seeds (default 1)")
    parser.add_argument("--seed", type=int, help="play this one seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _play(seeds: Iterable[int], workers: int) -> Iterator[Outcome]:
    if workers == 1:
        yield from map(_play_one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_play_one, seeds, chunksize=20)


def _play_one(seed: int) -> Outcome:
    """Garbage is collected once a schedule, which makes it a fifth faster."""
    gc.disable()
    try:
        return run_schedule(seed)
    finally:
        gc.enable()
        gc.collect(1)


def _replay(seed: int, trace: bool) -> int:
    outcome = run_schedule(seed, trace)
    print(*outcome.trace, sep="\n")
    print(f"seed {seed}: {outcome.steps} training steps in {outcome.virtual_s:.1f} simulated seconds")
    if outcome.problem:
        _complain(outcome, 0)
    return int(outcome.problem is not None)


def _complain(outcome: Outcome, before: int) -> None:
    kind, text = outcome.problem
    if before < _SHOWN:
        print(f"seed {outcome.seed}: {kind}: {text}")
        print(f"    see it again: python -m benchmarks.simulate --seed {outcome.seed} --trace", flush=True)
    elif before == _SHOWN:
        print("further failing seeds are only counted", flush=True)


def _print_table(counts: Counter[str]) -> None:
    table = Table(title="What happened", title_justify="left")
    table.add_column("event")
    table.add_column("times", justify="right")
    for name, times in sorted(counts.items()):
        table.add_row(name, f"{times:,}")
    Console(width=60).print(table)


if __name__ == "__main__":
    sys.exit(main())
