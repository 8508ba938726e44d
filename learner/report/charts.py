"""Charts as plain data; ``chart.js`` draws them. One run: colours are data sets. Several: colours are runs."""

from __future__ import annotations

from typing import Any

from learner.report.figures import Point, datasets, scores, series, smooth, thin
from learner.report.read import Run
from learner.report.timeline import PHASES, bars

Chart = dict[str, Any]

#: (key of the record, title, what it says, unit, whether the axis starts at 0); drawn where a run has the field.
_CURVES = (
    ("entropy", "Policy entropy", "Nats a token. A fall to zero is a policy that no longer explores.", "nats", True),
    (
        "kl",
        "KL(μ ‖ π)",
        "Between the policy that sampled the tokens and the one trained on them (k1 estimate).",
        "",
        False,
    ),
    ("ratio_ess", "Effective sample size", "Of the importance ratios, as a share; 1 is on-policy.", "", False),
    ("clip_fraction", "Clipped tokens", "Share of action tokens whose ratio left the clip range.", "", True),
    ("grad_norm", "Gradient norm", "Before clipping.", "", False),
    ("loss", "Loss", "Surrogate; its level means little, its jumps do.", "", False),
    (
        "logprob_mismatch_mean",
        "|log π − log μ|",
        "Mean over action tokens: staleness and the engines' difference.",
        "",
        True,
    ),
    ("tokens_per_s", "Throughput", "Tokens trained on, a second of wall time.", "tok/s", True),
    ("turns", "Turns an episode", "Of the policy, on average.", "", False),
    ("truncated", "Cut episodes", "Share that a limit on turns or tokens ended.", "", True),
    (
        "zero_signal_groups",
        "Groups without a signal",
        "All rewards equal: no gradient comes from them.",
        "groups",
        True,
    ),
    ("equal_reward_groups", "Groups of equal rewards", "They teach nothing by themselves.", "groups", True),
    ("groups_in_vain", "Groups taken in vain", "Replaced by dynamic sampling.", "groups", True),
    ("masked_fraction", "Masked tokens", "Share of action tokens that the correction left out of the loss.", "", True),
    ("reference_kl", "KL to the reference", "Between the policy and the one it started from.", "", True),
    (
        "explained_variance",
        "Explained variance",
        "Of the returns by the critic; 1 is perfect, below 0 worse than none.",
        "",
        False,
    ),
    ("value_loss", "Value loss", "Of the critic.", "", True),
    ("tool_faults", "Tool faults", "Failed or malformed calls in the episodes of a step.", "calls", True),
)


def learning(runs: list[Run]) -> list[Chart]:
    """Exact match on held-out questions with its intervals, on training episodes, and reward."""
    held_out = [_held_out(runs[0])] if len(runs) == 1 else [_held_out_of(runs, name) for name in _all_datasets(runs)]
    return [chart for chart in [*held_out, *_training(runs), _reward(runs)] if chart["series"]]


def health(runs: list[Run]) -> list[Chart]:
    """Everything that tells a sound optimisation from a sick one, staleness first."""
    charts = [_staleness(runs), _histogram(runs)]
    for field, title, note, unit, from_zero in _CURVES:
        found = [_line(run.name, i, series(run.steps, field), raw=True) for i, run in enumerate(runs)]
        charts.append(_chart(field, title, note, found, unit=unit, **({"low": 0} if from_zero else {})))
    return [chart for chart in charts if chart["series"]]


def timeline(run: Run) -> Chart | None:
    """Mean seconds a step by phase, along the run."""
    if not run.steps:
        return None
    columns, size = bars(run.steps)
    labels = {"wait": "wait for episodes", "between": "evaluation, checkpoint"}
    stacked = [
        {
            "name": labels.get(name, name),
            "color": f"p-{name}",
            "points": [[c["last"], round(c[name], 4)] for c in columns],
        }
        for name in PHASES
        if any(c[name] for c in columns)
    ]
    note = "Seconds a step, by phase." + (f" One bar is {size} steps." if size > 1 else "")
    return _chart("timeline", "The learner's time", note, stacked, kind="stack", unit="s", zero=True)


