"""Whole episodes in each format: calls are made, a mistake is told in the template's own form, the answer is scored."""

from __future__ import annotations

import json

import pytest

from actors.episode import Sampling, run_episode
from tests.actor_cases import LIMITS, PAYLOAD, QA, TASK, sampler_for
from tests.canned_server import CannedServer, answer
from tests.test_chat import family
from tools.base import ToolCall

#: Template → what a broken call looks like, and how the template shows the answer of a tool.
MODELS = {
    "qwen3": ('<tool_call>{"name": }</tool_call>', "<tool_response>\n{}\n</tool_response>"),
    "qwen3_6": ("<tool_call>{}</tool_call>", "<tool_response>\n{}\n</tool_response>"),
    "llama3_1": ('{"name": ', "<|start_header_id|>ipython<|end_header_id|>\n\n{json}<|eot_id|>"),
    "MISTRAL": ("[TOOL_CALLS] search", '[TOOL_RESULTS]{{"content": {json}, "call_id": "call00000"}}[/TOOL_RESULTS]'),
    "LLAMA_PYTHONIC": ("[search('x')]", "<|start_header_id|>ipython<|end_header_id|>\n\n{}<|eot_id|>"),
}


@pytest.mark.parametrize("name", MODELS)
async def test_an_episode(name):
    chat, (broken, shown) = family(name), MODELS[name]
    title = PAYLOAD["gold_titles"][0]
    thought = "I could say [search(query='y')].\n</think>\n\n" if chat._template.opened else ""
    turns = [
        chat.tool_format.render([ToolCall("search", {"query": title}, call_id="abcDEF123")]),
        broken,
        f"<answer> {PAYLOAD['answers'][0]}</answer>",
    ]
    prompts: list[str] = []

    def script(body):
        prompts.append(chat._tokenizer.decode(body["token_ids"], skip_special_tokens=False))
        ids = [*chat._encode(thought + turns[len(prompts) - 1]), chat.eot_id]
        return answer(ids, versions=[("0", 0, len(ids))])

    async with CannedServer(script) as server, sampler_for(server) as sampler:
        trajectory = await run_episode(QA(), chat, sampler, TASK, 5, LIMITS, Sampling(1.0, 1.0), key="k")
    assert [(call["name"], call["fault"]) for call in trajectory.facts["tool_calls"][:1]] == [("search", None)]
    assert [call["fault"] for call in trajectory.facts["tool_calls"]] == [None, "malformed"]
    assert trajectory.facts["metrics"]["em"] == 1.0 and trajectory.facts["finish"] == "done"
    assert title in prompts[1][len(prompts[0]) :]
    [problem] = [call.problem for call in chat.tool_format.parse(broken)]
    told = f"Error: {problem}"
    assert shown.format(told, json=json.dumps(told)) in prompts[2][len(prompts[1]) :]
    if name == "MISTRAL":
        assert '"call_id": "abcDEF123"' in prompts[1], "the id that the model gave its call"
