"""Does memory grow? A long ``local`` run at few steps a minute: ``python -m benchmarks.soak --minutes 120``.

Every ten seconds the anonymous memory of each role's processes is written to DIR/memory.csv: heap, stacks
and shared memory, all that can leak. Pages of files are left out: they are the system's to keep or drop, and
in PSS they go up and down with other programs that share them. At the end DIR/memory.svg has the curve, and the last
line printed is one JSON object. Growth is the median of the last tenth of the time after warm-up over that of
the first tenth, less one.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.local_run import LocalRun
from configs.load import ConfigError, load_config

SAMPLE_S = 10.0
#: The part of the time that is warm-up, and at most so many minutes of it.
WARM_UP, WARM_UP_MINUTES = 0.25, 20.0
#: Growth up to here is flat.
FLAT = 0.05
#: Time for the start and the evaluations before and after, minutes.
AROUND_MINUTES = 10.0
_COLOURS = ("#2563eb", "#dc2626", "#16a34a", "#9333ea", "#ea580c", "#0891b2")

#: role → megabytes
Sample = dict[str, float]


def main(argv: list[str] | None = None) -> int:
    args = _arguments().parse_intermixed_args(argv)
    overrides = [
        "env.path=benchmarks.patient_env:PatientMultiHop", f"env.args.pause_s={args.pause}", "learner.groups=4",
        "actor.leases=4", "run.steps=1000000", f"run.max_minutes={args.minutes}", "baselines=[]", "eval.every=50",
        "eval.size=10", "eval.final_size=10", "server.kv_cache_gib=0.1", *args.overrides,
    ]  # fmt: skip
    try:
        load_config(overrides=overrides)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"python run.py {' '.join(overrides)}")
    if args.dry_run:
        return 0
    args.dir.mkdir(parents=True, exist_ok=True)
    with LocalRun(args.dir / "run", overrides) as run:
        times, samples, steps = _record(run, args.dir / "memory.csv", args.minutes)
        code = run.await_end(60 * AROUND_MINUTES)
        if code:
            print(f"the run ended with {code}: {run.last_words()}", file=sys.stderr)
    growth = {role: round(grown(times, series), 4) for role, series in by_role(samples).items()}
    (args.dir / "memory.svg").write_text(draw(times, by_role(samples)))
    Console(width=None if sys.stdout.isatty() else 100).print(_table(times, by_role(samples), growth))
    minutes = round(times[-1] / 60, 1) if times else 0.0
    flat = bool(growth) and max(growth.values()) <= FLAT
    print(json.dumps({"minutes": minutes, "steps": steps, "growth": growth, "flat": flat}))
    return 0 if flat and code == 0 else 1


def _arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    made.add_argument("--minutes", type=float, default=120.0, help="of training (default 120)")
    made.add_argument("--pause", type=float, default=10.0, help="seconds that each turn takes longer (default 10)")
    made.add_argument("--dir", type=Path, default=Path("runs/soak"), help="everything goes here (default runs/soak)")
    made.add_argument("--dry-run", action="store_true", help="show the options of the run; run nothing")
    made.add_argument("overrides", nargs="*", metavar="section.field=value", help="options of run.py")
    return made


# ── sampling ─────────────────────────────────────────────────────────────────


def _record(run: LocalRun, path: Path, minutes: float) -> tuple[list[float], list[Sample], int]:
    """(seconds since training began, memory at that time, steps at the end), also written to ``path`` as it goes."""
    if not run.await_version(1, 60 * AROUND_MINUTES):
        print("no step was trained", file=sys.stderr)
        return [], [], 0
    times: list[float] = []
    samples: list[Sample] = []
    steps, began = 0, time.monotonic()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        while run.exit_code is None and (now := time.monotonic() - began) < 60 * minutes:
            sample = memory(run)
            if not samples:
                table.writerow(["seconds", *sample])
            times.append(now)
            samples.append(sample)
            table.writerow([round(now, 1), *(round(sample.get(role, 0.0), 2) for role in samples[0])])
            file.flush()
            steps = (run.snapshot().get("run") or {}).get("version", steps)
            time.sleep(SAMPLE_S)
    return times, samples, steps


def memory(run: LocalRun) -> Sample:
    """Anonymous memory in MB by process name: each of the run's processes with its children, and the supervisor."""
    found: Sample = {}
    for role in ("learner", "server", "actor"):
        for name, process in run.processes(role).items():
            with suppress(psutil.NoSuchProcess):
                found[name] = _anonymous(process.pid, *(child.pid for child in process.children(recursive=True)))
    found["supervisor"] = _anonymous(run.pid)
    return found


