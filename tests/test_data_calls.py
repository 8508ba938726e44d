"""The rules by which calls are the expected ones, and the environment that pays for them."""

import itertools
import json
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.call_matching import accepts, count_matched, reference_arguments
from envs.registry import load_env
from tools.base import ToolCall


def call(name="f", **arguments):
    return ToolCall(name, arguments)


@pytest.mark.parametrize(
    ("value", "accepted", "right"),
    [
        (5, [5], 1), (5.0, [5], 1), (5, [5.0], 1), (6, [5], 0), ("5", [5], 0), (5, ["5"], 0), (5, [4, 5], 1),
        (True, [True], 1), (True, [1], 0), (1, [True], 0), (False, [0], 0), (None, [None], 1), (0, [None], 0),
        ("New York, NY", ["new york ny"], 1), ("it's", ['it"s'], 1), ("a^2 + b_1", ["a2+b1"], 1),
        ("Rome", ["Oslo", "rome"], 1), ("Rome!", ["Rome"], 0), ("", ["", "m"], 1),
        ([1, "A b"], [[1.0, "ab"]], 1), ([2, 1], [[1, 2]], 0), ([1], [[1, 2]], 0), ([1, 2], [[3], [1, 2]], 1), ([], [[]], 1),
        ([[1], [2]], [[[1], [2]]], 1), (1, [[1]], 0), ([1], [1], 0),
        ({"k": 1}, [{"k": [1, 2]}], 1), ({"k": 3}, [{"k": [1, 2]}], 0), ({}, [{"k": [1, ""]}], 1), ({}, [{"k": [1]}], 0),
        ({"k": 1, "l": 1}, [{"k": [1]}], 0), ({"k": "v"}, [{"k": "v"}], 1), ("k", [{"k": [1]}], 0),
        ([{"k": 1}, {"k": 2}], [[{"k": [1]}, {"k": [2, 3]}]], 1), ({"k": {"l": 1}}, [{"k": [{"l": [1]}]}], 1),
    ],
)  # fmt: skip
def test_a_value_is_accepted(value, accepted, right):
    assert accepts({"x": accepted}, call(x=value)) == bool(right)


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"a": 1}, True),
        ({"a": 1, "b": 2}, True),
        ({"a": 1, "b": 3}, False),
        ({"b": 2}, False),
        ({"a": 1, "c": 1}, False),
    ],
)
def test_only_optional_arguments_may_be_missing_and_none_may_be_more(arguments, right):
    assert accepts({"a": [1], "b": [2, ""]}, call(**arguments)) == right


def test_a_call_that_could_not_be_read_is_no_call_of_anything():
    assert not accepts({}, ToolCall("f", None, "malformed"))
    assert count_matched([ToolCall("f", None, "malformed")], [{"name": "f", "possible_args": {}}]) == 0


def test_the_reference_takes_first_values_and_leaves_out_what_may_be():
    accepted = {"a": [1, 2], "b": ["", "u"], "c": [{"k": [3], "l": ["", 4]}], "d": [[{"m": [5]}]]}
    assert reference_arguments(accepted) == {"a": 1, "c": {"k": 3}, "d": [{"m": 5}]}
    assert reference_arguments(accepted, required=["b"])["b"] == "u"
    assert accepts(accepted, call(**reference_arguments(accepted)))


def expect(*values, name="f"):
    return {"name": name, "possible_args": {"x": list(values)}}


def test_parallel_calls_match_in_any_order_each_once():
    one, two = expect(1), expect(2)
    assert count_matched([call(x=2), call(x=1)], [one, two]) == 2
    assert count_matched([call(x=1), call(x=1)], [one, two]) == 1
    assert count_matched([call(x=1)], [one, one]) == 1
    assert count_matched([call("g", x=1)], [one]) == 0
    # Taking the first that fits, as the leaderboard does, would leave the second without a partner.
    assert count_matched([call(x=1), call(x=2)], [expect(1, 2), expect(1)]) == 2


_SETS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=5)


