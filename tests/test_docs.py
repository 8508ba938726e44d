"""What the documents show is run: the example of docs/extending.md, and every command of README."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from configs.load import load_config
from envs.registry import load_env
from learner.algorithm.advantages import compute_advantages
from protocol.trajectory import Group
from tests.episodes import episode

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"


async def test_the_example_environment_pays_for_lookups_and_for_the_right_sum(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    env_class = load_env("unit_prices:UnitPrices", {"lookup_reward": 0.25})
    [task] = env_class.tasks("train", "shop", limit=1)
    env = env_class()
    first = await env.reset(task, seed=0)
    (a, n), (b, m) = task["amounts"].items()
    assert f"{n} {a} and {m} {b}" in first[0]["content"]
    calls = "".join(
        f'<tool_call>{{"name": "price", "arguments": {{"item": "{item}"}}}}</tool_call>' for item in (a, b, "gold")
    )
    looked = await env.step(calls, "stop")
    assert looked.reward == pytest.approx(0.5)
    assert [r.fault for r in looked.tool_results] == [None, None, "bad_arguments"]
    total = n * task["prices"][a] + m * task["prices"][b]
    end = await env.step(f"<answer>{total}</answer>", "stop")
    assert end.done and end.info["metrics"]["em"] == 1.0


def commands(document: str) -> list[str]:
    """Commands in the ```bash blocks of a document, comments and line continuations resolved."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [re.split(r"\s#\s", line)[0].strip() for line in lines if line.strip() and not line.startswith("#")]


#: Commands that another test runs, with a smaller budget where they are long: command → that test.
COVERED = {
    "make train": "test_end_to_end.py::finished",
    "make test": "this very run",
    "python run.py --role eval model.path=runs/quickstart/export": "test_end_to_end.py::test_eval_of_the_export",
    "python run.py --resume run.steps=60": "test_end_to_end.py::test_a_finished_run_can_be_gone_on_with",
    "python run.py --resume run.dir=runs/quickstart run.steps=60": "the same",
    "python run.py --role replay runs/quickstart": "test_replay.py, on a run of its own",
    "python run.py --role replay runs/quickstart 20": "the same",
    "python run.py --role replay runs/quickstart 20 algorithm.aggregation=sequence learner.micro_tokens=4096": "the same",
    "python -m benchmarks.checkpoint_kills --kills 50": "test_resume.py::test_kills_while_checkpoints_are_written",
    "python run.py --role browse runs/quickstart": "test_browse.py::test_in_a_pipe_it_is_a_list",
    "python run.py --role report runs/quickstart": "test_report.py, on a run of its own",
    "python -m benchmarks.fuzz_gateway --quick": "test_security.py::test_the_fuzzer_reports",
    "python -m benchmarks.fuzz_gateway --frames 1000000": "the same, with more frames",
    "python -m benchmarks.simulate --schedules 10000 --workers 4": "test_simulation.py::test_a_hundred_schedules",
    "python -m benchmarks.simulate --seed 7 --trace": "test_simulation.py::test_a_seed_tells_the_same_story_every_time",
    "python -m benchmarks.retrieval_recall data/hotpotqa/corpus.jsonl data/hotpotqa/hotpot_train_100.json": (
        "test_retriever.py::test_the_benchmark_of_recall"
    ),
    "python -m benchmarks.retrieval_load --passages 100000": "test_retriever_http.py::test_the_benchmark_of_load",
    "python -m benchmarks.actor_load --quick": "test_performance.py::test_the_load_benchmark, one arm of it",
    "python -m benchmarks.transport --quick": "test_performance.py::test_the_transport_benchmark, two ways of it",
    "python -m benchmarks.dispatch --quick": "test_performance.py::test_the_dispatch_benchmark, with fewer tasks",
    "python -m benchmarks.learner_step --quick": "test_performance.py::test_the_update_benchmark, two arms of it",
    "python -m benchmarks.weight_sync --quick": "test_performance.py::test_the_weight_benchmark, without a server",
    "python -m benchmarks.async_speedup": "test_cells.py, with a stand-in for run.py",
    "python -m benchmarks.async_speedup --quick": "the same",
    "python -m benchmarks.gpu --quick": "test_performance.py::test_the_gpu_benchmark_says_that_there_is_no_gpu",
    'echo "/task hotpot 3" | python run.py --role chat server.urls=[http://127.0.0.1:8100]': (
        "test_chat_role.py::test_a_task_is_played_to_its_end_and_judged"
    ),
    "tensorboard --logdir runs/quickstart/tensorboard": "test_runfolder.py reads the files",
}


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/agents.md",
        "docs/algorithms.md",
        "docs/dashboard.md",
        "docs/data.md",
        "docs/evaluation.md",
        "docs/extending.md",
        "docs/formats.md",
        "docs/guarantees.md",
        "docs/paper-table.md",
        "docs/performance.md",
        "docs/pretrained.md",
        "docs/prometheus.md",
        "docs/replay.md",
        "docs/report.md",
        "docs/retrieval.md",
        "docs/scale-out.md",
        "docs/security.md",
        "docs/world.md",
    ],
)
def test_every_command_is_run(document):
    """Not covered elsewhere: run as it stands, with --dry-run where it would start something."""
    for command in commands(document):
        if command in COVERED or command.startswith(("git clone", "cd ")):
            continue
        words = shlex.split(command)
        env = dict(os.environ)
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        if words[0] == "make":
            assert subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True).returncode == 0, command
            continue
        assert words[0] == "python", f"{document}: no test runs {command!r}"
        dry = [] if "--dry-run" in words else ["--dry-run"]
        done = subprocess.run([sys.executable, *words[1:], *dry], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{document}: {command!r}: {done.stderr}"


def test_the_example_estimator_is_named_in_the_configuration_and_takes_the_median(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    chosen = ["type=custom", "path=median_baseline:median_baseline", "args.scale=0.5"]
    config = load_config(overrides=[f"algorithm.advantage.{option}" for option in chosen])
    groups = [Group("l", "t", [episode(r) for r in (9, 0, 0, 1, 0)]), Group("l", "u", [episode(1), episode(1)])]
    values, silent = compute_advantages(config.algorithm, groups)
    assert [v[1] for v in values] == [4.5, 0, 0, 0.5, 0] and values[0].dtype == np.float32
    assert values[0].tolist() == [0, 4.5, 4.5, 0, 4.5, 4.5] and not any(v.any() for v in silent)
    wrong = config.model_copy(deep=True).algorithm
    wrong.advantage.path = "median_baseline:mean"
    with pytest.raises(ValueError, match=r"algorithm\.advantage\.path: median_baseline:mean: .*PYTHONPATH"):
        compute_advantages(wrong, groups)
