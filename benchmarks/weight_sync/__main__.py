"""What a weight push costs: ``python -m benchmarks.weight_sync``.

On the wire: the buckets of production between two processes, against a bare gloo broadcast of one flat
tensor of the same size into memory that is used again. In all: from the pause of a real vLLM server to its
resumption, against that broadcast and vLLM's own loading of the same tensors from its memory. The ways take turns;
figures are medians, ratios those of medians. The last line is one JSON object: that of the largest model
with one server.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.fuzz_gateway import free_port
from benchmarks.weight_sync import models
from benchmarks.weight_sync.wire import Wire
from benchmarks.weight_sync.worker import LoadTimer
from configs.schema import Config
from learner.servers.probe import wait_healthy
from learner.servers.processes import Child, terminate
from learner.servers.serving import server_command, server_urls
from learner.weights.control import Deadline, ServerControl
from learner.weights.push import WeightPusher
from learner.weights.transport import Weights

#: Share of a bare broadcast's bandwidth, at least; pause over its floor, at most.
TARGET_WIRE, TARGET_PAUSE = 0.85, 1.3
_START_S, _CALL_S = 300.0, 120.0


@dataclass(frozen=True)
class Row:
    """Medians in seconds; ``load`` and ``pause`` are the slowest server's."""

    size: str
    servers: int
    nbytes: int
    flat: float
    bucketed: float
    load: float
    pause: float

    @property
    def of_bare_broadcast(self) -> float:
        return self.flat / self.bucketed

    @property
    def pause_over_floor(self) -> float:
        return self.pause / (self.flat + self.load)


def measure(size: str, servers: int, rounds: int, folder: Path) -> Row:
    """One row: ``rounds`` of each way in turn, after one of each that does not count."""
    model = folder if (folder / "config.json").exists() else models.make(size, folder)
    config = Config.model_validate(
        {
            "model": {"path": str(model), "max_tokens": models.LENGTH},
            "server": {
                "port": free_port(),
                "count": servers,
                "kv_cache_gib": 0.1,
                "max_num_seqs": 8,
                "extra_args": ["--worker-extension-cls", f"{LoadTimer.__module__}.{LoadTimer.__name__}"],
            },
            "weights": {"timeout_s": _CALL_S},
        }
    )
    tensors, bucket_bytes = models.read(model), config.weights.bucket_mb << 20
    flat, bucketed, load, pause = [], [], [], []
    with ExitStack() as stack:
        urls = stack.enter_context(serving(config, folder))
        wire = stack.enter_context(Wire(Weights(tensors, 0, bucket_bytes)))
        pusher = WeightPusher(config, urls)
        stack.callback(pusher.close)
        for version in range(rounds + 1):
            report = pusher.push(tensors, version)
            if report.errors():
                raise RuntimeError(f"push failed: {report.errors()}")
            figures = (
                wire.flat(),
                wire.bucketed(),
                max(loading(url, model) for url in urls),
                report.as_record()["paused_s"],
            )
            if version:
                for values, figure in zip((flat, bucketed, load, pause), figures, strict=True):
                    values.append(figure)
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    return Row(size, servers, nbytes, median(flat), median(bucketed), median(load), median(pause))


def loading(url: str, model: Path) -> float:
    """Seconds that vLLM's own loading takes in the one worker of a server."""
    control = ServerControl(url, Deadline(_CALL_S))
    [seconds] = control.call_workers(LoadTimer.rollway_time_loading.__name__, folder=str(model))
    return float(seconds)  # vLLM answers with text


@contextmanager
def serving(config: Config, folder: Path) -> Iterator[list[str]]:
    """Real servers on free ports; their URLs."""
    children = []
    try:
        for index in range(config.server.count):
            argv, env = server_command(config, index)
            child = Child(f"server {index}", argv, env, folder.with_name(f"{folder.name}-{index}.log"))
            child.start()
            children.append(child)
        for url, child in zip(server_urls(config), children, strict=True):
            wait_healthy(url, _START_S, lambda child=child: child.exit_code is None, lambda _: None)
        yield server_urls(config)
    finally:
        terminate(children, grace_s=10)


def show(rows: list[Row]) -> None:
    table = Table(title="Seconds, medians")
    for head in ("model", "servers", "MB", "flat", "bucketed", "of bare", "loading", "pause", "over the floor"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for row in rows:
        times = (f"{value:.3f}" for value in (row.flat, row.bucketed))
        table.add_row(
            row.size,
            str(row.servers),
            f"{row.nbytes / 1e6:.1f}",
            *times,
            f"{row.of_bare_broadcast:.2f}",
            f"{row.load:.3f}",
            f"{row.pause:.3f}",
            f"{row.pause_over_floor:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def result(rows: list[Row]) -> dict[str, Any]:
    """Of the largest model with one server: small ones cost what some HTTP calls cost."""
    row = max((row for row in rows if row.servers == 1), key=lambda row: row.nbytes)
    return {
        "model": row.size,
        "of_bare_broadcast": round(row.of_bare_broadcast, 3),
        "pause_over_floor": round(row.pause_over_floor, 3),
        "mb_per_s": round(row.nbytes / row.bucketed / 1e6),
        "targets": {"of_bare_broadcast": TARGET_WIRE, "pause_over_floor": TARGET_PAUSE},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.weight_sync",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="the 30M model and one server: under a minute")
    parser.add_argument("--rounds", type=int, default=10, help="how often each way is measured (default 10)")
    parser.add_argument("--sizes", nargs="+", choices=models.SIZES, default=list(models.SIZES))
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2], help="numbers of servers (default 1 2)")
    args = parser.parse_args(argv)
    plan = [("30M", 1)] if args.quick else [(size, servers) for size in args.sizes for servers in args.servers]
    if not any(servers == 1 for _, servers in plan):
        parser.error("--servers must contain 1: the result is that of one server")
    rows = []
    with tempfile.TemporaryDirectory(prefix="rollway-weights-") as place:
        for size, servers in plan:
            print(f"{size}, {servers} server(s)", file=sys.stderr, flush=True)
            rows.append(measure(size, servers, 5 if args.quick else args.rounds, Path(place) / size))
    show(rows)
    print(json.dumps(result(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
