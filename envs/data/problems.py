"""Word problems with one number as the answer: GSM8K (Cobbe et al. 2021) and whatever has its form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from envs.data.loading import BadRow, BadRows, Text, load, validate
from envs.data.rows import read_rows
from envs.data.source import Source
from envs.scoring import parse_number


@dataclass(frozen=True)
class Problem:
    """id: the row's number in its source; the official rows have none. answer: the final number, as written."""

    id: str
    question: str
    answer: str


@lru_cache(maxsize=32)
def load_problems(source: Source, bad_rows: BadRows) -> tuple[Problem, ...]:
    """All problems of a source, in order. Raises ``ValueError``; see ``envs.data.loading``."""
    return load(source, read_rows(source), _problem, bad_rows)


class _ProblemRow(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    question: Text
    answer: Text


def _problem(row: dict[str, Any], number: int) -> Problem:
    fields = validate(_ProblemRow, row, "a problem")
    answer = fields.answer.rpartition("####")[2].strip()  # without the mark, the answer is the number itself
    if parse_number(answer) is None:
        raise BadRow("a problem needs an answer that is one number, or ends with #### and one")
    return Problem(str(number), fields.question, answer)
