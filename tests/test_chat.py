"""Token ids turn by turn: what was sampled stays, only the new part of the template is added."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from unittest.mock import ANY

import pytest
from tokenizers import AddedToken

from actors.chat import ChatFormat, ChatFormatError
from tests import chat_templates as templates
from tests.test_formats import published
from tools.base import ToolCall

TOOLS = [{"type": "function", "function": {"name": "search", "description": "d", "parameters": {"type": "object"}}}]
USER = [{"role": "user", "content": "Who is on the other one?"}]
RESPONSES = [{"role": "tool", "name": "search", "content": text} for text in ("the\n\n", " theother ")]


@pytest.fixture(params=["CHATML", "DROPS_THINKING"])
def chat(request, tmp_path):
    return ChatFormat.load(str(templates.write_model(tmp_path / "model", getattr(templates, request.param))))


def turn(chat: ChatFormat, text: str) -> list[int]:
    """A turn as a policy may sample it: one token a byte, so encoding its text again gives other ids."""
    return [chat._tokenizer.token_to_id(c) for c in text.replace(" ", "Ġ").replace("\n", "Ċ")] + [chat.eot_id]


def text_of(chat: ChatFormat, ids: list[int]) -> str:
    return chat._tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("tools", [[], TOOLS])
def test_turn_by_turn_equals_the_whole_conversation(chat, tools):
    said = "on the one"
    ids = chat.prompt_ids(USER, tools)
    ids += [*chat._encode(said), chat.eot_id]
    ids += chat.continue_ids([chat.eot_id], RESPONSES, tools)
    whole = [*USER, {"role": "assistant", "content": said}, *RESPONSES]
    assert ids == chat.prompt_ids(whole, tools)


def test_the_separator_after_the_end_of_turn_is_the_environments(chat):
    added = chat.continue_ids(turn(chat, "x"), RESPONSES)
    assert text_of(chat, added).startswith("\n<|im_start|>")
    assert text_of(chat, added).endswith("<|im_start|>assistant\n")
    assert text_of(chat, added).count("<|im_end|>") in (1, 2), "its messages are closed, the sampled turn is not again"


def test_a_turn_that_was_cut_gets_its_end_of_turn_from_the_environment(chat):
    sampled = turn(chat, "cut in the mid")[:-1]
    added = chat.continue_ids(sampled, RESPONSES)
    assert added == [chat.eot_id, *chat.continue_ids([*sampled, chat.eot_id], RESPONSES)]
    # Ended by another stop token: the template's own is still missing.
    other = chat._tokenizer.token_to_id("<|endoftext|>")
    assert chat.continue_ids([*sampled, other], RESPONSES)[0] == chat.eot_id


def test_thinking_stays_although_the_template_drops_it_from_old_turns(tmp_path):
    chat = ChatFormat.load(str(templates.write_model(tmp_path / "m", templates.DROPS_THINKING)))
    sampled = turn(chat, "<think>the one</think>hm")
    ids = chat.prompt_ids(USER) + sampled + chat.continue_ids(sampled, RESPONSES)
    assert "<think>the one</think>hm<|im_end|>\n" in text_of(chat, ids)
    whole = [*USER, {"role": "assistant", "content": chat.decode(sampled)}, *RESPONSES]
    assert "<think>" not in text_of(chat, chat.prompt_ids(whole)), "the template does rewrite history"


def test_sampled_ids_are_kept_where_encoding_the_text_would_change_them(chat):
    sampled = turn(chat, "the other")
    text = chat.decode(sampled)
    assert text == "the other"
    assert [*chat._encode(text), chat.eot_id] != sampled


def test_decoding_keeps_tool_call_tags_and_drops_the_end(chat):
    call = '<tool_call>{"name": "a"}</tool_call>'
    ids = chat._encode(call)
    assert chat.decode([*ids, chat.eot_id]) == call
    assert chat.decode(ids) == call, "a turn that was cut loses nothing"


def test_stop_ids_are_the_templates_and_the_models(chat):
    assert {text_of(chat, [i]) for i in chat.stop_ids} == {"<|im_end|>", "<|endoftext|>"}


def test_the_template_file_comes_before_the_one_in_the_config(tmp_path):
    folder = templates.write_model(tmp_path / "m", templates.NO_TOOLS)
    (folder / "chat_template.jinja").write_text(templates.CHATML)
    ChatFormat.load(str(folder))


def test_a_named_template_list_gives_the_tool_template(tmp_path):
    folder = templates.write_model(tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = {"default": templates.NO_TOOLS, "tool_use": templates.CHATML}
    config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ChatFormat.load(str(folder))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (templates.COUNTS_MESSAGES, "does not only append"),
        (templates.NO_END_OF_TURN, "end-of-turn token"),
        (templates.NO_TOOLS, "Only user and assistant"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}",
            "leaves out",
        ),
        ("{% if %}", "refuses"),
    ],
)
def test_a_template_that_cannot_be_used_is_named_with_what_to_do(tmp_path, template, words):
    folder = templates.write_model(tmp_path / "my-model", template)
    with pytest.raises(ChatFormatError, match=words) as error:
        ChatFormat.load(str(folder))
    assert "my-model" in str(error.value) and "Use a template" in str(error.value)


@pytest.mark.parametrize("missing", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_file_is_named(tmp_path, missing):
    folder = templates.write_model(tmp_path / "m")
    (folder / missing).unlink()
    with pytest.raises(ChatFormatError, match=r"tokenizer\.json|chat template"):
        ChatFormat.load(str(folder))


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.rmtree(tmp_path)
    with pytest.raises(ChatFormatError, match=r"model\.path"):
        ChatFormat.load(str(tmp_path / "gone"))


# ── templates of the families ────────────────────────────────────────────────

#: Template → what ends a turn, and what the generation prompt already thinks.
FAMILIES = {
    "qwen2_5": ("<|im_end|>", ""),
    "qwen3": ("<|im_end|>", ""),
    "qwen3_instruct_2507": ("<|im_end|>", ""),
    "qwen3_5_nothink": ("<|im_end|>", ""),
    "qwen3_5_think": ("<|im_end|>", "<think>\n"),
    "qwen3_6": ("<|im_end|>", "<think>\n"),
    "nemotron_3_nano": ("<|im_end|>", "<think>\n"),
    "llama3_1": ("<|eot_id|>", ""),
    "llama3_2": ("<|eot_id|>", ""),
    "lfm2_2_5": ("<|im_end|>", ""),
    "MISTRAL": ("</s>", ""),
    "MISTRAL_NAMED": ("</s>", ""),
    "LLAMA_PYTHONIC": ("<|eot_id|>", ""),
}
CALL = ToolCall("search", {"query": "Blind Castle"})


def family(name: str) -> ChatFormat:
    template = getattr(templates, name, None) or published(name)
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatFormat(templates.byte_tokenizer(), template, special, [], name)


def called(name: str) -> dict:
    """A turn that calls a tool, as the history of a chat template has it."""
    function = {"name": CALL.name, "arguments": CALL.arguments}
    call = {"id": "call00000", "type": "function", "function": function}
    # Qwen3's template drops an empty thought from all turns but the last.
    thought = "" if name == "qwen3_5_nothink" else "why"
    return {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_with_calls_is_token_for_token_that_of_the_models_own_template(name):
    chat = family(name)
    end, opened = FAMILIES[name]
    built, messages = chat.prompt_ids(USER, TOOLS), list(USER)
    for result in ("one\n\nfound", " { two "):
        # What the template itself writes for the call is what the policy samples.
        before = chat._template.render(messages, TOOLS)
        written = chat._template.render([*messages, called(name)], TOOLS, generate=False).removeprefix(before)
        sampled = chat._encode(written[: written.rindex(end) + len(end)])
        assert chat.tool_format.parse(chat.decode(sampled)) == [replace(CALL, call_id=ANY)]
        reply = {"role": "tool", "name": "search", "content": result}
        built += sampled + chat.continue_ids(sampled, [reply], TOOLS)
        messages += [called(name), reply]
    assert built == chat.prompt_ids(messages, TOOLS)
    assert chat._template.opened == opened


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "MISTRAL_NAMED"])
def test_our_rendering_of_a_call_is_the_templates(name):
    chat = family(name)
    written = chat._template.render([*USER, called(name)], TOOLS, generate=False)
    rendered = chat.tool_format.render([replace(CALL, call_id="call00000" if name == "MISTRAL" else "")])
    if chat.tool_format.name == "pythonic":
        written = written.replace('"Blind Castle"', "'Blind Castle'")
    assert rendered in written


def test_thinking_that_the_template_opened_belongs_to_the_turn():
    chat = family("qwen3_6")
    call = chat.tool_format.render([CALL])
    sampled = [*chat._encode(f"maybe {call}? No.\n</think>\n\nI know it."), chat.eot_id]
    assert chat.decode(sampled).startswith("<think>\nmaybe")
    assert chat.tool_format.parse(chat.decode(sampled)) == []
    ids = chat.prompt_ids(USER) + sampled + chat.continue_ids(sampled, [{"role": "user", "content": "go on"}])
    assert "maybe" in text_of(chat, ids), "earlier thinking stays, though the template would drop it now"


def test_llama_ends_a_turn_in_two_ways():
    chat = family("llama3_1")
    result = [{"role": "tool", "name": "search", "content": "x"}]
    eot, eom = (chat._tokenizer.token_to_id(token) for token in ("<|eot_id|>", "<|eom_id|>"))
    assert set(chat.stop_ids) == {eot, eom}
    assert (
        chat.continue_ids([5, eom], result) == chat.continue_ids([5, eot], result) == chat.continue_ids([5], result)[1:]
    )
    assert chat.decode([*chat._encode("a"), eom]) == "a"


def test_mistral_shows_the_tools_before_the_newest_question():
    chat = family("MISTRAL")
    sampled = [*chat._encode("done"), chat.eot_id]
    added = text_of(chat, chat.continue_ids(sampled, [{"role": "user", "content": "go on"}], TOOLS))
    assert added.startswith("[AVAILABLE_TOOLS]") and added.endswith("[INST]go on[/INST]")
    answered = [{"role": "tool", "content": "a"}, {"role": "tool", "content": "b", "tool_call_id": "abcDEF123"}]
    added = text_of(chat, chat.continue_ids(sampled, answered, TOOLS))
    assert '"a", "call_id": "call00000"}' in added and '"b", "call_id": "abcDEF123"}' in added


def test_a_form_without_a_parser_is_refused_unless_another_is_named(tmp_path):
    folder = templates.write_model(tmp_path / "glm", "{# <arg_key> #}" + templates.CHATML)
    with pytest.raises(ChatFormatError, match=r"GLM.*model\.tool_format.*hermes, qwen_xml"):
        ChatFormat.load(str(folder))
    assert ChatFormat.load(str(folder), "pythonic").tool_format.name == "pythonic"


def test_a_tokenizer_that_joins_the_end_of_turn_with_what_follows_is_refused():
    tokenizer = templates.byte_tokenizer()
    tokenizer.add_tokens([AddedToken("done<|im_end|>\n", special=False, normalized=False)])
    with pytest.raises(ChatFormatError, match="in another way where it stands alone"):
        ChatFormat(tokenizer, templates.CHATML, {}, [], "odd")
