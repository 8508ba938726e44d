"""Options of the retrieval service, ``--role retriever``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.section import Positive, Seconds, Section


class FlatIndex(Section):
    """Every passage is compared: exact."""

    type: Literal["flat"] = "flat"


class IvfIndex(Section):
    """Passages in clusters (inverted file), of which a query visits the nearest."""

    type: Literal["ivf"] = "ivf"
    lists: Positive | None = None
    """Clusters; left out, 4·√passages, but no more than passages / 39."""
    probes: Positive = 32
    """Clusters that a query visits: more are slower and miss less."""


class HnswIndex(Section):
    """A graph of neighbours (Malkov and Yashunin 2018); on the CPU also where there is a GPU."""

    type: Literal["hnsw"] = "hnsw"
    links: Annotated[int, Field(ge=2, le=256)] = 32
    """M: neighbours of a passage. Memory is about 8·M bytes a passage beside the vector."""
    build_width: Positive = 200
    """efConstruction: candidates looked at when a passage is added."""
    search_width: Positive = 128
    """efSearch: candidates that a query keeps; never fewer than it asks for."""


class DenseConfig(Section):
    """Sentence vectors and the faiss index over them."""

    encoder: str = "minilm"
    """Folder or hub name of an encoder that transformers loads; ``minilm`` is the one that is installed with Rollway."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """Token vectors → sentence vector; auto reads the encoder's own ``1_Pooling/config.json``, without one it is mean."""
    query_prefix: str = ""
    """Put before a query, as the encoder was trained; ``"query: "`` for E5."""
    passage_prefix: str = ""
    """Put before a passage; ``"passage: "`` for E5."""
    max_tokens: Positive = 256
    """Tokens of a passage or query that are read; the rest is cut off."""
    batch: Positive = 64
    """Texts that go through the encoder at once."""
    precision: Literal["float32", "float16"] = "float32"
    """Vectors in the index and on disk; float16 halves both."""
    index: Annotated[FlatIndex | IvfIndex | HnswIndex, Field(discriminator="type")] = FlatIndex()


class RetrieverConfig(Section):
    corpus: Path | None = None
    """Passages as JSON lines: ``{"id", "title", "text"}`` or ``{"id", "contents"}``. The role needs it."""
    folder: Path | None = None
    """Where the index is built and kept; left out, beside the corpus: ``corpus.jsonl.index``."""
    kind: Literal["lexical", "dense", "hybrid"] = "lexical"
    """lexical: BM25. dense: nearest sentence vectors. hybrid: both lists merged by reciprocal rank fusion."""
    dense: DenseConfig | None = None
    """Only with ``kind`` dense or hybrid; left out, its defaults."""
    bad_rows: Literal["fatal", "skip"] = "fatal"
    """A line of the corpus that cannot be used stops the building, or is named, counted and left out."""
    serve: bool = True
    """false: build the index and stop."""
    host: str = "127.0.0.1"
    """Address to listen on. There is no password: only where strangers do not come."""
    port: int = Field(default=8000, ge=1, le=65535)
    top_k: Positive = 3
    """Passages of a query whose request does not say ``topk``."""
    max_top_k: Positive = 100
    """The largest ``topk`` that is answered."""
    max_batch: Positive = 64
    """Queries that are searched at once. While a batch runs the next one gathers; an idle service waits for nobody."""
    max_waiting: Positive = 4096
    """Queries that may wait; beyond it requests get status 503 at once."""
    cache_entries: int = Field(default=100_000, ge=0)
    """Answers of the most recent queries that are kept; 0 for none."""
    timeout_s: Seconds = 30.0
    """Longest that a request may take to arrive, and to be answered."""

    @model_validator(mode="after")
    def _fits_together(self) -> RetrieverConfig:
        if self.kind == "lexical" and self.dense is not None:
            raise ValueError(
                "dense has no use with kind lexical: set retriever.kind to dense or hybrid, or leave it out"
            )
        if self.kind != "lexical" and self.dense is None:
            self.dense = DenseConfig()
        if self.top_k > self.max_top_k:
            raise ValueError(f"top_k ({self.top_k}) must not be above max_top_k ({self.max_top_k})")
        return self