@settings(max_examples=100, deadline=None)
@given(_SETS, st.lists(st.integers(0, 4), max_size=5))
def test_the_matching_is_the_largest_there_is(sets, values):
    expected, calls = [expect(*accepted) for accepted in sets], [call(x=value) for value in values]
    size = max(len(sets), len(values))
    padded = values + [None] * (size - len(values))
    best = max(sum(v in s for v, s in zip(order, sets)) for order in itertools.permutations(padded))
    assert count_matched(calls, expected) == best


# ── the environment ──────────────────────────────────────────────────────────

ROW = {
    "messages": [{"role": "user", "content": "Weather in Oslo and Rome?"}],
    "tools": [{"function": {"name": "weather", "description": "Weather.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "self": {"type": "integer"}}, "required": ["city"]}}}],
    "expected_calls": [{"name": "weather", "possible_args": {"city": ["Oslo"], "self": [1, ""]}},
                       {"name": "weather", "arguments": {"city": "Rome"}}],
}  # fmt: skip


def turn(*calls):
    return "so " + "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>" for name, arguments in calls
    )


async def play(tmp_path, text, finish="stop", row=ROW, **options):
    path = tmp_path / f"{uuid.uuid4()}.jsonl"  # a file is read once a process
    path.write_text(json.dumps(row))
    env_class = load_env("envs.function_calling:FunctionCalling", {"files": {"eval": {"d": str(path)}}, **options})
    [task] = env_class.tasks("eval", "d")
    env = env_class()
    messages = await env.reset(task, seed=0)
    schemas = [tool.schema() for tool in env.tools]
    result = await env.step(text, finish)
    await env.close()
    return messages, schemas, result


OSLO, ROME = ("weather", {"city": "oslo"}), ("weather", {"city": "Rome"})


@pytest.mark.parametrize(
    ("calls", "em", "matched", "format"),
    [
        ([OSLO, ROME], 1, 1, 1),
        ([ROME, ("weather", {"city": "Oslo", "self": 1})], 1, 1, 1),
        ([ROME], 0, 0.5, 1),
        ([OSLO, ROME, ROME], 0, 2 / 3, 1),
        ([OSLO, ("weather", {"city": "Paris"})], 0, 0.5, 1),
        ([OSLO, ("rain", {"city": "Rome"})], 0, 0.5, 0),
        ([OSLO, ("weather", {"city": 3})], 0, 0.5, 0),
        ([], 0, 0, 1),
    ],
)
async def test_one_turn_is_paid_if_its_calls_are_the_expected_ones(tmp_path, calls, em, matched, format):
    _, _, result = await play(tmp_path, turn(*calls))
    assert result.done and result.info["outcome_reward"] == em and len(result.tool_results) == len(calls)
    assert result.info["metrics"] == {
        "em": em, "matched": pytest.approx(matched), "calls": len(calls), "format": format,
    }  # fmt: skip


async def test_the_model_sees_the_conversation_and_the_functions(tmp_path):
    messages, schemas, _ = await play(tmp_path, "", instructions="Call functions.")
    assert [m["role"] for m in messages] == ["system", "user"] and messages[1] == ROW["messages"][0]
    assert schemas == [{"type": "function", **ROW["tools"][0]}]
    own = {**ROW, "messages": [{"role": "system", "content": "Mine."}, *ROW["messages"]]}
    messages, _, _ = await play(tmp_path, "", row=own, instructions="Call functions.")
    assert [m["content"] for m in messages] == ["Mine.", "Weather in Oslo and Rome?"]


async def test_no_call_can_be_what_is_expected_and_a_cut_call_is_none(tmp_path):
    none = {**ROW, "id": "none", "expected_calls": []}
    _, _, result = await play(tmp_path, "I cannot help with that.", row=none)
    assert result.info["outcome_reward"] == 1.0 and result.info["metrics"]["matched"] == 1.0
    _, _, result = await play(tmp_path, turn(OSLO), row=none)
    assert result.info["outcome_reward"] == 0.0
    _, _, result = await play(tmp_path, turn(OSLO, ROME).removesuffix("</tool_call>"), finish="length")
    assert result.info["metrics"]["calls"] == 1 and result.info["outcome_reward"] == 0.0
