"""The tables of the report: headline figures, scores, the ledger's audit, configurations and what differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from configs.schema import Config
from learner.dashboard.format import DASH, clock, compact, count, finite, score, seconds, share, small
from learner.report.figures import datasets, scores, weighted
from learner.report.read import Run

_ABSENT = "(not set)"


@dataclass(frozen=True)
class Tile:
    """tone: "", "good" or "bad"."""

    label: str
    value: str
    sub: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Row:
    """cells: one a run. differs: True where they are not all the same."""

    name: str
    cells: list[str]
    differs: bool = False


def status(run: Run) -> tuple[str, str]:
    """(word, tone)."""
    return ("finished", "good") if run.summary else ("unfinished", "warn")


def tiles(run: Run) -> list[Tile]:
    """What a person asks first: did it learn, how fast, how stale, is every group accounted for."""
    steps, planned = len(run.steps), (run.config.get("run") or {}).get("steps")
    last = run.steps[-1] if run.steps else {}
    episodes = sum(finite(r.get("episodes")) or 0.0 for r in run.steps)
    tokens = sum(finite(r.get("tokens")) or 0.0 for r in run.steps)
    worst = max((finite(r.get("staleness_max")) or 0.0 for r in run.steps), default=None)
    wall = (run.summary or {}).get("wall_s") or last.get("time_s")
    found = [_em_tile(run, name) for name in datasets(run.evals)]
    found += [
        Tile("steps", count(steps), f"of {count(planned)} planned · {clock(wall)}"),
        Tile("tokens a second", compact(speed(run)), f"{compact(tokens)} tokens, {compact(episodes)} episodes"),
        Tile(
            "staleness",
            score(weighted(run.steps, "staleness_mean", "action_tokens")),
            f"versions on average · at most {compact(worst)}, bound {run.config.get('staleness', DASH)}",
        ),
    ]
    if run.audit:
        broken = run.audit["lost"]
        found.append(
            Tile(
                "ledger",
                f"{count(broken)} lost" if broken else "clean",
                f"{count(run.audit['consumed'])} groups trained on, none twice",
                "bad" if broken else "good",
            )
        )
    return found


def speed(run: Run) -> float | None:
    """Tokens trained on a second of training; evaluations and checkpoints between steps are left out."""
    spent = [finite((r.get("seconds") or {}).get("step")) for r in run.steps]
    tokens = sum(finite(r.get("tokens")) or 0.0 for r in run.steps)
    total = sum(s for s in spent if s)
    return tokens / total if total else None


@dataclass(frozen=True)
class ScoreRow:
    run: str
    dataset: str
    first: str
    last: str
    gain: str
    tone: str
    interval: str
    f1: str
    n: str
    baselines: list[str]


def score_rows(runs: list[Run], baselines: list[str]) -> list[ScoreRow]:
    """Exact match of each run and data set: first, last with its interval, gain, and the baselines beside it."""
    rows = []
    for run in runs:
        for name in datasets(run.evals):
            found = scores(run.evals, name)
            if not found:
                continue
            first, last = found[0], found[-1]
            gain = last["em"] - first["em"]
            beyond = last["low"] > first["high"] or last["high"] < first["low"]
            rival = {str(b.get("baseline")): b.get("em") for b in run.baselines if str(b.get("dataset")) == name}
            rows.append(
                ScoreRow(
                    run.name,
                    name,
                    score(first["em"], 3),
                    score(last["em"], 3),
                    ("+" if gain > 0 else "") + score(gain, 3),
                    ("good" if gain > 0 else "bad") if beyond else "",
                    f"{score(last['low'], 3)} to {score(last['high'], 3)}",
                    score(last["f1"], 3),
                    count(last["n"]),
                    [score(rival.get(b), 3) for b in baselines],
                )
            )
    return rows


def baseline_names(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(str(b.get("baseline")) for run in runs for b in run.baselines))


def audit_rows(runs: list[Run]) -> list[Row]:
    """Every unit of work that was ever issued, by what became of it."""
    labels = {
        "issued": "units issued (a task of an epoch each)",
        "consumed": "trained on",
        "delivered": "delivered, not trained on yet",
        "pending": "in work or to be issued again",
        "failed": "given up after repeated failures",
        "lost": "lost: must be 0",
        "duplicates": "deliveries refused as duplicates",
        "stale_dropped": "groups too old when their turn came, made again",
        "stale_cancelled": "leases cancelled because they had grown too old",
        "reissued": "units issued again",
    }
    audited = [run for run in runs if run.audit]
    if not audited:
        return []
    return [Row(label, [count(run.audit.get(key)) for run in runs]) for key, label in labels.items()]


def episode_check(run: Run) -> str:
    """Two independent accounts of the same thing: the ledger's rows and the records of the steps."""
    size = (run.config.get("learner") or {}).get("group_size")
    trained = sum(int(finite(r.get("episodes")) or 0) for r in run.steps)
    expected = run.audit.get("consumed", 0) * (size or 0)
    if trained == expected:
        return f"{count(trained)} episodes in the steps' records = {count(run.audit.get('consumed'))} groups of {size} in the ledger."
    return (
        f"The steps' records hold {count(trained)} episodes, the ledger {count(expected)}: "
        "the step at hand was cut off, or one of the two files is not whole."
    )


