"""Our parsers and Mistral's form against the libraries that others use for them: vLLM, mistral-common."""

from __future__ import annotations

import json

import pytest

from envs.function_calling import DeclaredTool
from tests.chat_templates import byte_tokenizer
from tests.test_chat import TOOLS, family
from tools.formats import FORMATS

PARSERS = {
    "hermes": "hermes",
    "qwen_xml": "qwen3_coder",
    "llama3": "llama3_json",
    "mistral": "mistral",
    "pythonic": "pythonic",
}
FUNCTION = {
    "name": "book",
    "description": "d",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "nights": {"type": "integer"}, "guests": {"type": "array"}},
    },
}


def xml(**values: str) -> str:
    return "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())


#: (format, text of a turn) that are read alike.
ALIKE = [
    ("hermes", 'a <tool_call>\n{"name": "book", "arguments": {"city": "Rome"}}\n</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"name": "g", "arguments": {"a": [1]}}</tool_call>'),
    ("hermes", "no call"),
    ("qwen_xml", f"so\n<tool_call>\n<function=book>\n{xml(city='Old Dover', nights='2')}</function>\n</tool_call>"),
    ("qwen_xml", f"<tool_call>\n<function=book>\n{xml(guests='[1, 2]')}</function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>"),
    ("qwen_xml", "no call"),
    ("llama3", '{"name": "book", "parameters": {"city": "Rome"}}'),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "arguments": {"a": null}}'),
    ("llama3", "no call"),
    ("mistral", '[TOOL_CALLS]book[ARGS]{"city": "Rome"}'),
    ("mistral", 'a[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{"a": {"b": "}"}}'),
    ("mistral", "no call"),
    ("pythonic", "[book(city='Rome', nights=2), f()]"),
    ("pythonic", "[f(a={'b': [1.5, None, True]}, c=-3)]"),
    ("pythonic", "no call"),
]  # fmt: skip

#: (format, text, what vLLM's parser makes of it, what ours says): where an agent that learns needs another answer.
DIFFERENT = [
    ("hermes", '<tool_call>{"name": "f", "argu</tool_call>', [], "not valid JSON"),
    ("llama3", 'I could write {"name": "f", "parameters": {}}', [("f", {})], None),
    ("llama3", '{"name": "f", "parameters": ', [], "not valid JSON"),
    ("pythonic", "[f(1)]", [], "by name only"),
    ("pythonic", "[f(a='x)]", [], "not valid Python"),
]


@pytest.fixture(scope="module")
def vllm_reads():
    """format, text → [(name, arguments)] as vLLM's parser for that family reads it."""
    pytest.importorskip("vllm")
    from transformers import PreTrainedTokenizerFast
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tools = [{"type": "function", "function": FUNCTION}]
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "q"}], model="m", tools=tools)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())

    def read(form: str, text: str) -> list[tuple[str, dict]]:
        parser = ToolParserManager.get_tool_parser(PARSERS[form])(tokenizer, request.tools)
        found = parser.extract_tool_calls(text, request).tool_calls
        return [(call.function.name, json.loads(call.function.arguments)) for call in found]

    return read


@pytest.mark.parametrize(("form", "text"), ALIKE)
def test_vllm_reads_it_alike(vllm_reads, form, text):
    calls = FORMATS[form].parse(text, [DeclaredTool(FUNCTION)])
    assert [(call.name, call.arguments) for call in calls] == vllm_reads(form, text)


@pytest.mark.parametrize(("form", "text", "theirs", "words"), DIFFERENT)
def test_vllm_reads_it_differently(vllm_reads, form, text, theirs, words):
    assert vllm_reads(form, text) == theirs
    calls = FORMATS[form].parse(text)
    assert (calls == []) if words is None else (words in calls[0].problem)


def test_the_mistral_template_of_the_tests_writes_what_mistral_common_writes():
    pytest.importorskip("mistral_common")
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    call = {"id": "call00000", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "search", "tool_call_id": "call00000", "content": "found"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "go on"},
    ]
    request = ChatCompletionRequest.from_openai(messages, tools=TOOLS)
    theirs = MistralTokenizer.v3(is_tekken=True).encode_chat_completion(request).text
    call["function"]["arguments"] = {"query": "x"}
    assert family("MISTRAL")._template.render(messages, TOOLS) == theirs
