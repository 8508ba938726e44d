"""Sums in words: what is asked, what is paid, and the way from a package to a model folder."""

import sys
from pathlib import Path

import pytest

from configs.load import load_config
from envs.arithmetic import EVAL, KINDS, Arithmetic
from envs.registry import load_env
from learner.policy.from_gguf import find_gguf
from learner.policy.model import resolve_model
from learner.servers.serving import ServerError, check_model
from tools.calculator import evaluate
from tools.formats import FORMATS, HERMES

PRESETS = ("configs/smollm2-135m.yaml", "configs/gsm8k-qwen2.5-1.5b.yaml")


def call(expression: str) -> str:
    return f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}</tool_call>'


@pytest.fixture
def env_class():
    return load_env("envs.arithmetic:Arithmetic", {"call_reward": 0.25})


async def play(env_class, *turns: str):
    """(steps of an episode about 214 boxes of 37 pens, its first messages)."""
    env = env_class()
    env.tool_format = HERMES
    task = {"id": "t", "question": "Tom has 214 boxes with 37 pens each. How many pens is that?", "answer": "7918"}
    first = await env.reset(task, seed=0)
    return [await env.step(turn, "stop") for turn in turns], first


@pytest.mark.parametrize("dataset", KINDS)
def test_tasks_are_stable_unique_and_held_out(dataset):
    train, held_out = Arithmetic.tasks("train", dataset), Arithmetic.tasks("eval", dataset)
    assert len(held_out) == EVAL and train == Arithmetic.tasks("train", dataset)
    assert Arithmetic.tasks("eval", dataset, 7) == held_out[:7]
    ids = [task["id"] for task in train + held_out]
    assert len(set(ids)) == len(ids)
    sums = {split: {numbers(task["question"]) for task in tasks} for split, tasks in (("t", train), ("e", held_out))}
    assert len(sums["t"]) == len(train) and not sums["t"] & sums["e"]


def numbers(question: str) -> tuple[int, ...]:
    return tuple(int(word.strip(".")) for word in question.split() if word.strip(".").isdigit())


@pytest.mark.parametrize(("dataset", "sign"), [("add", "+"), ("subtract", "-"), ("multiply", "*")])
async def test_the_right_expression_pays_in_every_data_set(env_class, dataset, sign):
    for task in env_class.tasks("eval", dataset, 5):
        env = env_class()
        await env.reset(task, seed=0)
        a, b = numbers(task["question"])
        looked = await env.step(call(f"{a} {sign} {b}"), "stop")
        assert looked.reward == 0.5 and looked.messages[0]["content"] == task["answer"]
        end = await env.step(f"<answer>{evaluate(f'{a} {sign} {b}')}</answer>", "stop")
        assert end.done and end.info["outcome_reward"] == 1.0


async def test_a_call_pays_once_and_the_right_result_as_much_again(env_class):
    steps, _ = await play(env_class, call("214 + 37"), call("214 * 37"), call("37 * 214.0"), "<answer>7918</answer>")
    assert [step.reward for step in steps] == [0.25, 0.25, 0.0, 0.0]
    assert steps[-1].info["metrics"] == {"em": 1.0, "calls": 3.0, "format": 1.0}
    assert steps[-1].info["outcome_reward"] == 1.0
    wrong, _ = await play(env_class, call("214 + 37"), "<answer>251</answer>")
    assert wrong[0].reward == 0.25 and wrong[-1].info["outcome_reward"] == 0.0


async def test_what_cannot_be_worked_out_pays_nothing_and_costs_nothing(env_class):
    bad = ('<tool_call>{"name": "calculator", "arguments": {"number": 7918}}</tool_call>', call("seven"), call("1 / 0"))
    steps, _ = await play(env_class, *bad, "<answer>7918</answer>")
    assert [step.reward for step in steps] == [0.0] * 4
    assert steps[-1].info["outcome_reward"] == 0.0 and steps[-1].info["metrics"]["em"] == 1.0
    guess, _ = await play(env_class, "<answer>7918</answer>")
    assert guess[-1].info["outcome_reward"] == 1.0


@pytest.mark.parametrize("name", FORMATS)
async def test_the_example_is_in_the_models_own_format_and_would_be_paid(env_class, name):
    env = env_class()
    env.tool_format = FORMATS[name]
    first = await env.reset({"id": "t", "question": "?", "answer": "408"}, seed=0)
    assert [message["role"] for message in first] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert (await env.step(first[2]["content"], "stop")).reward == 0.5
    assert (await env.step(first[4]["content"], "stop")).info["outcome_reward"] == 1.0


def test_an_unknown_data_set_is_told():
    with pytest.raises(ValueError, match="no data set 'divide'; there are add, subtract, multiply"):
        Arithmetic.tasks("train", "divide")


# ── presets, and the model that a command makes ──────────────────────────────


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_whole(preset):
    config = load_config(preset)
    assert load_env(config.env.path, config.env.args)
    assert str(config.run.dir) == f"runs/{Path(preset).stem}"


def test_a_model_that_a_command_makes_is_named_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(Path(__file__).parents[1] / PRESETS[0])
    with pytest.raises(ServerError, match=r"no such model folder .*; `make smollm2` makes it"):
        check_model(config)
    with pytest.raises(FileNotFoundError, match=r"not a model folder .*; `make smollm2` makes it"):
        resolve_model(config.model.path)
    with pytest.raises(FileNotFoundError, match=r"no config.json\)$"):
        resolve_model(tmp_path)


def test_the_gguf_file_of_a_package_is_found_without_running_it(tmp_path, monkeypatch):
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="want one GGUF file in the package, found 0"):
        find_gguf("package:carries_a_model")
    (package / "model.gguf").touch()
    assert find_gguf("package:carries_a_model") == find_gguf(str(package / "model.gguf"))
    assert "carries_a_model" not in sys.modules
    for missing in ("package:carries_nothing", str(tmp_path / "none.gguf")):
        with pytest.raises(FileNotFoundError, match=r"not installed|no such file"):
            find_gguf(missing)
