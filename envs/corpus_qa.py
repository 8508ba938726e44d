"""Question answering over your own corpus and questions, with one search tool."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from envs.data.corpus import context_corpus, read_corpus
from envs.data.loading import BadRows
from envs.data.questions import QuestionSource, load_questions
from envs.data.source import Catalogue
from envs.search_qa import SearchQA
from tools.base import Tool
from tools.registry import ToolSpec, load_tool
from tools.search import SearchTool
from tools.search_index import Passage, SearchIndex


class CorpusQA(SearchQA):
    """HotpotQA, 2WikiMultihopQA, MuSiQue or questions of your own; see ``envs.data.questions``."""

    catalogue: ClassVar[Catalogue[QuestionSource]]
    corpus: ClassVar[str | None]

    @classmethod
    def setup(
        cls,
        files: dict[str, Any],
        corpus: str | None = None,
        retriever: str | dict[str, Any] | None = None,
        bad_rows: str = "fatal",
        top_k: int = 5,
        process_reward: float = 0.1,
        format_weight: float = 1.0,
        instructions: str = "",
    ) -> None:
        """
        files, bad_rows: see ``envs.data.source``. corpus: file of passages (``envs.data.corpus``); without it,
        all context paragraphs of all files are searched. retriever: search a retrieval service instead: its URL, or
        {"url": …} with other arguments of ``RemoteSearch``. The other options are as in ``MultiHopQA``.
        Raises ``ValueError``, also for a corpus that is not there or has a bad passage.
        """
        if retriever is not None and corpus is not None:
            raise ValueError(
                "env.args.corpus and env.args.retriever exclude each other: the service has its own corpus"
            )
        cls.catalogue, cls.corpus = Catalogue(files, QuestionSource, bad_rows), corpus
        cls.top_k, cls.instructions = top_k, instructions
        cls.process_weight, cls.format_weight = process_reward, format_weight
        if retriever is not None:
            options = {"url": retriever} if isinstance(retriever, str) else retriever
            cls.shared = [load_tool(ToolSpec(path="search", args={"top_k": top_k, **options}))]
        else:
            _passages(*cls._corpus_key())  # a bad line is better told now than by the first search

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        questions = load_questions(cls.catalogue.source(split, dataset), cls.catalogue.bad_rows)
        return [
            {
                "id": question.id,
                "split": split,
                "question": question.question,
                "answers": list(question.answers),
                "gold_titles": list(question.titles),
            }
            for question in questions[:limit]
        ]

    @classmethod
    def search_tool(cls, task: dict[str, Any]) -> Tool:
        return cls.shared[0] if cls.shared else _search_tool(cls.top_k, *cls._corpus_key())

    @classmethod
    def _corpus_key(cls) -> tuple[str | None, tuple[QuestionSource, ...], BadRows]:
        return cls.corpus, () if cls.corpus else cls.catalogue.sources(), cls.catalogue.bad_rows


@lru_cache(maxsize=4)
def _search_tool(top_k: int, corpus: str | None, sources: tuple[QuestionSource, ...], bad_rows: BadRows) -> SearchTool:
    return SearchTool(SearchIndex(_passages(corpus, sources, bad_rows)), top_k)


def _passages(corpus: str | None, sources: tuple[QuestionSource, ...], bad_rows: BadRows) -> tuple[Passage, ...]:
    return read_corpus(corpus, bad_rows) if corpus else context_corpus(sources, bad_rows)