def _anonymous(*pids: int) -> float:
    """MB in all; a process that has ended counts nothing."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            total += sum(int(kb) for kb in re.findall(r"^Rss(?:Anon|Shmem):\s*(\d+) kB$", status, re.MULTILINE))
    return total / 1e3


# ── what it comes to ─────────────────────────────────────────────────────────


def by_role(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Series of every process that was there from first to last."""
    names = [name for name in (samples[0] if samples else ()) if all(name in sample for sample in samples)]
    return {name: [sample[name] for sample in samples] for name in names}


def warm(times: Sequence[float]) -> int:
    """Index of the first sample after warm-up. times: seconds, rising."""
    limit = min(WARM_UP * times[-1], 60 * WARM_UP_MINUTES)
    return next(index for index, at in enumerate(times) if at >= limit)


def grown(times: Sequence[float], series: Sequence[float]) -> float:
    """Growth after warm-up as a fraction: median of the last tenth over that of the first tenth, less one."""
    rest = series[warm(times) :]
    tenth = max(1, len(rest) // 10)
    return statistics.median(rest[-tenth:]) / statistics.median(rest[:tenth]) - 1


def _table(times: list[float], series: dict[str, list[float]], growth: dict[str, float]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", "MB after warm-up", "MB at the end", "most", "growth"):
        table.add_column(title, justify="left" if not title else "right")
    for name, values in series.items():
        first, last = values[warm(times)], values[-1]
        table.add_row(name, f"{first:.1f}", f"{last:.1f}", f"{max(values):.1f}", f"{100 * growth[name]:+.1f} %")
    return table


def draw(times: Sequence[float], series: dict[str, list[float]]) -> str:
    """An SVG of each series in percent of its level after warm-up, since their sizes differ a hundredfold."""
    width, height, left, top = 720, 320, 60, 20
    if not times:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"/>\n'
    relative = {name: [100 * v / values[warm(times)] for v in values] for name, values in series.items()}
    low = min(90.0, *(min(values) for values in relative.values()))
    high = max(110.0, *(max(values) for values in relative.values()))

    def x(seconds: float) -> float:
        return left + (width - left - 20) * seconds / times[-1]

    def y(percent: float) -> float:
        return top + (height - 60) * (high - percent) / (high - low)

    def text(at_x: float, at_y: float, words: str, extra: str = "") -> str:
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" {extra}>{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 20}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
    ]
    for level in (95, 100, 105):
        dash = "" if level == 100 else ' stroke-dasharray="4 3"'
        parts.append(
            f'<line x1="{left}" x2="{width - 20}" y1="{y(level):.1f}" y2="{y(level):.1f}" stroke="#999"{dash}/>'
        )
        parts.append(text(left - 6, y(level) + 4, f"{level} %", 'text-anchor="end"'))
    for minutes in range(0, int(times[-1] / 60) + 1, max(1, int(times[-1] / 360))):
        parts.append(text(x(60 * minutes), height - 20, f"{minutes} min", 'text-anchor="middle"'))
    for place, (name, values) in enumerate(relative.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in zip(times, values, strict=True))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        parts.append(text(left + 120 * place, height + 4, name, f'fill="{colour}"'))
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
