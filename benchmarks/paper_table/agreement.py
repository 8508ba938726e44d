"""In which respects our order is the paper's: every verdict is computed from the figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from benchmarks.paper_table.methods import ALGORITHMS, BASELINES, DATASETS, METHODS, TABLE3
from benchmarks.paper_table.results import AVERAGE, COLUMNS, Figure, Result, above, figures

YES, NO, CLOSE = "yes", "**no**", "too close to tell"


@dataclass(frozen=True)
class Respect:
    """One line: what is compared, what the paper found, what we did, whether that agrees."""

    what: str
    paper: str
    ours: str
    verdict: str


@dataclass(frozen=True)
class Order:
    """Pairs of methods in one column, ties of the paper left out. ``against``: those that clearly disagree."""

    column: str
    agree: int
    disagree: int
    clear: int
    against: tuple[str, ...]

    @property
    def tau(self) -> float:
        """Kendall's rank correlation of the two orders."""
        return (self.agree - self.disagree) / (self.agree + self.disagree)


def paper_value(method: str, column: str) -> float:
    found = METHODS[method]
    return found.average if column == AVERAGE else found.paper[column]


def orders(results: list[Result]) -> list[Order]:
    """For each column of Table 3 with at least two methods: how many pairs stand in the paper's order."""
    found = []
    for column in COLUMNS:
        ours = {m: f for m, f in figures(results, column).items() if m in TABLE3}
        agree, disagree, clear, against = 0, 0, 0, []
        for a, b in combinations([m for m in TABLE3 if m in ours], 2):
            high, low = (a, b) if paper_value(a, column) > paper_value(b, column) else (b, a)
            if paper_value(a, column) == paper_value(b, column) or ours[a].mean == ours[b].mean:
                continue
            right, told = ours[high].mean > ours[low].mean, above(ours[high], ours[low]) is not None
            agree, disagree, clear = agree + right, disagree + (not right), clear + told
            if told and not right:
                against.append(f"{METHODS[low].title} above {METHODS[high].title}")
        if agree + disagree:
            found.append(Order(column, agree, disagree, clear, tuple(against)))
    return found


def respects(results: list[Result]) -> list[Respect]:
    """The paper's findings, one by one, as far as there are figures for them."""
    return [found for part in (_over_baselines, _extremes, _ratios, _masks) for found in part(results)]


def _over_baselines(results: list[Result]) -> Iterator[Respect]:
    for column in DATASETS:
        ours = figures(results, column)
        pairs = [(a, b) for a in ALGORITHMS for b in BASELINES if a in ours and b in ours]
        if not pairs:
            continue
        short = [f"{METHODS[a].title} not above {METHODS[b].title}" for a, b in pairs if ours[a].mean <= ours[b].mean]
        said = f"{len(pairs) - len(short)} of {len(pairs)} pairs" + (f" ({'; '.join(short)})" if short else "")
        verdict = _verdict([above(ours[a], ours[b]) for a, b in pairs])
        yield Respect(f"every RL algorithm above both baselines, {column}", "all pairs", said, verdict)


def _extremes(results: list[Result]) -> Iterator[Respect]:
    ours = {m: f for m, f in figures(results, AVERAGE).items() if m in ALGORITHMS}
    if len(ours) == len(ALGORITHMS):
        for what, sign in (("best", 1), ("weakest", -1)):
            paper = max(ours, key=lambda m: sign * METHODS[m].average)
            found = max(ours, key=lambda m: sign * ours[m].mean)
            rest = [f for m, f in ours.items() if m != paper]
            verdict = _verdict([above(ours[paper], f) if sign > 0 else above(f, ours[paper]) for f in rest])
            yield Respect(f"{what} RL algorithm on average", METHODS[paper].title, METHODS[found].title, verdict)
    base = figures(results, AVERAGE)
    if set(BASELINES) <= set(base):
        yield _difference("Naive RAG above Base Tool Call on average", "naive_rag", "base_tool_call", base)


def _ratios(results: list[Result]) -> Iterator[Respect]:
    ours = figures(results, AVERAGE)
    for baseline in BASELINES:
        if {"grpo", baseline} <= set(ours):
            paper = METHODS["grpo"].average / METHODS[baseline].average
            top, bottom = ours["grpo"].mean, ours[baseline].mean
            said = f"{top / bottom:.1f} times" if bottom else f"{top:.3f} against 0"
            # Means decide: as many digits as the paper gives its ratio.
            reached = top > 0 if not bottom else round(top / bottom, 1) >= round(paper, 1)
            yield Respect(
                f"GRPO over {METHODS[baseline].title} on average, at least the paper's ratio",
                f"{paper:.1f} times",
                said,
                YES if reached else NO,
            )


def _masks(results: list[Result]) -> Iterator[Respect]:
    ours = figures(results, AVERAGE)
    for what, high, low in (
        ("PPO loses without the advantage mask", "ppo", "ppo_no_advantage_mask"),
        ("PPO loses further without the loss mask", "ppo_no_advantage_mask", "ppo_no_masks"),
        ("GRPO loses without the loss mask", "grpo", "grpo_no_loss_mask"),
    ):
        if {high, low} <= set(ours):
            yield _difference(what, high, low, ours)


def _difference(what: str, high: str, low: str, ours: dict[str, Figure]) -> Respect:
    paper = METHODS[high].average - METHODS[low].average
    found = ours[high].mean - ours[low].mean
    return Respect(what, f"{paper:+.3f}", f"{found:+.3f}", _verdict([above(ours[high], ours[low])]))


def _verdict(told: Iterable[bool | None]) -> str:
    """All True: yes. Any False: no. Else too close."""
    told = list(told)
    return NO if False in told else CLOSE if None in told else YES
