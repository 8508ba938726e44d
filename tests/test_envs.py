"""Scoring by hand-worked values, the answer loop, multi-hop QA and its one-retrieval baseline."""

from __future__ import annotations

import pytest

from envs.answer_env import parse_answer
from envs.base import ToolEnv
from envs.registry import load_env
from envs.scoring import exact_match, f1, normalise, substring_match

# ── scoring ──────────────────────────────────────────────────────────────────


def test_normalisation_is_squads():
    assert normalise(" The  Old-Dover, a City! ") == "olddover city"
    assert normalise("Theatre") == "theatre", "articles are whole words"


@pytest.mark.parametrize(
    ("answer", "golds", "em", "f1_", "sub"),
    [
        ("the Beatles.", ["Beatles"], 1, 1, 1),
        ("Paris", ["London", "paris"], 1, 1, 1),
        ("it was Nora Marsh", ["Nora Marsh"], 0, 2 * 2 / (4 + 2), 1),
        ("Marsh Marsh", ["Nora Marsh"], 0, 0.5, 0),
        ("Nora", ["Nora Marsh"], 0, 2 / 3, 0),
        ("", ["Nora Marsh"], 0, 0, 0),
        ("x", [], 0, 0, 0),
        ("x", ["the"], 0, 0, 0),
    ],
)
def test_scores(answer, golds, em, f1_, sub):
    assert exact_match(answer, golds) == em
    assert f1(answer, golds) == pytest.approx(f1_)
    assert substring_match(answer, golds) == sub


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer> Old Dover</answer>", "Old Dover"),
        ("<answer>a\nb</answer>", "a\nb"),
        ("<answer> </answer>", None),
        ("<answer>a", None),
        ("a</answer>", None),
        ("<answer>a</answer><answer>b</answer>", None),
        ("<answer><answer>a</answer>", None),
        ("<answer>a</answer></answer>", None),
    ],
)
def test_a_well_formed_answer_is_exactly_one(text, answer):
    assert parse_answer(text) == answer


# ── registry ─────────────────────────────────────────────────────────────────


def test_one_class_set_up_twice_keeps_both_settings():
    one, two = load_env("envs.multihop:MultiHopQA", {"top_k": 1}), load_env("envs.multihop:MultiHopQA", {"top_k": 4})
    assert (one.top_k, two.top_k) == (1, 4)
    assert issubclass(one, ToolEnv) and one.__name__ == "MultiHopQA"


@pytest.mark.parametrize(
    ("path", "args", "words"),
    [
        ("envs.multihop", {}, "module:Class"),
        ("envs.nowhere:X", {}, "PYTHONPATH"),
        ("nowhere.at.all:X", {}, "PYTHONPATH"),
        ("envs.multihop:exact_match", {}, "not a ToolEnv class"),
        ("envs.multihop:Nope", {}, "not a ToolEnv class"),
        ("envs.multihop:MultiHopQA", {"topk": 3}, "topk"),
    ],
)
def test_a_wrong_path_or_argument_is_told(path, args, words):
    with pytest.raises(ValueError, match=words):
        load_env(path, args)


# ── multi-hop ────────────────────────────────────────────────────────────────

QA = load_env("envs.multihop:MultiHopQA", {"process_reward": 0.2})


def search(query: str) -> str:
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{query}"}}}}</tool_call>'


def two_hop_task():
    return next(t for t in QA.tasks("eval", "hotpot", 50) if len(t["gold_titles"]) == 2)


async def start(task=None):
    env = QA()
    task = task or two_hop_task()
    messages = await env.reset(task, seed=0)
    assert messages == [{"role": "user", "content": task["question"]}]
    return env, task


def test_tasks_are_stable_limited_and_from_disjoint_worlds():
    first, again = QA.tasks("eval", "musique", 20), QA.tasks("eval", "musique", 20)
    assert first == again and len({t["id"] for t in first}) == 20
    train = {title for t in QA.tasks("train", "hotpot") for title in t["gold_titles"]}
    held_out = {title for t in QA.tasks("eval", "hotpot") for title in t["gold_titles"]}
    assert train and held_out and not train & held_out


