"""Ranked rows of the corpus, and how two rankings become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

#: (row of the corpus, score), best first.
Hits = list[tuple[int, float]]

#: k of reciprocal rank fusion, as its authors chose it.
_RRF_K = 60


class Searcher(Protocol):
    """An index that is ready. Called by one thread at a time."""

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """At most ``k`` hits for each query, in the order of the queries."""


def ranked(scored: Iterable[tuple[int, float]]) -> Hits:
    """Best first; of equal scores the earlier row."""
    return sorted(scored, key=lambda hit: (-hit[1], hit[0]))


def fuse(rankings: Sequence[Hits], k: int) -> Hits:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): score = Σ 1 / (60 + rank), rank from 1.

    Returns the ``k`` best rows.
    """
    scores: dict[int, float] = {}
    for hits in rankings:
        for rank, (row, _) in enumerate(hits, start=1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (_RRF_K + rank)
    return ranked(scores.items())[:k]


class HybridSearcher:
    """Both searchers' lists, fused. ``depth``: how far down a list is read."""

    def __init__(self, lexical: Searcher, dense: Searcher, depth: int = 100):
        self.lexical, self.dense, self.depth = lexical, dense, depth

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        depth = max(k, self.depth)
        pairs = zip(self.lexical.search(queries, depth), self.dense.search(queries, depth))
        return [fuse(pair, k) for pair in pairs]
