"""Tool-call formats: what is a call, what is a mistake and how it is told, what stays thinking."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.function_calling import DeclaredTool
from tests import chat_templates as templates
from tools.base import ToolCall
from tools.formats import FORMATS, UnknownFormat, detect_format
from tools.formats.thinking import without_thinking

HERMES, XML, LLAMA, MISTRAL, PYTHONIC = (FORMATS[n] for n in ("hermes", "qwen_xml", "llama3", "mistral", "pythonic"))

BOOK = DeclaredTool(
    {
        "name": "book",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "nights": {"type": "integer"},
                "price": {"type": "number"},
                "breakfast": {"type": "boolean"},
                "guests": {"type": "array"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "room": {"type": ["integer", "string"]},
                "anything": {},
            },
        },
    }
)


def xml(**values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=book>\n{parameters}</function>\n</tool_call>"


SEARCH_X = [ToolCall("search", {"q": "x"})]
TWO = [*SEARCH_X, ToolCall("add", {"a": 1, "b": [True, None]})]
JSON_X, JSON_ADD = (
    '{"name": "search", "parameters": {"q": "x"}}',
    '{"name": "add", "parameters": {"a": 1, "b": [true, null]}}',
)


# ── calls ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        (HERMES, 'so <tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call> then', SEARCH_X),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"q": "</tool_call>"}}</tool_call>', [ToolCall("f", {"q": "</tool_call>"})]),
        (XML, "I look.\n" + xml(city="Old\nDover", nights="2"), [ToolCall("book", {"city": "Old\nDover", "nights": 2})]),
        (XML, "<function=book></function>", [ToolCall("book", {})]),
        (XML, xml(city="a </tool_call> b") + xml(), [ToolCall("book", {"city": "a </tool_call> b"}), ToolCall("book", {})]),
        (LLAMA, f" {JSON_X}", SEARCH_X),
        (LLAMA, f"<|python_tag|>{JSON_X}; {JSON_ADD} done", TWO),
        (LLAMA, f"Let me see. <|python_tag|>{JSON_X}\n<|python_tag|>{JSON_ADD}", TWO),
        (LLAMA, JSON_X.replace("parameters", "arguments"), SEARCH_X),
        (LLAMA, f"I would write {JSON_X}", []),
        (MISTRAL, '[TOOL_CALLS] [{"name": "search", "arguments": {"q": "x"}}]', SEARCH_X),
        (MISTRAL, 'ok[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcDEF123"}, {"name": "g"}]', [ToolCall("f", {}, call_id="abcDEF123"), ToolCall("g", {})]),
        (MISTRAL, '[TOOL_CALLS]search[ARGS]{"q": "x"}[TOOL_CALLS]add[ARGS]{"a": 1, "b": [true, null]}', TWO),
        (MISTRAL, '[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}', [ToolCall("f", {}, call_id="abcDEF123")]),
        (MISTRAL, '[TOOL_CALLS]search{"q": "x"}', SEARCH_X),
        (MISTRAL, '[TOOL_CALLS][{"name": "search", "arguments": {"q": "x"}, "id": "not 9 letters"}]', SEARCH_X),
        (PYTHONIC, "\n[search(q='x'), add(a=1, b=[True, None])]\n", TWO),
        (PYTHONIC, "I look.<|tool_call_start|>[search(q=\"x\"), add(a=1, b=[true, null])]<|tool_call_end|>", TWO),
        (PYTHONIC, "<|python_start|>[shop.buy(price=-1.5, of={'a': (1, 2)})]", [ToolCall("shop.buy", {"price": -1.5, "of": {"a": [1, 2]}})]),
        (PYTHONIC, "[1] says [search(q='x')]", []),
        (PYTHONIC, "see [link](http://a.b)", []),
    ],
)  # fmt: skip
def test_what_is_a_call(form, text, calls):
    assert form.parse(text, [BOOK]) == calls


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        (HERMES, '<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', "not valid JSON"),
        (HERMES, '<tool_call>{"name": "a"} and more</tool_call>', "text follows"),
        (XML, "<tool_call>{}</tool_call>", "no <function=name>"),
        (XML, "<tool_call><function=book><parameter=city>Rome</function></tool_call>", "city is not closed"),
        (XML, "<tool_call><function=book>Rome</function></tool_call>", "not closed with </function>"),
        (XML, "<tool_call><function=book></function>", "not closed with </tool_call>"),
        (LLAMA, '{"name": "a", ', "not valid JSON"),
        (LLAMA, '{"answer": 4}', '"name" is missing'),
        (LLAMA, '<|python_tag|>search.call(query="x")', "not valid JSON"),
        (LLAMA, '{"name": "a", "parameters": "x"}', '"parameters" is not a JSON object'),
        (MISTRAL, "[TOOL_CALLS] I call search", "follows [TOOL_CALLS]"),
        (MISTRAL, "[TOOL_CALLS][]", "empty"),
        (MISTRAL, "[TOOL_CALLS][3]", "not a JSON object"),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a": }', "not valid JSON"),
        (PYTHONIC, "[f(1)]", "by name only"),
        (PYTHONIC, "[f(**{'a': 1})]", "by name only"),
        (PYTHONIC, "[f(a=g())]", "plain value"),
        (PYTHONIC, "[f(a=__import__('os').system('true'))]", "plain value"),
        (PYTHONIC, "[f(a=b'x')]", "plain value"),
        (PYTHONIC, "[f(a=1j, b=2)]", "plain value"),
        (PYTHONIC, "[f(a={1: 2})]", "plain value"),
        (PYTHONIC, "[f(a=1), 2]", "not a call"),
        (PYTHONIC, "[f(a=1), f()()]", "not a name"),
        (PYTHONIC, "[f(a='x)]", "not valid Python"),
        (PYTHONIC, "[f(a=1) for f in x]", "not a list of calls"),
        (PYTHONIC, f"[f(a={'-' * 30_000}1)]", "nested too deeply"),
        (PYTHONIC, f"[f(a='{'x' * 40_000}')]", "more than"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_the_right_form(form, text, words):
    problem = form.parse(text)[-1].problem
    assert words in problem and problem.endswith(form.expected)


@pytest.mark.parametrize(
    ("form", "text", "whole"),
    [
        (HERMES, '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"', 1),
        (XML, xml(city="Rome") + "<tool_call><function=book><parameter=city>Ro", 1),
        (XML, "<tool_call>\n<fun", 0),
        (LLAMA, '{"name": "a"}; {"name": "b", "par', 1),
        (MISTRAL, '[TOOL_CALLS][{"name": "a"}, {"na', 0),
        (MISTRAL, "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[AR", 1),
        (PYTHONIC, "[a(), b(q='x", 0),
        (PYTHONIC, "<|tool_call_start|>[a()]<|tool_call_end|><|tool_call_start|>[b(", 1),
    ],
)
def test_a_call_cut_by_the_token_limit_is_not_a_call(form, text, whole):
    cut = form.parse(text, cut=True)
    assert len(cut) == whole and all(call.problem is None for call in cut)
    assert form.parse(text, cut=False)[-1].problem, "the same text ended by the model is a mistake"


def test_one_broken_call_spoils_only_itself():
    assert [c.name for c in MISTRAL.parse("[TOOL_CALLS]f[ARGS]{x}[TOOL_CALLS]g[ARGS]{}")] == ["f", "g"]
    assert [c.name for c in XML.parse("<tool_call>x</tool_call>" + xml())] == ["", "book"]
    assert [c.name for c in PYTHONIC.parse("[f(1), g()]")] == ["f", "g"]


# ── types of the XML form ────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "123", "123"),
        ("city", "null", "null"),
        ("city", "\n a \n", "\n a \n"),
        ("nights", "3", 3),
        ("nights", " 3 ", 3),
        ("nights", "three", "three"),
        ("nights", "2.5", "2.5"),
        ("nights", "true", "true"),
        ("price", "3", 3),
        ("price", "2.5", 2.5),
        ("breakfast", "true", True),
        ("breakfast", "False", False),
        ("guests", '["Ada", "Bo"]', ["Ada", "Bo"]),
        ("guests", "['Ada']", "['Ada']"),
        ("note", "null", None),
        ("note", "late", "late"),
        ("note", "7", "7"),
        ("room", "12", 12),
        ("room", "12b", "12b"),
        ("anything", "5", "5"),
        ("unheard_of", "5", "5"),
    ],
)
def test_a_value_has_the_type_that_the_schema_says(key, text, value):
    [call] = XML.parse(xml(**{key: text}), [BOOK])
    assert call.arguments == {key: value} and type(call.arguments[key]) is type(value)


# ── thinking ─────────────────────────────────────────────────────────────────

CALLS = {name: form.render(SEARCH_X) for name, form in FORMATS.items()}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("opening", "closing"), [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_what_is_thought_is_no_call(name, opening, closing):
    form, call = FORMATS[name], CALLS[name]
    assert form.parse(f"{opening}\n{call}\n{closing}\n\nI know it.") == []
    assert form.parse(f"{opening}\nmaybe {call}\n{closing}\n\n{call}") == SEARCH_X
    assert form.parse(f"{opening}a{closing} {opening}{call}{closing}{call}") == SEARCH_X


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_in_thinking_that_is_never_closed_is_a_mistake(name):
    form = FORMATS[name]
    [call] = form.parse(f"<think>{CALLS[name]}")
    assert "thinking" in call.problem and call.problem.endswith(form.expected)
    assert form.parse("<think>I do not know") == []
    assert form.parse(f"<think>{CALLS[name]}", cut=True) == []


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", ["<think>", "</think>", "a <think> b </think> c", "[THINK]"])
def test_a_tag_in_an_argument_is_text(name, value):
    calls = [ToolCall("search", {"q": value}), ToolCall("search", {"q": "y"})]
    assert FORMATS[name].parse("<think>hm</think>" + FORMATS[name].render(calls)) == calls


def test_a_turn_without_its_thinking():
    assert without_thinking("<think>a</think> b [THINK]c[/THINK]d<think>e") == " b d"


# ── any text, any call ───────────────────────────────────────────────────────

_PIECES = [
    *("<tool_call>", "</tool_call>", "<function=", "f>", "<parameter=", "k>", "</parameter>", "</function>", "[TOOL_CALLS]"),
    *("[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>", "[", "]", "f(", "a=", ")", ", "),
    *('{"name": "f", "arguments": {}}', '{"name":', '"parameters":', "{", "}", "\\ud800", "<think>", "</think>", ";", "\n"),
    *(CALLS.values()),
]  # fmt: skip
_TEXT = st.lists(st.one_of(st.text(max_size=5), st.sampled_from(_PIECES)), max_size=14).map("".join)


@settings(max_examples=80, deadline=None)
@given(_TEXT, st.booleans())
def test_parsing_is_total(text, cut):
    for form in FORMATS.values():
        for call in form.parse(text, [BOOK], cut):
            assert (call.problem is None) == isinstance(call.arguments, dict)
            call.name.encode()


@settings(max_examples=40, deadline=None)
@given(_TEXT, _TEXT)
def test_nothing_that_is_thought_gets_called(before, thought):
    thought = thought.replace("</think>", "").replace("[/THINK]", "")
    for form in FORMATS.values():
        assert form.parse(f"<think>{thought}</think>") == []
        assert form.parse(f"<think>{thought}") == [] or form.parse(f"<think>{thought}")[0].problem


_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_CALLS = st.lists(st.builds(ToolCall, _NAMES, st.dictionaries(_NAMES, _VALUES, max_size=4)), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(_CALLS)
def test_what_is_rendered_is_read_as_it_was(calls):
    for form in (HERMES, LLAMA, MISTRAL, PYTHONIC):
        text = form.render(calls)
        assert form.parse(text) == calls
        assert form.render(form.parse(text)) == text


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(_NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=4))
def test_xml_text_is_read_as_it_was_rendered(arguments):
    assert XML.parse(XML.render([ToolCall("f", arguments)])) == [ToolCall("f", arguments)]


def test_xml_values_with_a_type_are_read_as_they_were_rendered():
    arguments = {"city": "3", "nights": 3, "price": 0.5, "breakfast": False, "guests": [{"a": None}], "note": None}
    assert XML.parse(XML.render([ToolCall("book", arguments)]), [BOOK]) == [ToolCall("book", arguments)]


@pytest.mark.parametrize(
    ("form", "call"),
    [
        (XML, ToolCall("f", {"a": "x</parameter>"})),
        (XML, ToolCall("f", {"a>b": "x"})),
        (XML, ToolCall("f>", {})),
        (PYTHONIC, ToolCall("f", {"from": "x"})),
        (PYTHONIC, ToolCall("get-price", {})),
    ],
)
def test_what_a_format_cannot_write_is_refused(form, call):
    with pytest.raises(ValueError, match="cannot be written"):
        form.render([call])


# ── real templates ───────────────────────────────────────────────────────────


def published(name: str) -> str:
    """A model's own chat template, as the trl package ships it."""
    trl = importlib.util.find_spec("trl")
    if trl is None:
        pytest.skip("trl is not installed")
    return (Path(trl.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


DETECTED = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_instruct_2507": "hermes",
    "qwen3_5_think": "qwen_xml",
    "qwen3_5_nothink": "qwen_xml",
    "qwen3_6": "qwen_xml",
    "nemotron_3_nano": "qwen_xml",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "lfm2": "pythonic",
    "lfm2_2_5": "pythonic",
    "phi3": None,
    "gemma": None,
}
FOREIGN = {"glm4moe": "GLM", "deepseekv3": "DeepSeek", "gptoss": "gpt-oss", "gemma4": "Gemma 4"}


@pytest.mark.parametrize("name", DETECTED)
def test_the_format_is_read_off_the_template(name):
    found = detect_format(published(name))
    assert (found and found.name) == DETECTED[name]


@pytest.mark.parametrize("name", ["MISTRAL", "MISTRAL_NAMED", "LLAMA_PYTHONIC"])
def test_the_format_is_read_off_templates_in_the_style_of(name):
    assert detect_format(getattr(templates, name)).name == ("pythonic" if "PYTHONIC" in name else "mistral")


@pytest.mark.parametrize("name", FOREIGN)
def test_a_form_that_is_not_known_is_named(name):
    with pytest.raises(UnknownFormat, match=FOREIGN[name]):
        detect_format(published(name))
