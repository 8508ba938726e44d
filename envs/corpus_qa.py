"""Question answering over your own corpus and questions, with one search tool.

``corpus``: JSONL, a line a passage: {"id", "title", "text"}. Question files: JSON or JSONL in
HotpotQA's official form ({"_id", "question", "answer", "supporting_facts": [[title, n], …]}) or the
plain one ({"id", "question", "answers": […], "titles": […]}; ``titles`` may be missing).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from envs.search_qa import SearchQA
from tools.search import SearchTool
from tools.search_index import Passage, SearchIndex


class CorpusQA(SearchQA):
    """``env.args``: corpus, files {split: {data set: path}}, and the options of ``setup``."""

    corpus: ClassVar[str]
    files: ClassVar[dict[str, dict[str, str]]]

    @classmethod
    def setup(
        cls,
        corpus: str,
        files: dict[str, dict[str, str]],
        top_k: int = 5,
        process_reward: float = 0.1,
        format_weight: float = 1.0,
        instructions: str = "",
    ) -> None:
        """Options as in ``MultiHopQA``. Raises ``ValueError`` for a file that is not there and a bad passage."""
        cls.corpus, cls.files, cls.top_k, cls.instructions = corpus, files, top_k, instructions
        cls.process_weight, cls.format_weight = process_reward, format_weight
        for path in [corpus, *(path for sets in files.values() for path in sets.values())]:
            if not Path(path).is_file():
                raise ValueError(f"env.args: no such file {path}")
        read_corpus(corpus)  # a bad line is better told now than by the first search

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        try:
            path = cls.files[split][dataset]
        except KeyError:
            raise ValueError(f"env.args.files has no {split} file for the data set {dataset!r}") from None
        return [_task(row, where, split) for where, row in _rows(path)][:limit]

    @classmethod
    def search_tool(cls, task: dict[str, Any]) -> SearchTool:
        return _search_tool(cls.corpus, cls.top_k)


@lru_cache(maxsize=4)
def _search_tool(corpus: str, top_k: int) -> SearchTool:
    return SearchTool(SearchIndex(read_corpus(corpus)), top_k)


@lru_cache(maxsize=4)
def read_corpus(path: str) -> list[Passage]:
    """All passages of a JSONL file. Raises ``ValueError`` naming file and line of the first bad one."""
    passages = []
    for where, row in _rows(path):
        fields = [row.get(name) for name in ("id", "title", "text")]
        if not all(isinstance(value, (str, int)) for value in fields):
            raise ValueError(f"{where}: a passage needs id, title and text")
        passages.append(Passage(*map(str, fields)))
    return passages


def _task(row: dict[str, Any], where: str, split: str) -> dict[str, Any]:
    answers = row.get("answers", [row["answer"]] if "answer" in row else [])
    titles = row.get("titles", [title for title, _ in row.get("supporting_facts", [])])
    name, question = row.get("_id", row.get("id")), row.get("question")
    if name is None or not question or not answers or not all(isinstance(a, str) for a in answers):
        raise ValueError(f"{where}: a question needs an id, a question and at least one answer (text)")
    return {
        "id": str(name),
        "split": split,
        "question": question,
        "answers": answers,
        "gold_titles": list(dict.fromkeys(titles)),
    }


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of a JSONL file or a JSON list; the place is for error messages."""
    with Path(path).open(encoding="utf-8") as file:
        if file.read(1) == "[":
            file.seek(0)
            try:
                rows = json.load(file)
            except ValueError as error:
                raise ValueError(f"{path}: not valid JSON ({error})") from None
            yield from ((f"{path}: row {number}", row) for number, row in enumerate(rows, start=1))
            return
        file.seek(0)
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not valid JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number}: want an object, got {type(row).__name__}")
            yield f"{path}:{number}", row
