"""The rows of the paper's tables as configurations, and what the tables conclude from the figures."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import run as run_py
from benchmarks.cells import Cell
from benchmarks.paper_table import __main__ as paper_table
from benchmarks.paper_table.agreement import CLOSE, NO, YES, orders, paper_value, respects
from benchmarks.paper_table.markdown import page
from benchmarks.paper_table.methods import ALGORITHMS, BASELINES, COMMON, DATASETS, METHODS, TABLE3
from benchmarks.paper_table.results import AVERAGE, COLUMNS, Figure, Result, above, figures
from configs.schema import Config
from envs.registry import load_env

ROOT = Path(__file__).parents[1]


def cell(method: str, seed: int = 0, root: Path = Path("runs/paper-table"), *more: str) -> Cell:
    return Cell.of(method, seed, root, (*COMMON, *more, *METHODS[method].overrides))


# ── the rows ─────────────────────────────────────────────────────────────────


def dry_run(overrides, capsys) -> Config:
    assert run_py.main(["--dry-run", *overrides]) == 0
    return Config.model_validate(yaml.safe_load(capsys.readouterr().out))


@pytest.mark.parametrize("method", METHODS)
def test_run_py_takes_the_overrides_of_every_row(method, capsys):
    made = cell(method, 2)
    config = dry_run(made.overrides, capsys)
    assert config == made.config and config.run.seed == 2 and config.run.dir == made.folder
    load_env(config.env.path, config.env.args)


def test_rows_are_what_they_are_called():
    kinds = {name: cell(name).config.algorithm for name in METHODS if METHODS[name].trained}
    types = {
        "ppo": "gae", "grpo": "grpo", "reinforce_pp": "reinforce_pp", "reinforce_pp_baseline": "reinforce_pp_baseline",
        "rloo": "rloo", "ppo_no_advantage_mask": "gae", "ppo_no_masks": "gae", "grpo_no_loss_mask": "grpo",
    }  # fmt: skip
    assert {name: config.advantage.type for name, config in kinds.items()} == types
    masks = {name: (config.masks.loss, config.masks.advantage) for name, config in kinds.items()}
    off = {"ppo_no_advantage_mask": (True, False), "ppo_no_masks": (False, False), "grpo_no_loss_mask": (False, False)}
    assert masks == {name: off.get(name, (True, True)) for name in kinds}


def test_only_the_algorithm_differs_between_trained_rows():
    """Same warm start, data, budget of episodes and everything else."""

    def rest(name: str) -> dict:
        dump = cell(name).config.model_dump(exclude={"algorithm": {"advantage", "reference", "masks"}, "critic": True})
        return dump | {"run": dump["run"] | {"dir": None}}

    assert all(rest(name) == rest("grpo") for name in METHODS if METHODS[name].trained)
    for name in ("ppo_no_advantage_mask", "ppo_no_masks", "grpo_no_loss_mask"):
        whole, part = cell(name.partition("_")[0]).config.model_dump(), cell(name).config.model_dump()
        whole["algorithm"].pop("masks"), part["algorithm"].pop("masks"), whole.pop("run"), part.pop("run")
        assert whole == part


def test_baselines_answer_the_same_questions_and_learn_nothing():
    configs = {name: cell(name).config for name in (*BASELINES, "grpo")}
    assert all(configs[name].learner.optimizer.lr == 0 for name in BASELINES)
    assert len({(str(c.env.eval), c.eval.final_size, c.model.max_tokens) for c in configs.values()}) == 1
    base, grpo, rag = configs["base_tool_call"], configs["grpo"], configs["naive_rag"]
    assert base.env == grpo.env and base.model == grpo.model and base.sampling == grpo.sampling
    for name in DATASETS:
        asked = [
            [(t["id"], t["question"]) for t in load_env(c.env.path, c.env.args).tasks("eval", name, 300)]
            for c in (grpo, rag)
        ]
        assert asked[0] == asked[1] and len(asked[0]) == 300


def test_the_papers_averages_are_those_of_its_sets():
    for name in TABLE3:
        assert METHODS[name].average == pytest.approx(sum(METHODS[name].paper.values()) / 3, abs=1e-4)
    for column in COLUMNS:  # what `every RL algorithm above both baselines` says of the paper
        low = max(paper_value(name, column) for name in BASELINES)
        assert all(paper_value(name, column) > low for name in ALGORITHMS)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run.seed=3"], "run.seed is set by the benchmark"),
        (["run={}"], "run is set by the benchmark"),
        (["algorithm.advantage.type=grpo"], "algorithm.advantage.type is set by the benchmark"),
        (["run.steps=5"], "ppo: critic.warmup_steps (5) must be below run.steps (5)"),
        (["learner.lrr=1"], "base_tool_call: learner.lrr: unknown option"),
    ],
)
def test_mistakes_are_one_line(words, says, capsys):
    assert paper_table.main(["--dry-run", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and says in err and err.count("\n") == 1


def test_the_command_line_shows_what_it_would_run(tmp_path):
    words = ["--dry-run", "--only", "ppo", "--seed", "7", "--dir", str(tmp_path), "learner.groups=8"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.paper_table", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.startswith("ppo, seed 7: to run\n"), done.stderr
    assert "learner.groups=8 algorithm.advantage.type=gae" in done.stdout and list(tmp_path.iterdir()) == []


# ── what the tables say ──────────────────────────────────────────────────────


def results(em: dict[str, tuple[float, ...]], start: float = 0.1) -> list[Result]:
    """Results with the same score on all sets, a seed a value."""
    return [
        Result(method, seed, 100, dict.fromkeys(DATASETS, value), dict.fromkeys(DATASETS, start))
        for method, values in em.items()
        for seed, value in enumerate(values)
    ]


PAPERS_ORDER = {
    "base_tool_call": (0.08, 0.08, 0.08),
    "naive_rag": (0.13, 0.13, 0.13),
    "reinforce_pp": (0.33, 0.34, 0.32),
    "reinforce_pp_baseline": (0.40, 0.41, 0.39),
    "rloo": (0.45, 0.46, 0.44),
    "ppo": (0.50, 0.51, 0.49),
    "grpo": (0.60, 0.61, 0.59),
    "ppo_no_advantage_mask": (0.40, 0.41, 0.39),
    "ppo_no_masks": (0.30, 0.31, 0.29),
    "grpo_no_loss_mask": (0.50, 0.51, 0.49),
}


def test_mean_spread_and_when_a_difference_is_told():
    found = Figure.of([0.2, 0.3, 0.4])
    assert found.mean == pytest.approx(0.3) and found.spread == pytest.approx(0.1) and str(found) == "0.300 ± 0.100"
    assert str(Figure.of([0.2])) == "0.200"
    # Two standard errors of (0.1, 0.1) over three seeds: 2 · 0.1 · √(2/3) = 0.1633.
    assert above(found, Figure(0.3 - 0.164, 0.1, 3)) is True
    assert above(Figure(0.3 - 0.164, 0.1, 3), found) is False
    assert above(found, Figure(0.3 - 0.163, 0.1, 3)) is None
    assert above(Figure.of([0.9]), found) is None
    assert figures(results({"ppo": (0.1, 0.3)}), AVERAGE)["ppo"].mean == pytest.approx(0.2)


def test_the_papers_own_order_agrees_in_every_respect():
    found = results(PAPERS_ORDER)
    average = orders(found)[-1]
    assert (average.column, average.agree, average.disagree, average.tau) == ("average", 21, 0, 1.0)
    assert average.clear == 21 and average.against == ()
    assert [r.verdict for r in respects(found)] == [YES] * len(respects(found)) and len(respects(found)) == 11


def test_ties_of_the_paper_are_no_pairs():
    """On MuSiQue the two baselines are level, and so are GRPO and REINFORCE++Baseline."""
    pairs = {order.column: order.agree + order.disagree for order in orders(results(PAPERS_ORDER))}
    assert pairs == {"hotpot": 21, "wiki2": 21, "musique": 19, "average": 21}


def test_the_opposite_order_is_said_to_be_so():
    worse = PAPERS_ORDER | {"grpo": (0.05, 0.06, 0.04), "ppo_no_masks": (0.45, 0.46, 0.44)}
    found = results(worse)
    verdicts = {r.what: r.verdict for r in respects(found)}
    assert verdicts["every RL algorithm above both baselines, wiki2"] == NO
    assert verdicts["best RL algorithm on average"] == NO
    assert verdicts["weakest RL algorithm on average"] == NO
    assert verdicts["GRPO over Naive RAG on average, at least the paper's ratio"] == NO
    assert verdicts["PPO loses without the advantage mask"] == YES
    assert verdicts["PPO loses further without the loss mask"] == NO
    average = orders(found)[-1]
    assert (average.agree, average.disagree) == (15, 6) and "PPO above GRPO" in average.against


def test_what_noise_hides_is_not_told():
    verdicts = {r.what: r for r in respects(results(PAPERS_ORDER | {"grpo": (0.2, 0.6, 0.7)}))}
    assert verdicts["best RL algorithm on average"].verdict == CLOSE
    assert verdicts["GRPO loses without the loss mask"].verdict == CLOSE
    single = respects(results({name: values[:1] for name, values in PAPERS_ORDER.items()}))
    assert {r.verdict for r in single if "ratio" not in r.what} == {CLOSE}
    dead = respects(results(PAPERS_ORDER | {"naive_rag": (0.0, 0.0, 0.0)}))
    assert "0.600 against 0" in [r.ours for r in dead]


def test_the_page_has_both_tables_and_warns_of_another_warm_start(tmp_path):
    made = [cell(name, seed, tmp_path) for name in METHODS for seed in range(3)]
    text = page(made, results(PAPERS_ORDER), {})
    assert "30 of 30 cells are done" in text and "Training episodes of a cell: 100" in text
    assert "| GRPO | 3 | 0.600 ± 0.010 | 0.600 ± 0.010 | 0.600 ± 0.010 | 0.600 ± 0.010 | .4405 | .5741 |" in text
    assert "| PPO, no loss mask either | 3 | 0.300 ± 0.010 | -0.200 | .3022 | -0.0697 |" in text
    assert "All cells began with the same policy" in text and "failed" not in text
    mixed = [*results({"grpo": (0.6,)}), *results({"ppo": (0.5,)}, start=0.3)]
    assert "did not begin with the same policy" in page(made, mixed, {})
    assert "Too few cells" in page(made, [], {})
