"""Nearest sentence vectors, by faiss: flat, inverted file or graph, on a GPU where there is one."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np

from configs.retriever import DenseConfig, HnswIndex, IvfIndex
from tools.progress import progress
from tools.retrieval.encoder import SentenceEncoder
from tools.retrieval.files import replacing
from tools.retrieval.hits import Hits, ranked
from tools.retrieval.vectors import VectorStore

log = logging.getLogger("rollway.retriever")

#: Training vectors a cluster: what faiss wants at least, and what it is given.
_FEWEST, _GIVEN = 39, 64


def faiss_index(config: DenseConfig, store: VectorStore) -> faiss.Index:
    """The index that ``config`` names, built from the store's vectors if it is not on disk yet.

    Memory while building: the index itself, a shard, and with ivf the training vectors, 64 a cluster.
    """
    kind = config.index
    codec = "Flat" if config.precision == "float32" else "SQfp16"
    lists = 0
    if isinstance(kind, IvfIndex):
        most = max(1, store.rows // _FEWEST)
        if (kind.lists or 0) > most:
            raise ValueError(
                f"retriever.dense.index.lists {kind.lists}: {store.rows} passages can train {most} at most"
            )
        lists = kind.lists or min(round(4 * math.sqrt(store.rows)), most)
        name, description = f"ivf-{lists}", f"IVF{lists},{codec}"
    elif isinstance(kind, HnswIndex):
        name, description = f"hnsw-{kind.links}-{kind.build_width}", f"HNSW{kind.links},{codec}"
    else:
        name, description = "flat", codec
    path = store.folder / f"{name}.faiss"
    if not path.exists():
        _build(path, description, kind, store, lists)
    index = faiss.read_index(str(path))
    if index.ntotal != store.rows:
        raise ValueError(f"{path}: holds {index.ntotal} vectors of {store.rows}; delete it to build it anew")
    if isinstance(kind, IvfIndex):
        faiss.extract_index_ivf(index).nprobe = kind.probes
    elif isinstance(kind, HnswIndex):
        index.hnsw.efSearch = kind.search_width
    return index


def _build(path: Path, description: str, kind: object, store: VectorStore, lists: int) -> None:
    index = faiss.index_factory(store.dim, description, faiss.METRIC_INNER_PRODUCT)
    if isinstance(kind, HnswIndex):
        index.hnsw.efConstruction = kind.build_width
    if not index.is_trained:
        wanted = max(_GIVEN * lists, 1000)
        log.info("faiss: training %s on %d of %d vectors", description, min(wanted, store.rows), store.rows)
        index.train(store.sample(wanted))
    with progress(f"faiss {description}", store.rows, say=log.info) as advance:
        for vectors in store:
            index.add(vectors)
            advance(len(vectors))
    with replacing(path) as scratch:
        faiss.write_index(index, str(scratch))


class DenseSearcher:
    """score = cosine of query and passage."""

    def __init__(self, encoder: SentenceEncoder, index: faiss.Index, on_gpu: bool):
        """on_gpu: move the index to all GPUs there are; False where faiss cannot search it there."""
        self._encoder = encoder
        if on_gpu and hasattr(faiss, "index_cpu_to_all_gpus") and faiss.get_num_gpus() > 0:
            index = faiss.index_cpu_to_all_gpus(index)
        self._index = index

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        vectors = self._encoder.encode_queries(queries)
        scores, rows = self._index.search(np.ascontiguousarray(vectors), k)
        # Row -1 fills up where an approximate index found fewer.
        return [ranked((int(row), float(score)) for row, score in zip(*pair) if row >= 0) for pair in zip(rows, scores)]