async def test_each_gold_passage_is_rewarded_once():
    env, task = await start()
    one, two = task["gold_titles"]
    found = await env.step(search(one) + search(one), "stop")
    assert found.reward == pytest.approx(0.1) and not found.done
    assert [m["role"] for m in found.messages] == ["tool", "tool"]
    assert one in found.messages[0]["content"]
    assert (await env.step(search(one), "stop")).reward == 0
    assert (await env.step(search(two), "stop")).reward == pytest.approx(0.1)
    end = await env.step(f"<think> done</think><answer> {task['answers'][0]}</answer>", "stop")
    assert end.done and end.messages == [] and end.info["outcome_reward"] == 1.0
    assert end.info["metrics"] == {"em": 1, "f1": 1, "sub_em": 1, "format": 1, "searches": 4, "found": 1}


async def test_instructions_are_a_system_message():
    env = load_env("envs.multihop:MultiHopQA", {"instructions": "Search, then answer."})()
    system, user = await env.reset(two_hop_task(), seed=0)
    assert system == {"role": "system", "content": "Search, then answer."} and user["role"] == "user"


async def test_no_message_shows_a_reward():
    env, task = await start()
    turn = await env.step(search(task["gold_titles"][0]), "stop")
    assert set(turn.messages[0]) == {"role", "name", "content"}
    assert "reward" not in turn.messages[0]["content"] and "0.1" not in turn.messages[0]["content"]


@pytest.mark.parametrize(
    ("turns", "outcome"),
    [
        (["<answer>{gold}</answer>"], 1.0),
        (["<answer>wrong</answer>"], 0.0),
        (["<tool_call>{{</tool_call>", "<answer>{gold}</answer>"], -0.5),
        (['<tool_call>{{"name": "nope"}}</tool_call>', "<answer>{gold}</answer>"], -0.5),
        (["hm"], -0.5),
        (["<tool_call>{{</tool_call>"], -1.0),
    ],
)
async def test_the_outcome_is_em_if_the_format_is_right_else_the_format_minus_one(turns, outcome):
    env, task = await start()
    for text in turns:
        result = await env.step(text.format(gold=task["answers"][0]), "stop")
    if not result.done:
        result = await env.truncate()
    assert result.done and result.info["outcome_reward"] == outcome
    assert result.info["metrics"]["em"] == float("gold" in turns[-1])


async def test_neither_call_nor_answer_gets_advice_and_the_episode_goes_on():
    env, _ = await start()
    advice = await env.step("let me think", "stop")
    assert not advice.done and advice.messages[0]["role"] == "user" and "<answer>" in advice.messages[0]["content"]
    cut = await env.step('<tool_call>{"name": "search", "argu', "length")
    assert not cut.done and cut.tool_results == [] and "length limit" in cut.messages[0]["content"]
    assert (await env.truncate()).info["outcome_reward"] == -0.5, "a call that was cut is not a malformed one"


async def test_a_call_and_an_answer_in_one_turn_runs_the_call():
    env, task = await start()
    both = await env.step(search(task["gold_titles"][0]) + "<answer>x</answer>", "stop")
    assert not both.done and len(both.tool_results) == 1


async def test_naive_rag_is_one_retrieval_and_one_turn():
    rag = load_env("envs.naive_rag:NaiveRag", {"top_k": 5})
    task = rag.tasks("eval", "hotpot", 1)[0]
    env = rag()
    [message] = await env.reset(task, seed=0)
    assert message["content"].count("\n") == 5 and message["content"].endswith(task["question"])
    assert list(env.tools) == []
    end = await env.step(f"<answer> {task['answers'][0]}</answer>", "stop")
    assert end.done and end.info["outcome_reward"] == 1.0 and end.info["metrics"]["searches"] == 1
    other = rag()
    await other.reset(task, seed=0)
    assert (await other.step(search("x"), "stop")).done, "there is no second turn"
