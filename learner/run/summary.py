"""What a run comes to: sums over its steps, kept with every checkpoint, and ``summary.json`` from them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from learner.dashboard import theme
from learner.dashboard.format import DASH, clean, clock, compact, count, finite, score, seconds, share, small

if TYPE_CHECKING:
    from learner.weights.push import PushReport

_SCORES = ("em", "f1", "sub_em", "n")


@dataclass
class Mean:
    """A weighted mean with its maximum."""

    total: float = 0.0
    weight: float = 0.0
    max: float | None = None

    def add(self, mean: Any, weight: Any, largest: Any = None) -> None:
        """What is not a finite number was not measured and does not count."""
        mean, weight, largest = finite(mean), finite(weight), finite(largest)
        if mean is not None and weight:
            self.total += mean * weight
            self.weight += weight
        if largest is not None:
            self.max = largest if self.max is None else max(self.max, largest)

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight else None


@dataclass
class Sums:
    """Everything that a resumed run has to remember, as plain values."""

    steps: int = 0
    episodes: int = 0
    tokens: int = 0
    action_tokens: int = 0
    update_s: float = 0.0
    elapsed_s: float = 0.0
    train_s: float = 0.0
    staleness: Mean = field(default_factory=Mean)
    mismatch: Mean = field(default_factory=Mean)
    push: Mean = field(default_factory=Mean)
    train_datasets: list[str] = field(default_factory=list)


class Summary:
    """Accumulates over the run. evals, baselines: records of {version, dataset, em, f1, sub_em, n}."""

    def __init__(self) -> None:
        self.evals: list[dict[str, Any]] = []
        self.baselines: list[dict[str, Any]] = []
        self._sums = Sums()
        self._began = time.monotonic()
        self._training: float | None = None

    def elapsed(self) -> float:
        """Seconds of the run, earlier parts included."""
        return self._sums.elapsed_s + time.monotonic() - self._began

    def training_started(self) -> None:
        self._training = time.monotonic()

    def training_ended(self) -> None:
        self._sums.train_s, self._training = self._trained_s(), None

    def add_step(self, record: dict[str, Any]) -> None:
        """Means over tokens weigh each step by its action tokens."""
        sums, spent = self._sums, record.get("seconds") or {}
        sums.steps += 1
        sums.episodes += int(finite(record.get("episodes")) or 0)
        sums.tokens += int(finite(record.get("tokens")) or 0)
        sums.action_tokens += int(finite(record.get("action_tokens")) or 0)
        sums.update_s += finite(spent.get("update")) or 0.0
        weight = record.get("action_tokens")
        sums.staleness.add(record.get("staleness_mean"), weight, record.get("staleness_max"))
        sums.train_datasets += [name for name in record.get("em") or {} if name not in sums.train_datasets]

    def add_mismatch(self, gaps: Iterable[float]) -> None:
        """|log π − log μ| of tokens that the learner's own version sampled: what the two engines differ by."""
        for gap in gaps:
            self._sums.mismatch.add(gap, 1, gap)

    def add_push(self, report: PushReport) -> None:
        """A push counts once it reached a server; its time is the slowest server's."""
        record = report.as_record()
        if record["servers"]:
            self._sums.push.add(record["seconds"], 1, record["seconds"])

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint; ``restore`` goes on from them."""
        sums = asdict(self._sums) | {"elapsed_s": self.elapsed(), "train_s": self._trained_s()}
        return {"sums": sums, "evals": self.evals, "baselines": self.baselines}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Summary:
        summary, sums = cls(), dict(state["sums"])
        means = {name: Mean(**sums.pop(name)) for name in ("staleness", "mismatch", "push")}
        summary._sums = Sums(**sums, **means)
        summary.evals, summary.baselines = list(state["evals"]), list(state["baselines"])
        return summary

    def as_dict(self, ledger: dict[str, int]) -> dict[str, Any]:
        """``summary.json``. ledger: the audit, {consumed, duplicates, lost, stale_dropped}; times in seconds.

        What was never measured is None. ``learner_busy_fraction`` is the update's share of
        the training time, evaluations and checkpoints included.
        """
        sums, trained = self._sums, self._trained_s()
        return {
            "eval": [{key: row.get(key) for key in ("version", "dataset", *_SCORES)} for row in self.evals],
            "baselines": [{key: row.get(key) for key in ("baseline", "dataset", *_SCORES)} for row in self.baselines],
            "train_datasets": sums.train_datasets,
            "wall_s": self.elapsed(),
            "train_s": trained,
            "steps": sums.steps,
            "episodes": sums.episodes,
            "tokens_trained": sums.tokens,
            "action_tokens_trained": sums.action_tokens,
            "tokens_per_s": sums.tokens / trained if trained else None,
            "ledger": dict(ledger),
            "staleness": {"mean": sums.staleness.value, "max": sums.staleness.max},
            "logprob_mismatch": {"mean": sums.mismatch.value, "max": sums.mismatch.max},
            "weight_sync": {"count": int(sums.push.weight), "mean_s": sums.push.value, "max_s": sums.push.max},
            "learner_busy_fraction": sums.update_s / trained if trained else None,
        }

    def _trained_s(self) -> float:
        running = time.monotonic() - self._training if self._training is not None else 0.0
        return self._sums.train_s + running


def summary_table(summary: dict[str, Any]) -> Group:
    """For the end of a run: EM by data set before and after, baselines beside them, and how the run got there."""
    evals, rivals = summary["eval"], summary["baselines"]
    names = _unique(row["dataset"] for row in evals)
    trained = [name for name in names if name in summary["train_datasets"]]
    baselines = _unique(row["baseline"] for row in rivals)
    ratio = ["ratio"] if baselines else []
    table = _table("exact match", "before", "after", "gain", *baselines, *ratio, "F1", "sub-EM", "n")
    for name in names:
        label = clean(name) + ("" if name in trained else " *")
        table.add_row(label, *_compare(evals, rivals, [name], baselines))
    if len(trained) > 1:
        table.add_row("mean, trained", *_compare(evals, rivals, trained, baselines), style=theme.BOLD)
    if len(names) > max(1, len(trained)):
        table.add_row("mean, all", *_compare(evals, rivals, names, baselines))
    note = "* never trained on" if len(names) > len(trained) else ""
    return Group(Text("The run in figures", style=theme.TITLE), table, Text(note, style=theme.DIM), *_facts(summary))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=theme.DIM)
    table.add_column(first, no_wrap=True)
    for title in others:
        table.add_column(clean(title), justify="right", no_wrap=True)
    return table


def _compare(evals: list[dict], rivals: list[dict], names: list[str], baselines: list[str]) -> list[str | Text]:
    """Cells of one line: scores averaged over the data sets ``names``, the first version against the last."""
    rows = [[row for row in evals if row["dataset"] == name] for name in names]
    first, last = [found[0] for found in rows], [found[-1] for found in rows]
    before, after = _average(first, "em"), _average(last, "em")
    levels = [
        _average([row for row in rivals if row["baseline"] == baseline and row["dataset"] in names], "em")
        for baseline in baselines
    ]
    gain = after - before if before is not None and after is not None and first != last else None
    ratio = f"{after / levels[0]:.1f}×" if levels and levels[0] and after is not None else DASH
    return [
        score(before, 3),
        Text(score(after, 3), style=theme.BOLD),
        Text(f"+{gain:.3f}" if gain and gain > 0 else score(gain, 3), style=theme.GOOD if gain and gain > 0 else ""),
        *(score(level, 3) for level in levels),
        *([ratio] if baselines else []),
        score(_average(last, "f1"), 3),
        score(_average(last, "sub_em"), 3),
        count(sum(row["n"] or 0 for row in last)),
    ]


def _facts(summary: dict[str, Any]) -> list[Text]:
    s, ledger, sync = summary, summary["ledger"], summary["weight_sync"]
    copies = ledger.get("duplicates")  # groups that came again, as after a lost acknowledgement, and were thrown away
    lines = {
        "run": f"{count(s['steps'])} steps in {clock(s['wall_s'])} · {count(s['episodes'])} episodes · "
        f"{compact(s['tokens_trained'])} tokens, {compact(s['tokens_per_s'])} tok/s · "
        f"learner busy {share(s['learner_busy_fraction'])}",
        "ledger": f"{count(ledger.get('consumed'))} groups trained on · {count(ledger.get('lost'))} lost · "
        f"{f'{count(copies)} came twice, used once' if copies else '0 twice'} · {count(ledger.get('stale_dropped'))} too stale, made again",
        "staleness": f"mean {score(s['staleness']['mean'])} · max {compact(s['staleness']['max'])} versions",
        "engines": f"|log π − log μ| of one version: mean {small(s['logprob_mismatch']['mean'])} · max {small(s['logprob_mismatch']['max'])}",
        "weights": f"{count(sync['count'])} pushes · mean {seconds(sync['mean_s'])} · longest {seconds(sync['max_s'])}",
    }
    style = {"ledger": theme.BAD if ledger.get("lost") else ""}
    return [Text.assemble((f"{name:<11}", theme.DIM), (text, style.get(name, ""))) for name, text in lines.items()]


def _average(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [value for row in rows if (value := finite(row.get(key))) is not None]
    return sum(values) / len(values) if values else None


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
