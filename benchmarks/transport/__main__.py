"""From actor to ledger: ``python -m benchmarks.transport``.

Groups of 8 episodes of 2,000 tokens (275 KB) are encoded, sent, decoded, checked, written to the
ledger and acknowledged, by the code in production. Compared with raw pyzmq that sends the same
bytes (made once, looked at by nobody), with pickle over a multiprocessing queue (of arrays, and of
the plain lists that servers answer with) and with JSON over HTTP; and, on disk, with a file that is
written from start to end with an fsync as often. The ways take turns; every figure is a median.

The ratio of two ways is that of their CPU times in both processes together, which strangers on
this machine disturb least. Then 1,000 actors beat once a second at one gateway. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.fuzz_gateway import free_port
from benchmarks.transport import crowd, ways

_SPAWN = multiprocessing.get_context("spawn")
_UP_S = 120.0


@dataclass(slots=True)
class Process:
    """A child with a pipe, for ``with``."""

    process: Any
    pipe: Any

    @classmethod
    def start(cls, stack: ExitStack, target: Any, *args: Any) -> Process:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=target, args=(*args, theirs), daemon=True)
        process.start()
        theirs.close()
        made = cls(process, ours)
        stack.callback(made.end)
        made.answer()
        return made

    def answer(self) -> Any:
        if not self.pipe.poll(_UP_S):
            raise RuntimeError(f"{self.process.name} did not answer within {_UP_S:g} s")
        return self.pipe.recv()

    def cpu(self) -> float:
        return sum(psutil.Process(self.process.pid).cpu_times()[:2])

    def end(self) -> None:
        self.pipe.close()
        self.process.join(3)
        self.process.kill()
        self.process.join()


@dataclass(slots=True)
class Way:
    """cpu_us: of both processes for one group; rate: groups a second by the clock. One entry a round."""

    receiver: Process
    sender: Process
    cpu_us: list[float] = field(default_factory=list)
    receiver_us: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)

    def measure(self, count: int) -> None:
        before, there, began = self.receiver.cpu() + self.sender.cpu(), self.receiver.cpu(), time.monotonic()
        self.sender.pipe.send(count)
        self.sender.answer()
        self.rate.append(count / (time.monotonic() - began))
        self.receiver_us.append(1e6 * (self.receiver.cpu() - there) / count)
        self.cpu_us.append(1e6 * (self.receiver.cpu() + self.sender.cpu() - before) / count)


def start_ways(stack: ExitStack, folder: Path) -> dict[str, Way]:
    def pair(receive: Any, send: Any, *args: Any) -> Way:
        return Way(Process.start(stack, receive, *args), Process.start(stack, send, *args))

    def queues() -> tuple[Any, Any]:
        return _SPAWN.Queue(), _SPAWN.Queue()

    return {
        "raw pyzmq": pair(ways.receive_raw, ways.send_raw, free_port(), ""),
        "rollway, ledger in memory": pair(ways.receive_rollway, ways.send_rollway, free_port(), ":memory:"),
        "rollway, ledger on disk": pair(
            ways.receive_rollway, ways.send_rollway, free_port(), str(folder / "ledger.sqlite")
        ),
        "pickle of arrays, mp queue": pair(ways.receive_pickle, ways.send_pickle, queues(), False),
        "pickle of lists, mp queue": pair(ways.receive_pickle, ways.send_pickle, queues(), True),
        "JSON over HTTP": pair(ways.receive_json, ways.send_json, free_port(), ""),
    }


def measure_disk(folder: Path, count: int) -> float:
    """Groups a second by the clock that plain sequential writes take."""
    began = time.monotonic()
    ways.write_plain(folder, count)
    return count / (time.monotonic() - began)


def measure_crowd(folder: Path, actors: int, seconds: float) -> dict[str, float]:
    """What a gateway with so many actors costs."""
    with ExitStack() as stack:
        port = free_port()
        gateway = Process.start(stack, crowd.receive_crowd, port, str(folder / "crowd.sqlite"), actors)
        senders = Process.start(stack, crowd.send_crowd, port, actors)
        senders.pipe.send(3.0)  # all have joined and hold leases
        senders.answer()
        before = gateway.cpu()
        senders.pipe.send(seconds)
        beats, pongs, held = senders.answer()
        cpu = gateway.cpu() - before
    return {
        "share": cpu / beats * actors,
        "answered": pongs / beats,
        "leases_held": held,
        "us_per_beat": 1e6 * cpu / beats,
    }


def ratio(above: list[float], below: list[float]) -> float:
    return round(median(a / b for a, b in zip(above, below, strict=True)), 3)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transport",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few groups, one round: under a minute")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured (default 5)")
    parser.add_argument("--groups", type=int, default=1024, help="groups of one measurement (default 1024)")
    parser.add_argument("--actors", type=int, default=1000, help="actors at the gateway (default 1000)")
    args = parser.parse_args(argv)
    rounds, count, seconds = (1, 256, 4.0) if args.quick else (args.rounds, args.groups, 20.0)
    disk = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollway-transport-")))
        found = start_ways(stack, folder)
        for number in range(-1, rounds):  # the first is a warm-up
            for name, way in found.items():
                slow = name.startswith(("JSON", "pickle of lists"))
                way.measure(ways.BATCH if number < 0 else count // 8 if slow else count)
                print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                if number < 0:
                    way.cpu_us, way.receiver_us, way.rate = [], [], []
            if number >= 0:
                disk.append(measure_disk(folder, count))
        beside = measure_crowd(folder, args.actors, seconds)
    table = Table(title="Groups of 8 × 2,000 tokens (CPU of both processes)")
    for head in ("way", "µs/group", "of it receiver", "groups/s by the clock"):
        table.add_column(head, justify="left" if head == "way" else "right")
    for name, way in found.items():
        cells = (f"{median(way.cpu_us):.0f}", f"{median(way.receiver_us):.0f}", f"{median(way.rate):,.0f}")
        table.add_row(name, *cells)
    table.add_row("plain file, same fsyncs", "", "", f"{median(disk):,.0f}")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print(
        f"{args.actors} actors, a heartbeat a second, {beside['leases_held']:,} leases held, {crowd.GROUPS_PER_S} small "
        f"groups a second: {100 * beside['share']:.1f} % of a core ({beside['us_per_beat']:.0f} µs a heartbeat, all "
        f"else included; {100 * beside['answered']:.0f} % answered)"
    )
    ours, ours_disk = found["rollway, ledger in memory"], found["rollway, ledger on disk"]
    others = {name: way for name, way in found.items() if name.startswith(("pickle", "JSON"))}
    best = min(others, key=lambda name: median(others[name].cpu_us))
    result = {
        "of_raw_zmq": ratio(found["raw pyzmq"].cpu_us, ours.cpu_us),
        "of_raw_zmq_clock": ratio(ours.rate, found["raw pyzmq"].rate),
        "of_plain_disk": ratio(ours_disk.rate, disk),
        "vs_best_alternative": ratio(others[best].cpu_us, ours.cpu_us),
        "best_alternative": best,
        "vs": {name: ratio(way.cpu_us, ours.cpu_us) for name, way in others.items()},
        "gateway_core_share": round(beside["share"], 3),
        "groups_per_s": round(median(ours.rate)),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
