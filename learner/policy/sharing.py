"""Tokens that several sequences of a micro-batch begin with go through the model once.

The episodes of a group have their prompt in common, and all of a run's begin with the same
instructions and tool schemas. In a causal model the hidden state of a token depends on the
tokens up to it only, so equal beginnings have equal states, and the gradient of a shared
state is the sum over the sequences that it belongs to: exact, not an approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Sharing:
    """The M of N packed tokens that go through the model, and where the states of all N are found.

    keep: int64 [M], places among the N, ascending. expand: int64 [N], places among the M.
    """

    keep: np.ndarray
    expand: np.ndarray


def share(sequences: Sequence[np.ndarray]) -> Sharing:
    """What packed ``sequences`` (token ids, [T] each) have to compute.

    Each is compared with the one before: rows of a group stand side by side.
    """
    keep, expand = [], []
    before, states = np.zeros(0, np.int64), np.zeros(0, np.int64)
    start = computed = 0
    for ids in sequences:
        common = common_prefix(before, ids)
        fresh = len(ids) - common
        states = np.concatenate([states[:common], np.arange(computed, computed + fresh)])
        keep.append(np.arange(start + common, start + len(ids)))
        expand.append(states)
        before = ids
        start, computed = start + len(ids), computed + fresh
    return Sharing(np.concatenate(keep), np.concatenate(expand))


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of tokens that two sequences begin with alike."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length
