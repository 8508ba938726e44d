"""Vectors of all passages, in shards that are whole or not there: encoding, the longest step, goes on where it was."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from tools.progress import progress
from tools.retrieval.corpus import Corpus
from tools.retrieval.files import replacing, write_json

log = logging.getLogger("rollway.retriever")

#: Passages in a shard: what a kill can cost, and what is in memory at a time.
SHARD_ROWS = 1024


class PassageEncoder(Protocol):
    dim: int
    identity: dict[str, object]

    def encode_passages(self, passages: list[str], advance: Callable[[int], None]) -> np.ndarray: ...


class VectorStore:
    """Shards [≤ shard_rows, dim] of ``dtype``, in a folder that is named after everything the vectors depend on."""

    def __init__(self, parent: Path, encoder: PassageEncoder, dtype: str, rows: int, shard_rows: int = SHARD_ROWS):
        self.identity = {**encoder.identity, "dim": encoder.dim, "dtype": dtype, "shard_rows": shard_rows}
        name = hashlib.blake2b(json.dumps(self.identity, sort_keys=True).encode(), digest_size=6).hexdigest()
        self.folder = parent / f"vectors-{name}"
        self.dim, self.dtype, self.rows, self.shard_rows = encoder.dim, dtype, rows, shard_rows
        self._encoder = encoder

    @property
    def shards(self) -> list[Path]:
        return [self.folder / f"{number:06d}.npy" for number in range(math.ceil(self.rows / self.shard_rows))]

    def fill(self, corpus: Corpus) -> None:
        """Encode what is not there yet. Raises ``ValueError`` where a vector is not finite."""
        self.folder.mkdir(exist_ok=True)
        write_json(self.folder / "identity.json", self.identity)
        missing = [(number, path) for number, path in enumerate(self.shards) if not path.exists()]
        if not missing:
            return
        left = sum(min(self.shard_rows, self.rows - number * self.shard_rows) for number, _ in missing)
        with progress("vectors", self.rows, self.rows - left, log.info) as advance:
            for number, path in missing:
                first = number * self.shard_rows
                rows = range(first, min(first + self.shard_rows, self.rows))
                texts = [f"{document.title}\n{document.text}" for document in map(corpus.__getitem__, rows)]
                vectors = self._encoder.encode_passages(texts, advance)
                if not np.isfinite(vectors).all():
                    bad = rows[int(np.argmin(np.isfinite(vectors).all(1)))]
                    raise ValueError(f"the encoder's vector of passage {corpus[bad].id!r} is not finite")
                with replacing(path) as scratch, scratch.open("wb") as file:
                    np.save(file, vectors.astype(self.dtype))

    def __iter__(self) -> Iterator[np.ndarray]:
        """The shards in order, as float32."""
        for path in self.shards:
            yield np.load(path).astype(np.float32)

    def sample(self, count: int, seed: int = 0) -> np.ndarray:
        """About ``count`` vectors, spread evenly over all shards; float32 [count, dim]."""
        draw = np.random.default_rng(seed)
        share = min(1.0, count / self.rows)
        parts = []
        for vectors in self:
            take = max(1, round(len(vectors) * share))
            parts.append(vectors[np.sort(draw.choice(len(vectors), take, replace=False))])
        return np.concatenate(parts)
