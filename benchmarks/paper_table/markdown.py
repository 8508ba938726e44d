"""The tables as one Markdown page, from the finished cells alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from benchmarks.cells import Cell
from benchmarks.paper_table.agreement import orders, respects
from benchmarks.paper_table.methods import ABLATIONS, DATASETS, METHODS, TABLE3, TABLE4
from benchmarks.paper_table.results import AVERAGE, COLUMNS, Result, figures

#: Version 0 is scored greedily in every run: further apart than this, the cells had different warm starts.
SAME_START = 0.02


def page(cells: Sequence[Cell], results: list[Result], failed: dict[str, str]) -> str:
    """``cells``: the whole plan. ``failed``: name of a cell → why."""
    parts = [
        "# The paper's tables on the built-in world",
        f"Written by `python -m benchmarks.paper_table`: {len(results)} of {len(cells)} cells are done. "
        "Exact match is strict, decoding greedy; mean ± sample standard deviation over seeds.",
        *_provenance(cells, results),
        "## Algorithms (the paper's Table 3)",
        _table3(results),
        "## Masks (the paper's Table 4), average of the three sets",
        _table4(results),
        "## Does the order agree?",
        *_agreement(results),
    ]
    if failed:
        parts += ["## Cells that failed", "\n".join(f"- {name}: {why}" for name, why in failed.items())]
    return "\n\n".join(parts) + "\n"


def _provenance(cells: Sequence[Cell], results: list[Result]) -> list[str]:
    """Budget, machine and revision, and whether all cells began with the same policy."""
    done = {(r.method, r.seed) for r in results}
    made = [cell for cell in cells if (cell.method, cell.seed) in done]
    lines = []
    if budgets := sorted({r.episodes for r in results if METHODS[r.method].trained}):
        lines.append(
            f"Training episodes of a cell: {_listed(budgets)}; questions a set: "
            f"{_listed(sorted({cell.config.eval.final_size for cell in made}))}."
        )
    if facts := [fact for cell in made if (fact := _environment(cell))]:
        machines = sorted({f"{fact.get('cpu') or '?'}, {fact.get('cores')} cores" for fact in facts})
        revisions = sorted({str(fact.get("revision")) for fact in facts})
        lines.append(f"Machine: {'; '.join(machines)}. Revision: {', '.join(revisions)}.")
    if begun := [r.start for r in results if r.method != "naive_rag"]:
        apart = max(max(s[name] for s in begun) - min(s[name] for s in begun) for name in DATASETS)
        if apart > SAME_START:
            lines.append(
                f"**The cells did not begin with the same policy**: scores of version 0 are up to {apart:.3f} apart. "
                "Delete the run folders that are older than the warm start, and run the command again."
            )
        else:
            lines.append(f"All cells began with the same policy: scores of version 0 are at most {apart:.3f} apart.")
    return lines


def _environment(cell: Cell) -> dict:
    try:
        return json.loads((cell.folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _table3(results: list[Result]) -> str:
    ours = {column: figures(results, column) for column in COLUMNS}
    rows = []
    for method in TABLE3:
        spec = METHODS[method]
        paper = [*(spec.paper[name] for name in DATASETS), spec.average]
        rows.append(
            [spec.title, _seeds(results, method)]
            + [str(ours[column].get(method, "–")) for column in COLUMNS]
            + [f"{value:.4f}".lstrip("0") for value in paper]
        )
    head = ["method", "seeds", *COLUMNS, *(f"paper: {name}" for name in (*DATASETS.values(), AVERAGE))]
    return _grid(head, rows)


def _table4(results: list[Result]) -> str:
    ours, rows, whole = figures(results, AVERAGE), [], None
    for method in TABLE4:
        if method not in ABLATIONS:
            whole = method
        change, paper = "", ""
        if method != whole:
            paper = f"{METHODS[method].average - METHODS[whole].average:+.4f}"
            change = f"{ours[method].mean - ours[whole].mean:+.3f}" if {method, whole} <= set(ours) else "–"
        rows.append(
            [
                METHODS[method].title + (", both masks" if method == whole else ""),
                _seeds(results, method),
                str(ours.get(method, "–")),
                change,
                f"{METHODS[method].average:.4f}".lstrip("0"),
                paper,
            ]
        )
    return _grid(["method", "seeds", "average", "change", "paper: average", "paper: change"], rows)


def _agreement(results: list[Result]) -> list[str]:
    """Findings of ``agreement``, and how they are arrived at."""
    lines = []
    for order in orders(results):
        pairs = order.agree + order.disagree
        against = f"; clearly against the paper: {', '.join(order.against)}" if order.against else ""
        lines.append(
            f"- {order.column}: {order.agree} of {pairs} pairs of methods stand in the paper's order "
            f"(Kendall's τ {order.tau:+.2f}); {order.clear} pairs are further apart than two standard errors{against}."
        )
    if not lines:
        return ["Too few cells are done to say."]
    found = [[r.what, r.paper, r.ours, r.verdict] for r in respects(results)]
    legend = (
        "A difference within two standard errors over the seeds is too close to tell; ratios are those of the means."
    )
    return ["\n".join(lines), legend, *([_grid(["respect", "paper", "here", "agrees"], found)] if found else [])]


def _seeds(results: list[Result], method: str) -> str:
    return str(sum(result.method == method for result in results))


def _listed(values: Iterable[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
