"""Token ids turn by turn: what was sampled stays, only the new part of the template is added."""

from __future__ import annotations

import json
import shutil

import pytest

from actors.chat import ChatFormat, ChatFormatError
from tests import chat_templates as templates

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
