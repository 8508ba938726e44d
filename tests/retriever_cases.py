"""What the retriever's tests share; imports no torch."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np

from configs.retriever import RetrieverConfig
from tools.retrieval.corpus import Corpus, index_lines
from tools.retrieval.server import serve

ROWS = [
    {"id": 1, "title": "Ada Byron", "text": "Ada Byron was born in London."},
    {"id": "b", "contents": '"London"\nLondon lies on the Thames.'},
    {"id": "c", "contents": "The Who\nA rock band of four."},
    {"id": "d", "title": "Zürich", "text": "A city at a lake, “größer” than Bern."},
]


def write(path: Path, rows) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def numbered(path: Path, count: int) -> Path:
    rows = [{"id": n, "title": f"Thing {n}", "text": f"It weighs {n} grams, word{n % 7}."} for n in range(count)]
    return write(path, rows)


def open_corpus(path: Path, bad_rows="fatal") -> Corpus:
    offsets = path.with_suffix(".npy")
    index_lines(path, offsets, bad_rows)
    return Corpus(path, np.load(offsets))


class Hashed:
    """A stand-in for an encoder: a unit vector that depends on the text alone."""

    dim, identity = 16, {"weights": "hashed"}

    def encode_passages(self, texts, advance):
        advance(len(texts))
        return self.encode_queries(texts)

    def encode_queries(self, texts):
        draws = [np.random.default_rng(int.from_bytes(text.encode()[-16:])).standard_normal(self.dim) for text in texts]
        vectors = np.array(draws, np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def running(corpus, searcher, **options):
    """A real service on the loopback; yields its URL."""
    config = RetrieverConfig(port=options.pop("port", None) or free_port(), **options)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ready(port: int) -> None:
        listening.set_result(port)
        await asyncio.Event().wait()

    service = asyncio.create_task(serve(corpus, searcher, config, ready))
    await asyncio.wait({service, listening}, return_when=asyncio.FIRST_COMPLETED)
    if service.done():
        service.result()
    try:
        yield f"http://127.0.0.1:{listening.result()}"
    finally:
        service.cancel()
        with suppress(asyncio.CancelledError):
            await service
