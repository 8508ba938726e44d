"""What the retrieval service bears: ``python -m benchmarks.retrieval_load``.

Builds an index (of ``--corpus``, or of ``--passages`` synthetic ones) and starts the real service, once for each
``--batches``. ``--connections`` clients send it single queries for ``--seconds``, none of them twice, so the cache is
of no help. Reports queries a second, latency, the seconds of building and the most memory that building and serving
took. The last line is the result as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np

ROOT = Path(__file__).parents[1]
_START_S = 3600.0


def synthetic_rows(count: int, words: int = 80, vocabulary: int = 200_000) -> Iterator[str]:
    """JSON lines of passages whose words are distributed as in a language (Zipf, exponent 1)."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, vocabulary + 1)
    cumulative = np.cumsum(weights / weights.sum())
    for row in range(count):
        drawn = np.searchsorted(cumulative, draw.random(words))
        text = " ".join(f"w{word}" for word in drawn)
        yield json.dumps({"id": row, "title": f"Entity {row} w{drawn[0]}", "text": text}) + "\n"


def queries_of(corpus: Path, count: int) -> list[str]:
    """Eight words each, of passages that are drawn at random; different from each other by a number."""
    draw = random.Random(0)
    with corpus.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        found = []
        while len(found) < count:
            file.seek(draw.randrange(size))
            file.readline()
            if line := file.readline():
                row = json.loads(line)
                words = (row.get("text") or row["contents"]).split()
                found.append(" ".join(draw.sample(words, min(8, len(words)))) + f" {len(found)}")
    return found


def command(args: argparse.Namespace, **options: object) -> list[str]:
    options = {"corpus": args.corpus, "kind": args.kind, "cache_entries": 0, **options}
    return [sys.executable, "run.py", "--role", "retriever", *(f"retriever.{k}={v}" for k, v in options.items())]


def build(args: argparse.Namespace) -> dict[str, float]:
    """Seconds and the most memory, MB, of building what is not there."""
    started = time.perf_counter()
    process = subprocess.Popen(command(args, serve="false"), cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"building failed with status {os.waitstatus_to_exitcode(status)}")
    return {"build_s": round(time.perf_counter() - started, 1), "build_mb": round(usage.ru_maxrss / 1024)}


async def load(url: str, queries: list[str], connections: int, seconds: float) -> dict[str, float]:
    """Queries answered a second, and the quantiles of their latency in ms."""
    latencies: list[float] = []
    left = iter(queries)
    until = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while (started := time.perf_counter()) < until and (query := next(left, None)) is not None:
            async with session.post(f"{url}/retrieve", json={"queries": [query], "topk": 3}) as response:
                response.raise_for_status()
                await response.read()
            latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(connections)))
    p50, p99 = np.quantile(latencies, [0.5, 0.99]) * 1000
    rate = len(latencies) / (time.perf_counter() - started)
    return {"queries_per_s": round(rate, 1), "p50_ms": round(p50, 1), "p99_ms": round(p99, 1)}


async def healthy(url: str, process: subprocess.Popen) -> None:
    async with aiohttp.ClientSession() as session:
        until = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < until:
            try:
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
    raise SystemExit("the service did not start; its last lines say why")


def serve_and_load(args: argparse.Namespace, queries: list[str], max_batch: int) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(command(args, port=port, max_batch=max_batch), cwd=ROOT)
    try:

        async def drive() -> dict[str, float]:
            url = f"http://127.0.0.1:{port}"
            await healthy(url, process)
            await load(url, queries[: args.connections], args.connections, args.seconds)  # warm-up
            return await load(url, queries[args.connections :], args.connections, args.seconds)

        result = asyncio.run(drive())
        status = Path(f"/proc/{process.pid}/status").read_text()
        return {**result, "serve_mb": int(status.split("VmHWM:")[1].split()[0]) // 1024}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.retrieval_load", description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path, help="passages, as retriever.corpus; its index is built beside it")
    source.add_argument("--passages", type=int, help="make so many synthetic passages, in a temporary folder")
    parser.add_argument("--kind", choices=("lexical", "dense", "hybrid"), default="lexical")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64], help="retriever.max_batch of each round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rollway-retrieval-") as folder:
        if args.passages:
            args.corpus = Path(folder) / "corpus.jsonl"
            with args.corpus.open("w") as file:
                file.writelines(synthetic_rows(args.passages))
        args.corpus = args.corpus.resolve()
        result = {"kind": args.kind, "connections": args.connections, **build(args)}
        queries = queries_of(args.corpus, 100_000)
        result["batches"] = {str(batch): serve_and_load(args, queries, batch) for batch in args.batches}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