def figure_rows(runs: list[Run]) -> list[Row]:
    """The headline figures of several runs side by side."""

    def cells(get: Any) -> list[str]:
        return [get(run) for run in runs]

    def last(run: Run, key: str) -> Any:
        return run.steps[-1].get(key) if run.steps else None

    return [
        Row("status", cells(lambda run: status(run)[0])),
        Row("steps", cells(lambda run: count(len(run.steps)))),
        Row("wall time", cells(lambda run: clock((run.summary or {}).get("wall_s") or last(run, "time_s")))),
        Row("episodes", cells(lambda run: count(sum(finite(r.get("episodes")) or 0 for r in run.steps)))),
        Row("tokens a second", cells(lambda run: compact(speed(run)))),
        Row("reward, last step", cells(lambda run: score(last(run, "reward"), 3))),
        Row("entropy, last step", cells(lambda run: small(last(run, "entropy")))),
        Row("KL, last step", cells(lambda run: small(last(run, "kl")))),
        Row("staleness, mean", cells(lambda run: score(weighted(run.steps, "staleness_mean", "action_tokens")))),
        Row("engines' |log π − log μ|", cells(lambda run: small(((run.summary or {}).get("logprob_mismatch") or {}).get("mean")))),
        Row("one weight push", cells(lambda run: seconds(((run.summary or {}).get("weight_sync") or {}).get("mean_s")))),
        Row("learner busy", cells(lambda run: share((run.summary or {}).get("learner_busy_fraction")))),
    ]  # fmt: skip


def config_rows(runs: list[Run]) -> tuple[list[Row], list[Row]]:
    """(what to look at first, the rest): what differs between several runs, or from the defaults in one."""
    flats = [flatten(run.config) for run in runs]
    defaults = flatten(Config().model_dump(mode="json"))
    names = list(dict.fromkeys(name for flat in flats for name in flat))
    rows = []
    for name in names:
        values = [flat.get(name, _ABSENT) for flat in flats]
        against = values if len(runs) > 1 else [*values, defaults.get(name, _ABSENT)]
        rows.append(Row(name, values, differs=any(value != against[0] for value in against)))
    return [row for row in rows if row.differs], [row for row in rows if not row.differs]


def environment_rows(runs: list[Run]) -> list[Row]:
    flats = [flatten(run.environment) for run in runs]
    names = list(dict.fromkeys(name for flat in flats for name in flat))
    rows = [(name.removeprefix("packages."), [flat.get(name, DASH) for flat in flats]) for name in names]
    return [Row(name, values, differs=len(set(values)) > 1) for name, values in rows]


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as ``a.b.c`` → text; lists stay in one cell."""
    if not isinstance(value, dict):
        return {prefix: _text(value)}
    out: dict[str, str] = {}
    for key, item in value.items():
        out |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return out


def _em_tile(run: Run, name: str) -> Tile:
    found = scores(run.evals, name)
    if not found:
        return Tile(f"exact match, {name}", DASH)
    first, last = found[0], found[-1]
    if len(found) == 1:
        return Tile(f"exact match, {name}", score(last["em"], 3), f"version {compact(last['step'])}, n {last['n']}")
    tone = "good" if last["low"] > first["high"] else "bad" if last["high"] < first["low"] else ""
    return Tile(f"exact match, {name}", score(last["em"], 3), f"from {score(first['em'], 3)} before training", tone)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return DASH
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "(none)"
    return str(value)
