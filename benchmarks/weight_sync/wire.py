"""Two processes and a gloo group: the buckets of production against one broadcast of one flat tensor."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import ExitStack
from typing import Any, Self

import torch

from learner.weights.gloo_engine import GlooUpdateInfo, receive
from learner.weights.group import TRAINER_RANK, GlooGroup, find_store, serve_store
from learner.weights.transport import Weights, send

_SPAWN = multiprocessing.get_context("spawn")
_HOST, _LIMIT_S = "127.0.0.1", 120.0


class Wire:
    """``with Wire(weights) as wire``: ``flat()`` and ``bucketed()`` send the same bytes; seconds until all have arrived."""

    def __init__(self, weights: Weights):
        self._weights = weights
        self._flat = torch.zeros(weights.nbytes, dtype=torch.uint8)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            store = serve_store(_HOST, _LIMIT_S)
            self._pipe, theirs = _SPAWN.Pipe()
            info = self._weights.describe() | {"bucket_bytes": self._weights.bucket_bytes}
            worker = _SPAWN.Process(target=_worker, args=(store.port, info, self._weights.nbytes, theirs), daemon=True)
            worker.start()
            stack.callback(_end, worker)
            theirs.close()
            self._group = GlooGroup(store, _HOST, TRAINER_RANK, 2, _LIMIT_S)
            stack.callback(self._group.close)
            self._answer()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._stack.close()

    def flat(self) -> float:
        return self._timed("flat", lambda: self._group.broadcast(self._flat))

    def bucketed(self) -> float:
        return self._timed("bucketed", lambda: send(self._group, self._weights))

    def _timed(self, way: str, work: Any) -> float:
        self._pipe.send(way)
        self._answer()  # it waits for the first byte
        began = time.monotonic()
        work()
        self._answer()
        return time.monotonic() - began

    def _answer(self) -> None:
        if not self._pipe.poll(_LIMIT_S):
            raise TimeoutError(f"the receiver did not answer within {_LIMIT_S:g} s")
        self._pipe.recv()


def _worker(port: int, info: dict[str, Any], nbytes: int, pipe: Any) -> None:
    """Receives as a server's worker does, without the model: its buckets are dropped once the whole is there."""
    torch.set_num_threads(1)
    group = GlooGroup(find_store(_HOST, port, _LIMIT_S), _HOST, 1, 2, _LIMIT_S)
    update, flat = GlooUpdateInfo(**info), torch.zeros(nbytes, dtype=torch.uint8)
    pipe.send("ready")
    try:
        while True:
            way = pipe.recv()
            pipe.send("go")
            if way == "flat":
                group.broadcast(flat)
            else:
                for _ in receive(group, update):
                    pass
            pipe.send("done")
    except EOFError:
        group.close()


def _end(process: Any) -> None:
    process.join(5)
    process.kill()
    process.join()
