"""``python -m benchmarks.chaos --kills 20 --seed 0``: does a run survive, and is it the same run?

Two real runs of ``run.py`` with the same options and seed: one is left in peace, in the other
actors, server and learner are killed (kill -9), stopped and continued, and garbage is thrown at the
gateway. The last line printed is one JSON object; DIR/chaos.json has every blow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.chaos.audit import audit, completed, final_em
from benchmarks.chaos.schedule import ROLES, draw
from benchmarks.chaos.storm import Storm, Wound
from benchmarks.local_run import LocalRun
from configs.load import ConfigError, load_config
from protocol.limits import Limits

#: Options of both runs, beside those of configs/quickstart.yaml.
COMMON = ["checkpoint.every=2", "eval.every=0", "baselines=[]", "server.silent_s=5", "weights.timeout_s=30"]
QUICK = ["learner.groups=8", "eval.final_size=20"]


def main(argv: list[str] | None = None) -> int:
    args = _arguments().parse_intermixed_args(argv)
    steps = args.steps or (24 if args.quick else 80)
    kills = args.kills if args.kills is not None else 3 if args.quick else 20
    overrides = [*COMMON, *(QUICK if args.quick else ()), f"run.steps={steps}", *args.overrides]
    try:
        config = load_config(overrides=overrides)
        blows = draw(kills, steps, args.seed)
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"python run.py {' '.join(overrides)}")
    if args.dry_run:
        print("\n".join(map(str, blows)))
        return 0
    limit = time.monotonic() + 60 * args.minutes
    peaceful = args.undisturbed
    if peaceful is None and not args.quick:
        peaceful = args.dir / "undisturbed"
        with LocalRun(peaceful, overrides) as run:
            print(f"undisturbed run, exit code {run.await_end(limit - time.monotonic())}", flush=True)
    folder = args.dir / "disturbed"
    limits = Limits(tokens=config.learner.group_size * config.model.max_tokens)
    began = time.monotonic()
    with LocalRun(folder, overrides) as run:
        storm = Storm(
            run, limits, args.seed, say=lambda line: print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)
        )
        storm.rage(blows, limit)
        code = run.await_end(limit - time.monotonic())
    if code != 0:
        print(f"the run ended with {code}: {run.last_words()}", file=sys.stderr)
    if not (folder / "ledger.sqlite").exists():
        return 1
    result = _result(storm.wounds, folder, peaceful, steps, config.learner.groups)
    (args.dir / "chaos.json").write_text(
        json.dumps({"result": result, "blows": [wound.as_record() for wound in storm.wounds]}, indent=2) + "\n"
    )
    Console(width=None if sys.stdout.isatty() else 100).print(_table(storm.wounds))
    print(json.dumps(result))
    if result["kills"] < kills:
        print(f"the run was over after {result['kills']} of {kills} kills: give it more --steps", file=sys.stderr)
        return 1
    sound = result["completed"] and not (result["lost"] or result["duplicates"] or result["unrecovered"])
    return 0 if sound and code == 0 else 1


def _arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__.splitlines()[0])
    made.add_argument("--kills", type=int, metavar="N", help="kill -9 in all (default 20)")
    made.add_argument("--steps", type=int, metavar="N", help="training steps of the run (default 80)")
    made.add_argument("--seed", type=int, default=0, help="of the schedule (default 0)")
    made.add_argument("--dir", type=Path, default=Path("runs/chaos"), help="run folders go here (default runs/chaos)")
    made.add_argument("--undisturbed", type=Path, metavar="DIR", help="compare with this run folder; make none")
    made.add_argument("--minutes", type=float, default=60.0, help="longest time of all (default 60)")
    made.add_argument("--quick", action="store_true", help="three kills in 24 small steps, nothing to compare with")
    made.add_argument(
        "--dry-run", action="store_true", help="show the options of the run and the schedule; run nothing"
    )
    made.add_argument("overrides", nargs="*", metavar="section.field=value", help="options of run.py, for both runs")
    return made


def _result(wounds: list[Wound], folder: Path, peaceful: Path | None, steps: int, groups: int) -> dict[str, Any]:
    """``recovery_s``: the slowest by role, in seconds; times of what was not made good are in ``unrecovered``."""
    kills = [wound for wound in wounds if wound.blow.kind == "kill"]
    times = {role: _times(kills, role) for role in ROLES}
    return {
        "kills": len(kills),
        **audit(folder, steps, groups),
        "completed": completed(folder, steps),
        "em": final_em(folder),
        "em_undisturbed": final_em(peaceful) if peaceful else None,
        "recovery_s": {role: max(found, default=None) for role, found in times.items()},
        "recovery_median_s": {
            role: round(statistics.median(found), 1) if found else None for role, found in times.items()
        },
        "stops": sum(wound.blow.kind == "stop" for wound in wounds),
        "garbage_frames": sum(wound.frames for wound in wounds),
        "unrecovered": sum(wound.blow.kind != "garbage" and wound.recovered_s is None for wound in wounds),
    }


def _times(wounds: list[Wound], role: str) -> list[float]:
    return [w.recovered_s for w in wounds if w.blow.role == role and w.recovered_s is not None]


def _table(wounds: list[Wound]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="seconds until made good", title_justify="left")
    for title in ("", "blows", "median", "slowest", "never"):
        table.add_column(title, justify="left" if not title else "right")
    for kind in ("kill", "stop"):
        for role in ROLES:
            hit = [wound for wound in wounds if (wound.blow.kind, wound.blow.role) == (kind, role)]
            found = _times(hit, role)
            figures = [f"{statistics.median(found):.1f}", f"{max(found):.1f}"] if found else ["–", "–"]
            table.add_row(f"{kind} {role}", str(len(hit)), *figures, str(len(hit) - len(found)))
    return table


if __name__ == "__main__":
    sys.exit(main())
