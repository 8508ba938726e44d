"""What the finished cells measured: exact match by method and seed, with mean and spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cells import Cell, finished, scores
from benchmarks.paper_table.methods import DATASETS, METHODS

#: The column beside the data sets: the mean over them, of each seed.
AVERAGE = "average"
COLUMNS = (*DATASETS, AVERAGE)


@dataclass(frozen=True)
class Result:
    """One finished cell. ``start``: scores of version 0, of the policy that training began with."""

    method: str
    seed: int
    episodes: int
    em: dict[str, float]
    start: dict[str, float]

    def value(self, column: str) -> float:
        return statistics.fmean(self.em.values()) if column == AVERAGE else self.em[column]

    def as_dict(self) -> dict[str, Any]:
        return {"method": self.method, "seed": self.seed, "episodes": self.episodes, "em": self.em}


@dataclass(frozen=True)
class Figure:
    """A mean over seeds. ``spread``: the sample standard deviation, None for a single seed."""

    mean: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + (f" ± {self.spread:.3f}" if self.spread is not None else "")


def collect(cells: Iterable[Cell]) -> list[Result]:
    """Results of the cells that are done. An untrained method's are those of version 0, after no episode."""
    found = []
    for cell in cells:
        if summary := finished(cell):
            trained = METHODS[cell.method].trained
            start = scores(summary, 0)
            em = scores(summary, cell.config.run.steps) if trained else start
            em = {name: em[name] for name in DATASETS}
            found.append(Result(cell.method, cell.seed, summary["episodes"] if trained else 0, em, start))
    return found


def figures(results: Iterable[Result], column: str) -> dict[str, Figure]:
    """Mean and spread of one column, by method; only methods with a result."""
    values: dict[str, list[float]] = {}
    for result in results:
        values.setdefault(result.method, []).append(result.value(column))
    return {method: Figure.of(found) for method, found in values.items()}


def above(a: Figure, b: Figure) -> bool | None:
    """Whether ``a`` is above ``b``; None where the difference is within two standard errors (Welch 1947).

    Two single seeds cannot be told apart: nothing is known of their noise.
    """
    if a.spread is None or b.spread is None:
        return None
    error = (a.spread**2 / a.seeds + b.spread**2 / b.seeds) ** 0.5
    if abs(a.mean - b.mean) <= 2 * error:
        return None
    return a.mean > b.mean
