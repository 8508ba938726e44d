"""A small lexical retriever: hashed TF-IDF vectors in a faiss inner-product index.

Word unigrams and bigrams are hashed with CRC-32 (stable across processes, unlike
``hash``) into a dense, L2-normalised vector; the title counts more than the text.
No torch, no downloads: an actor process can hold thousands of passages in a few
megabytes.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import faiss
import numpy as np

_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Passage:
    """One retrievable unit. ``id`` is unique in its corpus; ``title`` names the entity."""

    id: str
    title: str
    text: str


def format_passages(passages: Iterable[Passage]) -> str:
    """The text that the search tool returns to the model: one ``- title: text`` line a passage."""
    return "\n".join(f"- {p.title}: {p.text}" for p in passages) or "No passage found."


def terms(text: str) -> list[str]:
    """Lower-case words and pairs of neighbours, without possessive endings."""
    words = [w for w in _WORD.findall(text.lower()) if w != "s"]
    return words + [f"{a} {b}" for a, b in zip(words, words[1:])]


class SearchIndex:
    """Exact cosine search over hashed TF-IDF vectors.

    Args:
        passages: the corpus; ties in score are broken by its order.
        dim: length of a vector. Memory is ``4 * dim`` bytes a passage.
        title_weight: how often a term of the title counts beside its text.
    """

    def __init__(self, passages: Sequence[Passage], dim: int = 1024, title_weight: float = 3.0):
        self.passages = list(passages)
        self.dim = dim
        self._slots: dict[str, tuple[int, float]] = {}
        counts = [self._count(p, title_weight) for p in self.passages]
        frequency = Counter(term for count in counts for term in count)
        total = len(self.passages)
        self._idf = {term: math.log((1 + total) / (1 + n)) + 1e-3 for term, n in frequency.items()}
        vectors = np.stack([self._vector(count) for count in counts]) if counts else np.zeros((0, dim), np.float32)
        self._index = self._build(vectors)

    def search(self, query: str, k: int) -> list[tuple[Passage, float]]:
        """The ``k`` best passages and their cosine scores, best first; none without a shared term."""
        return self.search_many([query], k)[0]

    def search_many(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """``search`` for many queries in one matrix product."""
        if not queries or not self.passages:
            return [[] for _ in queries]
        vectors = np.stack([self._vector(Counter(terms(q))) for q in queries])
        scores, rows = self._index.search(vectors, min(k, len(self.passages)))
        return [
            [(self.passages[row], float(score)) for row, score in zip(line, values) if score > 0]
            for line, values in zip(rows, scores)
        ]

    @staticmethod
    def _count(passage: Passage, title_weight: float) -> dict[str, float]:
        count: dict[str, float] = Counter(terms(passage.text))
        for term in terms(passage.title):
            count[term] += title_weight
        return count

    def _vector(self, count: dict[str, float]) -> np.ndarray:
        """Hashed, signed, L2-normalised TF-IDF vector of shape [dim], float32."""
        vector = np.zeros(self.dim, np.float32)
        for term, n in count.items():
            # A term that the corpus lacks can match nothing but a collision.
            if (idf := self._idf.get(term)) is not None:
                slot, sign = self._slot(term)
                vector[slot] += sign * (1.0 + math.log(max(n, 1.0))) * idf
        norm = float(np.linalg.norm(vector))
        return vector / norm if norm else vector

    def _slot(self, term: str) -> tuple[int, float]:
        if (cached := self._slots.get(term)) is None:
            code = zlib.crc32(term.encode())
            # The sign comes from a bit that the slot does not use, so collisions cancel on average.
            cached = self._slots[term] = (code % self.dim, 1.0 if code >> 31 else -1.0)
        return cached

    def _build(self, vectors: np.ndarray):
        index = faiss.IndexFlatIP(self.dim)
        if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0:
            self._gpu = faiss.StandardGpuResources()  # must outlive the index
            index = faiss.index_cpu_to_gpu(self._gpu, 0, index)
        index.add(np.ascontiguousarray(vectors, np.float32))
        return index