def _held_out(run: Run) -> Chart:
    found, refs = [], []
    for i, name in enumerate(datasets(run.evals)):
        found.append(_scored(name, i, scores(run.evals, name)))
        refs += [
            {"y": row["em"], "label": f"{row.get('baseline')}, {name}", "color": f"s{i % 6}"}
            for row in run.baselines
            if str(row.get("dataset")) == name and isinstance(row.get("em"), (int, float))
        ]
    note = "Held-out questions, greedy; bars are 95 % intervals, dashed lines baselines."
    return _chart("em", "Exact match", note, found, refs=refs, low=0, high=1)


def _held_out_of(runs: list[Run], dataset: str) -> Chart:
    found = [_scored(run.name, i, scores(run.evals, dataset)) for i, run in enumerate(runs)]
    note = "Held-out questions, greedy; bars are 95 % intervals."
    return _chart(f"em-{dataset}", f"Exact match, {dataset}", note, found, low=0, high=1)


def _training(runs: list[Run]) -> list[Chart]:
    names = list(dict.fromkeys(name for run in runs for r in run.steps for name in r.get("em") or {}))
    note = "Sampled episodes of each batch, smoothed; the faint line is each step."
    if len(runs) == 1:
        found = [_line(name, i, series(runs[0].steps, "em", name), raw=True) for i, name in enumerate(names)]
        return [_chart("em-train", "Exact match in training", note, found, low=0, high=1)]
    return [
        _chart(
            f"em-train-{name}",
            f"Exact match in training, {name}",
            note,
            [_line(run.name, i, series(run.steps, "em", name), raw=True) for i, run in enumerate(runs)],
            low=0,
            high=1,
        )
        for name in names
    ]


def _reward(runs: list[Run]) -> Chart:
    found = [_line(run.name, i, series(run.steps, "reward"), raw=True) for i, run in enumerate(runs)]
    return _chart("reward", "Reward", "Mean over the episodes of a batch; smoothed, and each step faint.", found)


def _staleness(runs: list[Run]) -> Chart:
    found = [_line(run.name, i, series(run.steps, "staleness_mean"), raw=True) for i, run in enumerate(runs)]
    bounds = {run.config.get("staleness") for run in runs}
    refs = [{"y": bound, "label": f"bound {bound}", "color": "muted"} for bound in sorted(b for b in bounds if b)]
    note = "Versions between sampling and training, mean over action tokens."
    return _chart("staleness", "Staleness", note, found, refs=refs, low=0, unit="versions")


def _histogram(runs: list[Run]) -> Chart:
    found = []
    for i, run in enumerate(runs):
        total = sum(run.staleness.values())
        points = [[age, round(n / total, 5)] for age, n in sorted(run.staleness.items())]
        if points:
            found.append({"name": run.name, "color": f"s{i % 6}", "points": points})
    note = "Groups by the age of their oldest token when they were trained on, from the ledger."
    return _chart("ages", "Staleness of groups", note, found, kind="bars", x="versions old", zero=True, percent=True)


def _line(name: str, index: int, points: list[Point], raw: bool = False) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name, "color": f"s{index % 6}", "mark": index % 5}
    if raw and len(points) >= 40:
        return out | {"points": _short(smooth(points)), "raw": _short(points)}
    return out | {"points": _short(points)}


def _scored(name: str, index: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "color": f"s{index % 6}",
        "mark": index % 5,
        "marks": True,
        "points": [[r["step"], round(r["em"], 5)] for r in rows],
        "bands": [[round(r["low"], 5), round(r["high"], 5)] for r in rows],
    }


def _short(points: list[Point]) -> list[list[float]]:
    """Six significant digits: the file stays small, the picture the same."""
    return [[x, float(f"{y:.6g}")] for x, y in thin(points)]


def _chart(id_: str, title: str, note: str, found: list[dict[str, Any]], **options: Any) -> Chart:
    """kind, unit, refs, low, high (least range of the y-axis), zero (y starts at 0), x (title of the x-axis), percent."""
    drawn = [s for s in found if s["points"]]
    return {"id": id_, "title": title, "note": note, "kind": "line", "x": "step", "series": drawn, **options}


def _all_datasets(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in datasets(run.evals)))
