"""Cells are whole runs that can be stopped and gone on with; the two experiments made of them."""

import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import async_speedup, cell_cli, cells, off_policy, process_rewards, slow_tools
from benchmarks.cells import Cell, begun, finished
from benchmarks.paper_table import __main__ as paper_table
from benchmarks.paper_table.methods import DATASETS
from configs.load import ConfigError
from envs.registry import load_env
from tests.test_paper_table import cell, dry_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def canned(monkeypatch):
    """Cells call a stand-in for run.py that is over at once; returns how to tell it to go wrong."""
    monkeypatch.setattr(cells, "RUN", [sys.executable, str(ROOT / "tests" / "canned_run.py")])
    monkeypatch.setattr(cells, "GRACE_S", 5.0)
    return lambda **how: monkeypatch.setenv("CANNED_RUN", json.dumps(how))


def last_line(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


# ── running, stopping, going on ──────────────────────────────────────────────


def test_one_cell_is_run_once_and_goes_into_tables_and_json(canned, tmp_path, capsys):
    words = ["--only", "grpo", "--seed", "1", "--dir", str(tmp_path), "run.steps=10"]
    assert paper_table.main(words) == 0
    expected = {"method": "grpo", "seed": 1, "episodes": 10 * 16 * 8, "em": dict.fromkeys(DATASETS, 0.11)}
    assert last_line(capsys) == {"cells": [expected], "failed": {}}
    assert "| GRPO | 1 | 0.110 | 0.110 | 0.110 | 0.110 | .4405 |" in (tmp_path / "tables.md").read_text()
    stamp = (tmp_path / "grpo-seed1" / "summary.json").stat().st_mtime_ns
    assert paper_table.main([*words, "gateway.port=5999"]) == 0  # where it runs does not make it another run
    assert (tmp_path / "grpo-seed1" / "summary.json").stat().st_mtime_ns == stamp
    assert paper_table.main([*words[:-1], "run.steps=12"]) == 0
    assert last_line(capsys)["cells"][0]["em"]["hotpot"] == 0.13
    assert {p.name for p in tmp_path.iterdir()} == {"grpo-seed1", "grpo-seed1-1", "logs", "tables.md"}


def test_untrained_rows_are_scored_before_their_step(canned, tmp_path, capsys):
    assert paper_table.main(["--only", "base_tool_call", "--seed", "2", "--dir", str(tmp_path)]) == 0
    [found] = last_line(capsys)["cells"]
    assert found["episodes"] == 0 and found["em"] == dict.fromkeys(DATASETS, 0.02)


def test_a_stopped_cell_is_gone_on_with(canned, tmp_path):
    made = cell("rloo", 0, tmp_path, "run.steps=10")
    canned(rloo="stop")
    with pytest.raises(cells.CellFailed, match="exit code 130"):
        cells.run_cell(made, 60)
    assert (made.folder / "summary.json").exists() and begun(made) and finished(made) is None
    canned()
    assert cells.run_cell(made, 60)["steps"] == 10
    assert made.log.read_text().splitlines() == ["resume=False", "resume=True"]


def test_a_cell_that_hangs_is_stopped(canned, tmp_path):
    canned(rloo="hang")
    before = psutil.Process().children(recursive=True)
    with pytest.raises(cells.CellFailed, match=r"not over after 0\.03\d* minutes, stopped; the same command goes on"):
        cells.run_cell(cell("rloo", 0, tmp_path), 2.0)
    assert psutil.Process().children(recursive=True) == before


def test_a_cell_that_fails_is_said_and_the_rest_is_run(canned, tmp_path, capsys):
    canned(grpo="fail")
    words = ["--only", "grpo", "--only", "reinforce_pp", "--seed", "0", "--dir", str(tmp_path)]
    assert paper_table.main(words) == 1
    out = capsys.readouterr().out
    assert "    FAILED: no such luck" in out
    found = json.loads(out.splitlines()[-1])
    assert [c["method"] for c in found["cells"]] == ["reinforce_pp"]
    assert found["failed"]["grpo, seed 0"].startswith("no such luck (exit code 1, log ")
    assert "- grpo, seed 0: no such luck" in (tmp_path / "tables.md").read_text()


def test_ctrl_c_stops_the_running_cell_in_good_order(tmp_path):
    """The run gets its SIGTERM, and nothing is left behind."""
    code = (
        "import sys; from benchmarks import cells; from benchmarks.paper_table.__main__ import main; "
        f"cells.RUN = [sys.executable, {str(ROOT / 'tests' / 'canned_run.py')!r}]; "
        f"sys.exit(main(['--only', 'ppo', '--seed', '0', '--dir', {str(tmp_path)!r}]))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "CANNED_RUN": '{"ppo": "hang"}'},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        log, deadline = tmp_path / "logs" / "ppo-seed0.log", time.monotonic() + 60
        while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        children = psutil.Process(started.pid).children(recursive=True)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == 130 and err == "stopped; the same command goes on from here\n"
    assert len(children) == 1 and not children[0].is_running()


# ── the experiments ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("module", [process_rewards, off_policy, async_speedup], ids=lambda m: m.__name__)
@pytest.mark.parametrize("quick", [[], ["--quick"]], ids=["whole", "quick"])
def test_run_py_takes_the_overrides_of_every_arm(module, quick, capsys):
    assert module.main(["--dry-run", "--seed", "1", *quick]) == 0
    commands = [line.split(" run.py ")[1] for line in capsys.readouterr().out.splitlines() if " run.py " in line]
    assert len(commands) == len(module.ARMS)
    for command in commands:
        config = dry_run(shlex.split(command), capsys)
        assert config.run.seed == 1
        assert all(load_env(config.env.path, config.env.args).tasks("train", name, 1) for name in config.env.train)


# ── process rewards ──────────────────────────────────────────────────────────


def curve(arm: str, seed: int, *points: tuple[int, float]) -> process_rewards.Curve:
    return process_rewards.Curve(arm, seed, points)


def test_episodes_to_an_exact_match():
    quick = [curve("with", 0, (0, 0.0), (100, 0.4), (200, 0.2)), curve("with", 1, (0, 0.0), (100, 0.1), (200, 0.3))]
    slow = [curve("without", 0, (0, 0.0), (400, 0.3)), curve("without", 1, (0, 0.0), (400, 0.1))]
    assert quick[0].episodes_to(0.3) == 100 and quick[0].episodes_to(0.5) is None
    found = process_rewards.compare(quick + slow, 0.3)
    assert found["episodes_with"] == [100, 200] and found["episodes_without"] == [400, None]
    assert found["ratio"] == 150 / 400 and found["at_most"] is True
    assert found["em_start"] == 0.0 and found["em_final_without"] == pytest.approx(0.2)
    exact = process_rewards.compare([*quick, slow[0]], 0.3)
    assert exact["ratio"] == 150 / 400 and exact["at_most"] is False


def test_there_is_no_ratio_without_both_arms_or_where_nothing_was_to_be_learnt():
    one = curve("with", 0, (0, 0.0), (100, 0.4))
    assert process_rewards.compare([one], 0.3)["ratio"] is None
    assert process_rewards.compare([one, curve("without", 0, (0, 0.5), (100, 0.5))], 0.3)["ratio"] is None
    assert process_rewards.compare([curve("with", 0, (0, 0.0)), curve("without", 0, (0, 0.0))], 0.3)["ratio"] is None


def test_arms_differ_in_the_weight_of_process_rewards_alone(canned, tmp_path, capsys):
    arms = [
        Cell.of(arm, 0, tmp_path, (*process_rewards.COMMON, *own)).config for arm, own in process_rewards.ARMS.items()
    ]
    assert [config.algorithm.process_reward_weight for config in arms] == [1.0, 0.0]
    same = [c.model_dump(exclude={"run": {"dir"}, "algorithm": {"process_reward_weight"}}) for c in arms]
    assert same[0] == same[1]
    assert process_rewards.main(["--quick", "--dir", str(tmp_path), "--em", "0.05"]) == 0
    found = last_line(capsys)
    assert found["episodes_with"] == found["episodes_without"] == [6 * 4 * 4] and found["ratio"] == 1.0


@pytest.mark.parametrize("hops", [3, 4])
def test_chains_are_so_many_searches_and_held_out_ones_name_nobody_from_training(hops):
    env = load_env("benchmarks.long_chains:LongChains", {"process_reward": 0.5, "hops": hops})
    train, held_out = (env.tasks(split, "chains") for split in ("train", "eval"))
    assert len(train) > 2000 and len(held_out) > 500
    for tasks in (train, held_out):
        assert len({t["id"] for t in tasks}) == len({t["question"] for t in tasks}) == len(tasks)
        assert {len(t["gold_titles"]) for t in tasks} == {hops}
    names = {title for t in train for title in t["gold_titles"]}
    assert not names & {title for t in held_out for title in t["gold_titles"]}
    assert env.tasks("train", "hotpot") == []


# ── off-policy ───────────────────────────────────────────────────────────────


def outcome(arm: str, em: float, age: float = 6.0) -> off_policy.Outcome:
    return off_policy.Outcome(arm, 0, 100, {"hotpot": em + 0.1, "wiki2": em - 0.1}, age, 8)


def test_stale_arms_are_compared_with_lockstep():
    found = off_policy.compare([outcome("lockstep", 0.5, 0.0), outcome("corrected", 0.48), outcome("uncorrected", 0.3)])
    assert found["lockstep"] == pytest.approx(0.5)
    assert found["corrected_difference"] == pytest.approx(-0.02) and found["within"] is True
    assert found["uncorrected_difference"] == pytest.approx(-0.2)
    assert found["staleness_mean"] == {"lockstep": 0.0, "corrected": 6.0, "uncorrected": 6.0}
    assert off_policy.compare([outcome("lockstep", 0.5), outcome("corrected", 0.46)])["within"] is False
    assert off_policy.compare([outcome("corrected", 0.46)])["within"] is None


def test_arms_differ_in_staleness_and_correction_alone(tmp_path):
    arms = {arm: Cell.of(arm, 0, tmp_path, (*off_policy.COMMON, *own)).config for arm, own in off_policy.ARMS.items()}
    told = {arm: (config.staleness, config.algorithm.correction.type) for arm, config in arms.items()}
    assert told == {"lockstep": (0, "tis"), "corrected": (8, "tis"), "uncorrected": (8, "none")}
    without = {"run": {"dir"}, "staleness": True, "algorithm": {"correction": {"type"}}}
    assert len({json.dumps(c.model_dump(mode="json", exclude=without)) for c in arms.values()}) == 1
    stale = arms["corrected"]
    assert stale.actor.leases * stale.actor.count == (stale.staleness + 1) * stale.learner.groups


def test_off_policy_reports_and_refuses_what_its_arms_differ_in(canned, tmp_path, capsys):
    assert off_policy.main(["--quick", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert found["corrected_difference"] == 0 and found["within"] is True and len(found["cells"]) == 3
    assert "hardly off-policy" in out
    assert off_policy.main(["--dry-run", "staleness=4"]) == 2
    with pytest.raises(ConfigError, match="staleness"):
        cell_cli.check_overrides(["staleness=4"], off_policy.ARMS.values())


# ── asynchronous against lock-step ───────────────────────────────────────────


def timed(arm: str, step_s: float, em: list[float]) -> async_speedup.Outcome:
    clock = tuple(step_s * (n + 1) for n in range(len(em)))
    return async_speedup.Outcome(arm, 0, clock, tuple(em), 0.5, em[-1], 1.0)


def test_speedup_is_of_the_clock_and_to_an_exact_match_that_both_reached():
    slow = timed("lockstep", 12.0, [0.2] * 5 + [0.8] * 15)
    fast = timed("async", 3.0, [0.2] * 10 + [0.8] * 10)
    assert slow.smooth[0] == pytest.approx(0.2) and slow.smooth[-1] == pytest.approx(0.8)
    assert slow.seconds_to(0.72) == 12.0 * 10 and slow.seconds_to(0.81) is None
    found = async_speedup.compare([slow, fast])
    assert found["speedup"] == 4.0 and found["em_target"] == pytest.approx(0.72)
    assert found["speedup_to_em"] == (12.0 * 10) / (3.0 * 15)
    assert found["em_async"] == found["em_lockstep"] == 0.8 and found["busy_async"] == 0.5
    assert async_speedup.compare([fast])["speedup"] is None


def test_both_arms_wait_for_the_same_long_tailed_latencies():
    draws = sorted(slow_tools.latency_s(random.Random(seed)) for seed in range(20_000))
    assert statistics.median(draws) == pytest.approx(0.3, rel=0.05) and draws[19_800] == pytest.approx(5.0, rel=0.15)
    arms = [Cell.of(arm, 0, Path("x"), (*async_speedup.COMMON, *own)).config for arm, own in async_speedup.ARMS.items()]
    held = [c.actor.count * c.actor.leases for c in arms]
    assert held == [(c.staleness + 1) * c.learner.groups for c in arms]  # no arm holds less than the gate lets it
    without = {"run": {"dir"}, "staleness": True, "actor": {"leases"}}
    assert len({json.dumps(c.model_dump(mode="json", exclude=without)) for c in arms}) == 1
