"""BM25 over title and text, by tantivy: on disk, built in steps, searched by several threads at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tantivy

from tools.progress import progress
from tools.retrieval.corpus import Corpus
from tools.retrieval.hits import Hits, ranked

log = logging.getLogger("rollway.retriever")

_FIELDS = ("title", "text")
_ANALYZER = "rollway"
#: Memory of the writer, bytes; beyond it a segment goes to disk.
_HEAP = 256_000_000
#: Documents between two commits: what a kill can cost.
COMMIT_ROWS = 50_000
#: Distinct terms of a query that count: a model that rambles must not cost a second.
_MAX_TERMS = 64


def _analyzer(*more: tantivy.Filter) -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    filters = (tantivy.Filter.remove_long(40), tantivy.Filter.lowercase(), tantivy.Filter.ascii_fold(), *more)
    for step in filters:
        builder = builder.filter(step)
    return builder.build()


def _open(folder: Path) -> tantivy.Index:
    builder = tantivy.SchemaBuilder().add_unsigned_field("row", fast=True)
    for field in _FIELDS:
        builder = builder.add_text_field(field, tokenizer_name=_ANALYZER, index_option="freq")
    try:
        index = tantivy.Index(builder.build(), path=str(folder))
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder}: not an index of this version ({error}); delete it to build anew") from None
    index.register_tokenizer(_ANALYZER, _analyzer())
    return index


def build_lexical(folder: Path, corpus: Corpus, commit_rows: int = COMMIT_ROWS) -> None:
    """Index what is not there yet. A commit holds whole documents in their order, so their number is where to go on."""
    folder.mkdir(exist_ok=True)
    index = _open(folder)
    done = index.searcher().num_docs
    if done == len(corpus):
        return
    if done > len(corpus):
        raise ValueError(f"{folder}: holds {done} documents, the corpus {len(corpus)}; delete the folder to build anew")
    writer = index.writer(_HEAP)
    with progress("lexical index", len(corpus), done, log.info) as advance:
        for row in range(done, len(corpus)):
            document = corpus[row]
            entry = tantivy.Document()
            entry.add_unsigned("row", row)
            entry.add_text("title", document.title)
            entry.add_text("text", document.text)
            writer.add_document(entry)
            if (row + 1) % commit_rows == 0:
                writer.commit()
            advance(1)
        writer.commit()
        writer.wait_merging_threads()


class LexicalSearcher:
    """score = BM25 of the title + BM25 of the text (k1 = 1.2, b = 0.75; Robertson and Zaragoza 2009)."""

    def __init__(self, folder: Path):
        self._index = _open(folder)
        self._searcher = self._index.searcher()
        # A search lets go of the interpreter's lock, so a batch uses all cores.
        self._threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "lexical")
        self._all_terms = _analyzer()
        # Stop words are in the index, for titles like "The Who"; a query drops them if it has anything else to say.
        self._content_terms = _analyzer(tantivy.Filter.stopword("english"))

    @property
    def passages(self) -> int:
        return self._searcher.num_docs

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The ``k`` best rows a query; fewer where fewer share a term with it."""
        return list(
            self._threads.map(lambda parsed: self._search(parsed, k), [self._parse(query) for query in queries])
        )

    def _parse(self, query: str) -> tantivy.Query | None:
        """Any of the query's terms, in any field; None where it has none."""
        terms = self._content_terms.analyze(query) or self._all_terms.analyze(query)
        clauses = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._index.schema, field, term, "freq"))
            for term in list(dict.fromkeys(terms))[:_MAX_TERMS]
            for field in _FIELDS
        ]
        return tantivy.Query.boolean_query(clauses) if clauses else None

    def _search(self, query: tantivy.Query | None, k: int) -> Hits:
        if query is None:
            return []
        found = self._searcher.search(query, k, count=False).hits
        rows = self._searcher.fast_field_values("row", [address for _, address in found])
        return ranked(zip(rows, (score for score, _ in found)))
