"""Passages to search: a corpus of one's own, or the paragraphs that come with the questions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from envs.data.loading import BadRow, BadRows, Text, load, validate
from envs.data.questions import QuestionSource, load_questions
from envs.data.rows import read_rows
from envs.data.source import Source
from tools.search_index import Passage


class _PassageRow(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: Text
    title: str
    text: str


@lru_cache(maxsize=4)
def read_corpus(path: str, bad_rows: BadRows = "fatal") -> tuple[Passage, ...]:
    """All passages of a file: ``{"id", "title", "text"}`` or ``{"id", "contents"}`` (title on the first line) a row.

    Raises ``ValueError`` naming file and line of a bad passage, if those are fatal.
    """
    return load(path, read_rows(Source(path=path)), _passage, bad_rows)


@lru_cache(maxsize=4)
def context_corpus(sources: tuple[QuestionSource, ...], bad_rows: BadRows) -> tuple[Passage, ...]:
    """The context paragraphs of all rows of all sources, each once. Raises ``ValueError`` if there are none."""
    contexts = [context for source in sources for context in load_questions(source, bad_rows, contexts=True)]
    paragraphs = dict.fromkeys(paragraph for question in contexts for paragraph in question.context)
    if not paragraphs:
        names = ", ".join(map(str, sources))
        raise ValueError(f"env.args.corpus is not set, and no row of {names} has context paragraphs to search")
    return tuple(Passage(str(number), title, text) for number, (title, text) in enumerate(paragraphs))


def _passage(row: dict[str, Any], number: int) -> Passage:
    if "contents" in row and "text" not in row:
        if not isinstance(row["contents"], str):
            raise BadRow("a passage needs contents: Input should be a valid string")
        title, _, text = row["contents"].partition("\n")
        row = {"id": row.get("id"), "title": title.strip().strip('"'), "text": text}
    return Passage(**validate(_PassageRow, row, "a passage").model_dump())
