"""Tool-call parsing and running: every fault is a message to the model, none stops the rest."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.base import Tool, ToolCall
from tools.formats import HERMES
from tools.runner import blocking_calls, run_calls
from tools.search import SearchTool
from tools.search_index import Passage, SearchIndex
from tools.threads import BlockingCalls, GivenUp, TooManyHung


def block(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


# ── hermes ───────────────────────────────────────────────────────────────────


def test_several_calls_in_order_with_text_between():
    text = "think " + block('\n{"name": "a", "arguments": {"x": 1}}\n') + " and " + block('{"name": "b"}') + " end"
    assert HERMES.parse(text) == [ToolCall("a", {"x": 1}), ToolCall("b", {})]


def test_no_block_is_no_call():
    assert HERMES.parse('{"name": "a", "arguments": {}} </tool_call>') == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (block('{"name": "a", "arguments": {}'), "not valid JSON"),
        (block('{"name": "a", "arguments": {"x": NaN}}'), "not valid JSON"),
        (block('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}"), "not valid JSON"),
        (block("[" * 100_000), "not valid JSON"),
        (block("[1]"), "not a JSON object"),
        (block('{"arguments": {}}'), '"name" is missing'),
        (block('{"name": 3}'), '"name" is missing'),
        (block('{"name": "a", "arguments": "x"}'), '"arguments" is not a JSON object'),
        ('<tool_call>{"name": "a"}', "not closed"),
    ],
)
def test_each_mistake_is_a_problem_in_words(text, words):
    [call] = HERMES.parse(text)
    assert words in call.problem and call.arguments is None
    assert "<tool_call>" in call.problem, "tells the model the right form"


def test_an_unclosed_block_spoils_only_itself():
    first, second = HERMES.parse('<tool_call>{"name": "a"} ' + block('{"name": "b"}'))
    assert "not closed" in first.problem
    assert second == ToolCall("b", {})


def test_a_call_cut_by_the_token_limit_is_not_a_call():
    text = block('{"name": "a"}') + '<tool_call>{"name": "b", "argu'
    assert HERMES.parse(text, cut=True) == [ToolCall("a", {})]
    assert len(HERMES.parse(text, cut=False)) == 2


_pieces = st.lists(
    st.one_of(
        st.text(),
        st.sampled_from(["<tool_call>", "</tool_call>", '{"name":', '"a"', '"arguments":', "{}", "}", "\\ud800"]),
    )
)


@settings(max_examples=150, deadline=None)
@given(_pieces, st.booleans())
def test_parsing_is_total(pieces, cut):
    for call in HERMES.parse("".join(pieces), cut=cut):
        assert (call.problem is None) == isinstance(call.arguments, dict)
        call.name.encode()


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8), st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=4))
    )
)
def test_arguments_survive(arguments):
    body = json.dumps({"name": "t", "arguments": arguments}).replace("<", "\\u003c")
    assert HERMES.parse(block(body)) == [ToolCall("t", arguments)]


# ── runner ───────────────────────────────────────────────────────────────────


class Echo(Tool):
    name, description = "echo", "Says it again."
    parameters: ClassVar = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "after_s": {"type": "number"}},
        "required": ["text"],
    }
    max_output_chars = 20

    async def execute(self, text, after_s=0):
        await asyncio.sleep(after_s)
        return text


class Misbehaving(Tool):
    """A plain function that does whatever ``how`` says."""

    name, description = "bad", "Misbehaves."
    parameters: ClassVar = {"type": "object"}
    timeout_s = 0.2

    def __init__(self, how):
        self.how = how

    def execute(self):
        return self.how()


def raises(error):
    def how():
        raise error

    return how


async def run_one(tool, **arguments):
    [result] = await run_calls([tool], [ToolCall(tool.name, arguments)])
    return result


async def test_calls_of_a_turn_run_concurrently_and_are_answered_in_order():
    calls = [ToolCall("echo", {"text": str(i), "after_s": 0.3 - 0.1 * i}) for i in range(4)]
    started = time.perf_counter()
    results = await run_calls([Echo()], [*calls[:2], ToolCall("nope", {}), *calls[2:]])
    assert time.perf_counter() - started < 0.55
    assert [r.text for r in results if r.fault is None] == ["0", "1", "2", "3"]
    assert results[2].fault == "unknown_tool" and "echo" in results[2].text
    assert 0.25 < results[0].latency_s < 0.5


async def test_arguments_are_checked_before_the_tool_runs():
    missing = await run_one(Echo())
    assert missing.fault == "bad_arguments" and "'text' is a required property" in missing.text
    wrong = await run_one(Echo(), text=3)
    assert wrong.fault == "bad_arguments" and "$.text" in wrong.text
    # The schema allows more than the function takes.
    extra = await run_one(Echo(), text="a", colour="red")
    assert extra.fault == "bad_arguments" and "colour" in extra.text


async def test_a_malformed_call_is_answered_with_its_problem():
    [result] = await run_calls([Echo()], HERMES.parse(block("{")))
    assert result.fault == "malformed" and "not valid JSON" in result.text


@pytest.mark.parametrize(
    ("how", "fault", "words"),
    [
        (raises(ValueError("no such page")), "error", "ValueError: no such page"),
        (raises(ValueError("x" * 10_000)), "error", "…"),
        (raises(TimeoutError("of its own")), "error", "of its own"),
        (raises(SystemExit(3)), "error", "SystemExit"),
        (raises(StopIteration()), "error", "StopIteration"),
        (raises(asyncio.CancelledError()), "error", "CancelledError"),
        (lambda: time.sleep(0.6), "timeout", "within 0.2 s"),
        (lambda: b"bytes", "not_text", "bytes"),
        (lambda: None, "not_text", "NoneType"),
        (lambda: "a\0b", "not_text", "binary"),
        (lambda: "y" * 10_000_000, "too_long", "4000 of 10000000 characters"),
    ],
)
async def test_what_a_plain_tool_does_wrong_is_a_message(how, fault, words):
    result = await run_one(Misbehaving(how))
    assert result.fault == fault and words in result.text
    assert len(result.text) < 5000


async def test_text_is_always_encodable():
    result = await run_one(Misbehaving(lambda: "a\udcffb"))
    assert result.text == "a?b" and result.fault is None


async def test_data_is_for_the_environment_only():
    result = await run_one(Misbehaving(lambda: ("seen", ["hidden"])))
    assert result.text == "seen" and result.data == ["hidden"]


async def test_a_coroutine_that_fails_exits_or_resists_cancellation():
    class Stubborn(Echo):
        timeout_s = 0.1

        async def execute(self, text):
            if text == "exit":
                raise SystemExit(1)
            if text == "cancel":
                raise asyncio.CancelledError
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                await asyncio.sleep(0.3)

    tool = Stubborn()
    results = await run_calls([tool], [ToolCall("echo", {"text": t}) for t in ("exit", "cancel", "hang")])
    assert [r.fault for r in results] == ["error", "error", "timeout"]


async def test_cancellation_of_the_caller_is_propagated():
    started = threading.Event()
    tool = Misbehaving(lambda: (started.set(), time.sleep(0.3))[1])
    tool.timeout_s = 10
    task = asyncio.create_task(run_one(tool))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert blocking_calls.abandoned >= 1


# ── threads ──────────────────────────────────────────────────────────────────


async def test_hung_calls_give_up_their_place_and_are_bounded():
    threads = BlockingCalls(size=2, max_abandoned=3)
    release = threading.Event()
    hung = [asyncio.create_task(threads.run(lambda: release.wait(30), 0.05)) for _ in range(3)]
    for outcome in await asyncio.gather(*hung, return_exceptions=True):
        assert isinstance(outcome, GivenUp)
    assert threads.abandoned == 3
    with pytest.raises(TooManyHung):
        await threads.run(lambda: 1, 1)
    release.set()
    async with asyncio.timeout(5):
        while threads.abandoned:
            await asyncio.sleep(0.01)
    assert await threads.run(lambda: 1, 1) == 1


async def test_threads_are_reused_and_the_wait_for_a_place_is_not_timed():
    threads = BlockingCalls(size=2)

    def slow():
        time.sleep(0.2)
        return threading.get_ident()

    # Ten calls through two places take 1 s: none may count its wait as its own time.
    idents = await asyncio.gather(*(threads.run(slow, 0.8) for _ in range(10)))
    assert len(set(idents)) < 6  # two places; a thread may be replaced between two calls, but is not made for each


# ── search ───────────────────────────────────────────────────────────────────


async def test_search_answers_with_passages_and_reports_titles():
    passages = [Passage("1", "Nora Marsh", "A person born in Old Dover."), Passage("2", "Old Dover", "A city.")]
    result = await run_one(SearchTool(SearchIndex(passages), top_k=1), query="Nora Marsh")
    assert result.text == "- Nora Marsh: A person born in Old Dover."
    assert result.data == ["Nora Marsh"]
    assert (await run_one(SearchTool(SearchIndex(passages), top_k=1), query=["Nora"])).fault == "bad_arguments"
