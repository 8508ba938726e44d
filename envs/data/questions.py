"""Questions to search for: HotpotQA, 2WikiMultihopQA, MuSiQue, and a plain form for one's own.

A row tells by its fields what it is. The columns that the hub has for the same data sets are understood,
as are fields that hold their JSON as a string, which Parquet files often do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from envs.data.loading import BadRow, BadRows, Text, load, validate
from envs.data.rows import read_rows
from envs.data.source import Source


class QuestionSource(Source):
    """A source of questions."""

    aliases: str | None = None
    """2WikiMultihopQA's ``id_aliases.json``: further accepted answers, found by a row's ``answer_id``."""


@dataclass(frozen=True)
class Question:
    """answers: accepted strings, the main one first. titles: supporting passages, each once; may be empty.
    context: (title, text) of the paragraphs that came with it, if they were asked for."""

    id: str
    question: str
    answers: tuple[str, ...]
    titles: tuple[str, ...]
    context: tuple[tuple[str, str], ...] = ()


@lru_cache(maxsize=32)
def load_questions(source: QuestionSource, bad_rows: BadRows, contexts: bool = False) -> tuple[Question, ...]:
    """All questions of a source, in order. contexts: keep the paragraphs, which are most of its size.

    Raises ``ValueError``; see ``envs.data.loading``.
    """
    aliases = _read_aliases(source.aliases) if source.aliases else {}

    def convert(row: dict[str, Any], number: int) -> Question:
        question = _FORMATS[_format(row)](row, aliases)
        return question if contexts else replace(question, context=())

    return load(source, read_rows(source), convert, bad_rows)


class _Row(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: Text = Field(validation_alias=AliasChoices("id", "_id"))
    question: Text = Field(validation_alias=AliasChoices("question", "Question"))


class _HotpotRow(_Row):
    """HotpotQA (Yang et al. 2018) and, in the same form, 2WikiMultihopQA (Ho et al. 2020)."""

    answer: Text
    answer_id: str | None = None
    supporting_facts: list[tuple[Text, int]]
    context: list[tuple[Text, list[str]]] = []

    @field_validator("supporting_facts", "context", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        """The hub keeps two columns where the official files have pairs."""
        value = _parsed(value)
        if isinstance(value, dict) and "title" in value:
            [other] = [column for name, column in value.items() if name != "title"] or [None]
            value = list(zip(value["title"], other or [], strict=True))
        return value


class _AliasRow(BaseModel):
    Q_id: str
    aliases: list[str] = []
    demonyms: list[str] = []


class _Paragraph(BaseModel):
    title: Text
    paragraph_text: str
    is_supporting: bool


class _MusiqueRow(_Row):
    """MuSiQue (Trivedi et al. 2022)."""

    answer: Text
    answer_aliases: list[str] = []
    answerable: bool = True
    paragraphs: list[_Paragraph]


class _PlainRow(_Row):
    """One's own; ``golden_answers`` is FlashRAG's and Search-R1's name for ``answers``."""

    answers: list[Text] = Field(validation_alias=AliasChoices("answers", "golden_answers", "answer"), min_length=1)
    titles: list[Text] = []

    @field_validator("answers", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]


def _format(row: dict[str, Any]) -> str:
    return "musique" if "paragraphs" in row else "hotpot" if "supporting_facts" in row else "plain"


def _hotpot(row: dict[str, Any], aliases: dict[str, list[str]]) -> Question:
    fields = validate(_HotpotRow, row, "a question")
    if aliases and fields.answer_id is None:
        raise BadRow("aliases are given, but it has no answer_id; use 2WikiMultihopQA's release with ids")
    context = [(title, " ".join(s.strip() for s in sentences)) for title, sentences in fields.context]
    answers = [fields.answer, *aliases.get(fields.answer_id, ())]
    return _question(fields, answers, [title for title, _ in fields.supporting_facts], context)


def _musique(row: dict[str, Any], _: dict[str, list[str]]) -> Question:
    fields = validate(_MusiqueRow, row, "a question")
    if not fields.answerable:
        raise BadRow("not answerable from its paragraphs (answerable: false)")
    titles = [paragraph.title for paragraph in fields.paragraphs if paragraph.is_supporting]
    context = [(paragraph.title, paragraph.paragraph_text) for paragraph in fields.paragraphs]
    return _question(fields, [fields.answer, *fields.answer_aliases], titles, context)


def _plain(row: dict[str, Any], _: dict[str, list[str]]) -> Question:
    fields = validate(_PlainRow, row, "a question")
    return _question(fields, fields.answers, fields.titles, [])


_FORMATS = {"hotpot": _hotpot, "musique": _musique, "plain": _plain}


def _question(row: _Row, answers: list[str], titles: list[str], context: list[tuple[str, str]]) -> Question:
    answers = [answer.strip() for answer in answers if answer.strip()]
    return Question(row.id, row.question, _once(answers), _once(titles), tuple(context))


def _read_aliases(path: str) -> dict[str, list[str]]:
    """Wikidata id → names, as 2WikiMultihopQA's own evaluation script takes them (aliases and demonyms)."""
    aliases = {}
    for where, row in read_rows(Source(path=path)):
        try:
            if isinstance(row, BadRow):
                raise row
            fields = validate(_AliasRow, row, "a line of id_aliases.json")
        except BadRow as bad:
            raise ValueError(f"{where}: {bad}") from None
        aliases[fields.Q_id] = [*fields.aliases, *fields.demonyms]
    return aliases


def _once(values: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _parsed(value: Any) -> Any:
    """Fields that hold JSON as a string."""
    return json.loads(value) if isinstance(value, str) else value
