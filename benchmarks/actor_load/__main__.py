"""One actor process against canned answers: ``python -m benchmarks.actor_load``.

The load generator answers ``/inference/v1/generate`` at once with canned tokens: no model is
involved. Compared with (1) a bare aiohttp loop that sends and reads the same bodies with json,
and (2) the rollout loop of `verifiers` on the same turns, where there is a Python that has it
(``--peer-python PATH``, or this one). The arms take turns; every figure is a median over rounds.

Turns per second are turns per second of CPU time of the measured process: what it does on a
core of its own, whoever shares this machine. Episodes have four turns; requests have 400 tokens
on average, answers about 40 with log-probabilities. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from actors.chat import ChatFormat
from benchmarks.actor_load.arms import Arm, start_actors, start_bare, start_peer
from benchmarks.actor_load.generator import Generator
from benchmarks.actor_load.work import MODEL, canned_answers

_PEER = "verifiers"
_START = {"actor": start_actors, "bare": start_bare, "peer": start_peer}


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[round(q * (len(ordered) - 1))] if ordered else float("nan")


def peer_python(given: str | None) -> str | None:
    """The Python that has the peer; None, and a line that says so, where there is none."""
    python = given or (sys.executable if importlib.util.find_spec(_PEER) else None)
    if python is None:
        print(f"no peer: {_PEER} is not installed here; name a Python that has it with --peer-python")
    elif subprocess.run([python, "-c", f"import {_PEER}"], capture_output=True).returncode:
        print(f"no peer: {python} cannot import {_PEER}: `{python} -m pip install {_PEER}==0.1.14`")
        return None
    return python


def plan(quick: bool, peer: str | None) -> dict[str, tuple[str, int, dict]]:
    """Name → kind, episodes in flight, options of its start."""
    levels = (104, 10_000) if quick else (104, 1000, 10_000)
    arms: dict[str, tuple[str, int, dict]] = {}
    for n in levels:
        arms[f"bare {n}"] = ("bare", n, {})
        arms[f"actor {n}"] = ("actor", n, {})
    arms["actor 104, tool calls"] = ("actor", 104, {"call": True})
    if not quick:
        arms["2 actors"] = ("actor", 512, {"actors": 2})
        arms["4 actors"] = ("actor", 1024, {"actors": 4})
    if peer:
        arms[f"peer {levels[0]}"] = ("peer", levels[0], {"python": peer})
    return arms


def run(arms: list[Arm], rounds: int, turns: int) -> None:
    for number in range(rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            arm.measure(turns if arm.name.startswith("peer") else max(turns, 2 * arm.in_flight))
            window = arm.windows[-1]
            print(f"round {number + 1}: {arm.name}: {window.cpu_us:.0f} µs a turn", file=sys.stderr, flush=True)


def ratio(arms: dict[str, Arm], above: str, below: str) -> float | None:
    """Median over rounds of (CPU per turn of ``above``) / (that of ``below``), in the same round."""
    if above not in arms or below not in arms:
        return None
    pairs = zip(arms[above].windows, arms[below].windows, strict=True)
    return round(median(a.cpu_us / b.cpu_us for a, b in pairs), 3)


def summary(arms: dict[str, Arm]) -> dict:
    most = "actor 10000"
    gateways = {
        name: round(median(1e6 * w.gateway_s / w.turns for w in arm.windows), 1)
        for name, arm in arms.items()
        if arm.gateway
    }
    of_bare = {n: ratio(arms, f"bare {n}", f"actor {n}") for n in (104, 1000, 10_000)}
    return {
        "turns_per_s": round(median(1e6 / w.cpu_us for w in arms["actor 104"].windows)),
        "of_bare_loop": of_bare[104],
        "of_bare_loop_by_level": {n: value for n, value in of_bare.items() if value},
        "of_bare_loop_tool_calls": ratio(arms, "bare 104", "actor 104, tool calls"),
        "vs_peer": ratio(arms, "peer 104", "actor 104, tool calls"),
        "lag_p99_ms": round(1e3 * median(quantile(w.lags, 0.99) for w in arms[most].windows), 1),
        "pass_p99_ms": round(1e3 * median(quantile(w.passes, 0.99) for w in arms[most].windows), 1),
        "kb_per_episode": round(arms[most].kb_per_episode, 1),
        "cost_growth": ratio(arms, most, "actor 104"),
        "gateway_us_per_turn": gateways,
    }


def table(arms: dict[str, Arm]) -> Table:
    shown = Table(title="One actor process (canned answers; CPU of the measured process)")
    heads = ("arm", "in flight", "µs/turn", "turns/s of CPU", "turns/s by the clock", "lag p50/p99 ms", "pass p99 ms")
    for head in (*heads, "KB/episode", "gateway µs/turn"):
        shown.add_column(head, justify="left" if head == "arm" else "right")
    for name, arm in arms.items():
        windows = arm.windows
        cpu = median(w.cpu_us for w in windows)
        probed = bool(windows[0].lags)
        lag = [1e3 * median(quantile(w.lags, q) for w in windows) for q in (0.5, 0.99)]
        shown.add_row(
            name,
            f"{arm.in_flight:,}",
            f"{cpu:.0f}",
            f"{1e6 / cpu:,.0f}",
            f"{median(w.turns / w.wall_s for w in windows):,.0f}",
            f"{lag[0]:.1f}/{lag[1]:.1f}" if probed else "",
            f"{1e3 * median(quantile(w.passes, 0.99) for w in windows):.1f}" if probed else "",
            "" if arm.kb_per_episode is None else f"{arm.kb_per_episode:.1f}",
            f"{median(1e6 * w.gateway_s / w.turns for w in windows):.0f}" if arm.gateway else "",
        )
    return shown


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.actor_load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer arms, one round: under a minute")
    parser.add_argument("--rounds", type=int, default=5, help="how often each arm is measured (default 5)")
    parser.add_argument("--turns", type=int, default=10_000, help="least turns of one window (default 10000)")
    parser.add_argument("--peer-python", metavar="PATH", help=f"a Python that has {_PEER} installed")
    parser.add_argument("--only", metavar="TEXT", help="arms whose name contains this; prints no ratios")
    args = parser.parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    chosen = {k: v for k, v in plan(args.quick, peer_python(args.peer_python)).items() if (args.only or "") in k}
    answers = canned_answers(ChatFormat.load(str(MODEL)))
    arms: dict[str, Arm] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollway-load-")))
        for number, (name, (kind, in_flight, options)) in enumerate(chosen.items()):
            arm = arms[name] = Arm(name, in_flight, stack.enter_context(Generator(answers)))
            stack.callback(arm.close)
            place = folder / str(number)
            place.mkdir()
            _START[kind](arm, place, **options)
            print(f"started: {name}", file=sys.stderr, flush=True)
        turns = min(args.turns, 2000) if args.quick else args.turns
        run(list(arms.values()), 1 if args.quick else args.rounds, turns)
    Console(width=None if sys.stdout.isatty() else 150).print(table(arms))
    if not args.only:
        print(json.dumps(summary(arms)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
