"""Corpus file → searcher. Each step is kept on disk and skipped when it is there, so a build that was killed goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from configs.retriever import RetrieverConfig
from tools.retrieval.corpus import Corpus, index_lines
from tools.retrieval.files import exclusive, fingerprint, read_json, write_json
from tools.retrieval.hits import HybridSearcher, Searcher
from tools.retrieval.lexical import LexicalSearcher, build_lexical

log = logging.getLogger("rollway.retriever")

#: Changes when an older folder can no longer be used.
_FORMAT = 1


def build(config: RetrieverConfig) -> tuple[Corpus, Searcher]:
    """What ``config`` describes, built as far as it is not there yet.

    The folder holds ``corpus.json`` and ``offsets.npy``, ``lexical/``, and for each encoder ``vectors-…/`` with
    shards and faiss indexes. Raises ``ValueError`` in one line that says what to change.
    """
    if config.corpus is None:
        raise ValueError(
            "retriever.corpus is not set: name a file of passages, e.g. retriever.corpus=data/corpus.jsonl"
        )
    if not config.corpus.is_file():
        raise ValueError(f"retriever.corpus {config.corpus}: no such file")
    folder = config.folder or config.corpus.with_name(config.corpus.name + ".index")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"retriever.folder {folder}: {error.strerror}; choose another one") from None
    with exclusive(folder):
        corpus = _corpus(config, folder)
        searchers: list[Searcher] = []
        if config.kind != "dense":
            build_lexical(folder / "lexical", corpus)
            searchers.append(LexicalSearcher(folder / "lexical"))
        if config.kind != "lexical":
            searchers.append(_dense(config, folder, corpus))
    if config.kind == "hybrid":
        return corpus, HybridSearcher(*searchers)
    return corpus, searchers[0]


def _corpus(config: RetrieverConfig, folder: Path) -> Corpus:
    about = {"format": _FORMAT, "corpus": fingerprint(config.corpus), "bad_rows": config.bad_rows}
    known = read_json(folder / "corpus.json")
    if known is None:
        counts = index_lines(config.corpus, folder / "offsets.npy", config.bad_rows)
        write_json(folder / "corpus.json", about | counts)
    elif {key: known.get(key) for key in about} != about:
        raise ValueError(
            f"{folder} was built for another content of {config.corpus}, with other bad_rows or by another version; "
            "delete the folder, or choose another retriever.folder"
        )
    return Corpus(config.corpus, np.load(folder / "offsets.npy"))


def _dense(config: RetrieverConfig, folder: Path, corpus: Corpus) -> Searcher:
    # Only here: a lexical service starts in a moment and needs no torch.
    from tools.retrieval.dense import DenseSearcher, faiss_index
    from tools.retrieval.encoder import SentenceEncoder
    from tools.retrieval.vectors import VectorStore

    encoder = SentenceEncoder(config.dense)
    store = VectorStore(folder, encoder, config.dense.precision, len(corpus))
    store.fill(corpus)
    index = faiss_index(config.dense, store)
    # faiss has no graph and no flat index of half precision on a GPU.
    kind, precision = config.dense.index.type, config.dense.precision
    return DenseSearcher(encoder, index, on_gpu=kind == "ivf" or (kind == "flat" and precision == "float32"))
