"""Scores of a short answer against its gold aliases: strict EM, token F1, substring match.

Normalisation and F1 are those of the SQuAD evaluation script (Rajpurkar et al. 2016):
lower case, no punctuation, no articles, single spaces. Each score is the best over the
aliases. Pure functions; an empty list of aliases scores 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


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


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))
