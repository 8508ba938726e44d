"""One policy update: ``python -m benchmarks.learner_step``.

A batch of episodes whose lengths are lognormal (median 300, 99th percentile 2,000 tokens; half of them are
the policy's) goes through one optimizer step:

- *rollway*: ``PolicyEngine.update`` with everything that belongs to it: packing, proximal policy,
  correction, entropy and metrics, DeepSpeed, AdamW;
- *trl*: the training loop of TRL's ``GRPOTrainer``, which pads; only its generation is left out. It runs in
  the Python named by ``--peer-python``, which is this one where it has trl 1.16; else the arm is left out;
- *bare*: forward and backward of the same model by itself on each text, without padding, on the same
  tokens, without optimizer: what an update cannot do without.

The same model, episodes and threads, each arm in a process of its own; the arms take turns, and every figure
is a median. Tokens are those of the episodes, without padding. They are counted per second of CPU time, which
strangers on this machine disturb least. Peak memory is that of the update, less that of the process before it had
a model. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.learner_step import work
from benchmarks.learner_step.children import Child, ChildFailed

#: Both hold 8 episodes in a micro-batch: TRL's default, and as many tokens as 8 of them have on average, for us.
MICRO_TOKENS = 4096
#: For the long form: tokens of a micro-batch; length of all episodes, at 16,384 tokens an update.
SCALES = (2048, 4096, 8192, 16384)
LENGTHS = (128, 512, 2048)
SCALE_TOKENS = 16384


def order(episodes: int, micro_tokens: int = MICRO_TOKENS, length: int = 0) -> dict[str, int]:
    return {"episodes": episodes, "micro_tokens": micro_tokens, "length": length}


def start(stack: ExitStack, folder: Path, args: argparse.Namespace) -> dict[str, Child]:
    modules = {"rollway": ("arms", "rollway"), "bare": ("arms", "bare")}
    found = {
        name: Child(
            stack, sys.executable, f"benchmarks.learner_step.{module}", [*own, str(folder)], args.threads, folder
        )
        for name, (module, *own) in modules.items()
    }
    if args.peer_python:
        peer = Child(stack, args.peer_python, "benchmarks.learner_step.peer", [str(folder)], args.threads, folder)
        found = {"rollway": found["rollway"], "trl": peer, "bare": found["bare"]}
    for child in found.values():
        child.answer()
    return found


def compare(arms: dict[str, Child], episodes: int, rounds: int) -> None:
    for number in range(-1, rounds):  # the first is a warm-up
        for name, arm in arms.items():
            cost = arm.update(order(episodes))
            if number >= 0:
                arm.costs.append(cost)
            print(f"round {number + 1} of {rounds}: {name}, {cost['clock_s']:.1f} s", file=sys.stderr, flush=True)


def scale(rollway: Child, rounds: int) -> list[tuple[str, float, float]]:
    """(what, tokens a second, MiB) of our update by the size of its micro-batches, then by the length of the episodes."""
    orders = {f"micro-batches of {n:,}": (order(64, n), sum(work.lengths(64))) for n in SCALES}
    for length in LENGTHS:
        orders[f"episodes of {length:,}"] = (order(SCALE_TOKENS // length, length=length), SCALE_TOKENS)
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in orders}
    for _ in range(rounds):
        for name, (ask, _) in orders.items():
            costs[name].append(rollway.update(ask))
    return [
        (name, tokens / median(c["cpu_s"] for c in costs[name]), median(c["peak_mib"] for c in costs[name]))
        for name, (_, tokens) in orders.items()
    ]


def _own_trl() -> str | None:
    return sys.executable if find_spec("trl") else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learner_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model, 16 episodes, one round: under a minute")
    parser.add_argument("--rounds", type=int, default=3, help="how often each arm is measured (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each arm (default 1)")
    parser.add_argument(
        "--peer-python", default=_own_trl(), help="a Python that has trl 1.16 (default: this, if it has)"
    )
    args = parser.parse_args(argv)
    size, episodes, rounds = ("tiny", 16, 1) if args.quick else ("small", 64, args.rounds)
    lengths = work.lengths(episodes)
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollway-step-")))
            work.save_model(folder / "model", size)
            work.save_arrays(folder / "batch.npz", *work.batch(lengths, work.MODELS[size][2]))
            arms = start(stack, folder, args)
            compare(arms, episodes, rounds)
            scaling = [] if args.quick else scale(arms["rollway"], rounds)
    except ChildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    hidden, layers, vocabulary = work.MODELS[size]
    print(f"hidden size {hidden}, {layers} layers, vocabulary {vocabulary:,}; longest episode {max(lengths):,} tokens")
    table = Table(title=f"One update on {episodes} episodes of {sum(lengths):,} tokens together")
    for head in ("arm", "tokens/s of CPU", "by the clock", "peak MiB"):
        table.add_column(head, justify="left" if head == "arm" else "right")
    for name, arm in arms.items():
        rates = (f"{sum(lengths) / arm.middle(key):,.0f}" for key in ("cpu_s", "clock_s"))
        table.add_row(name, *rates, f"{arm.middle('peak_mib'):,.0f}")
    for name, rate, peak in scaling:
        table.add_row(f"rollway, {name}", f"{rate:,.0f}", "", f"{peak:,.0f}")
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    if "trl" not in arms:
        print(
            "trl is left out, it is not installed: see configs/requirements/dev.txt, or name a Python with --peer-python"
        )
    print(json.dumps(result(arms, sum(lengths))))
    return 0


def result(arms: dict[str, Child], tokens: int) -> dict[str, float | None]:
    """Of our update: tokens a second and memory as multiples of TRL's, tokens a second as a part of the bare model's."""
    ours, peer = arms["rollway"], arms.get("trl")
    return {
        "vs_trl_tokens": round(peer.middle("cpu_s") / ours.middle("cpu_s"), 3) if peer else None,
        "vs_trl_memory": round(ours.middle("peak_mib") / peer.middle("peak_mib"), 3) if peer else None,
        "of_bare_model": round(arms["bare"].middle("cpu_s") / ours.middle("cpu_s"), 3),
        "tokens_per_s": round(tokens / ours.middle("cpu_s"), 1),
        "peak_mib": round(ours.middle("peak_mib"), 1),
    }


if __name__ == "__main__":
    sys.exit(main())
