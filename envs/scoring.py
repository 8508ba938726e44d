"""Scores of a short answer against its gold aliases: strict EM, token F1, substring match; and of a number.

Normalisation and F1 are those of the SQuAD evaluation script (Rajpurkar et al. 2016):
lower case, no punctuation, no articles, single spaces. Each score is the best over the
aliases. Pure functions; an empty list of aliases scores 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Digits with or without separators of thousands. What does not fit, such as 1,23, falls apart into several.
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|[-+]?\.\d+", re.ASCII)


def normalise(text: str) -> str:
    text = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(text.split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """1.0 if the normalised answer equals a normalised alias, else 0.0."""
    return float(any(normalise(answer) == normalise(gold) for gold in golds))


def f1(answer: str, golds: Sequence[str]) -> float:
    """Harmonic mean of token precision and recall, in [0, 1]."""
    return max((_f1(normalise(answer).split(), normalise(gold).split()) for gold in golds), default=0.0)


def substring_match(answer: str, golds: Sequence[str]) -> float:
    """1.0 if a normalised alias is a substring of the normalised answer: what Agent-R1's code reports as EM."""
    return float(any(gold in normalise(answer) for gold in map(normalise, golds) if gold))


def number_match(answer: str, gold: str) -> float:
    """1.0 if both are the same number (18, $18.00 and 18 eggs are), else 0.0. gold: see ``parse_number``."""
    number = parse_number(answer)
    return float(number is not None and number == parse_number(gold))


def parse_number(text: str) -> Decimal | None:
    """The one number of a text; None where there is none, or several, since a hedge is no answer."""
    found = _NUMBER.findall(text.replace("$", "").replace("−", "-"))
    return Decimal(found[0].replace(",", "")) if len(found) == 1 else None


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))
