"""Messages to token ids: whole prompts, and what comes after a turn that was sampled.

What the policy wrote is never decoded and encoded again. After each turn only the new
part of the chat template is tokenised. It is read off a rendering of a fixed *anchor*
conversation, so a template that rewrites history (dropping thinking from old turns,
say, or moving the list of tools) cannot change ids that are already there.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from tokenizers import Tokenizer

from actors.template import ChatFormatError, ChatTemplate, Message, Schema
from actors.template_check import check_appends
from tools.formats import FORMATS, HERMES, ToolFormat, UnknownFormat, detect_format

__all__ = ["ChatFormat", "ChatFormatError"]

log = logging.getLogger("rollway.actor")

#: Prompts whose ids are remembered: the episodes of a group begin alike, and about together.
_PROMPTS = 64
#: A tool to render when a template is checked.
_PROBE: Schema = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


class ChatFormat:
    """Tokenizer and chat template of one model. Imports no torch.

    tool_format: how the model writes tool calls.
    eot_id: the token that the template puts at the end of a turn of the policy.
    stop_ids: tokens that end a generation: ``eot_id``, the format's and the model's own end tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        special: dict[str, str],
        end_ids: Sequence[int],
        name: str,
        tool_format: str = "auto",
    ):
        """
        special: ``bos_token`` and the like, as templates refer to them. end_ids: the
        model's end-of-sequence ids. name: of the model, for messages to a person.
        tool_format: as ``model.tool_format``.
        Raises ``ChatFormatError`` where the template does not only append, or shows tool
        calls of a form that there is no parser for.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._name = tokenizer, name
        self._encode_prompt = functools.lru_cache(_PROMPTS)(self._encode)
        self.tool_format = _format(tool_format, template, name)
        self._template = ChatTemplate(template, special, name)
        self._eot = self._end_of_turn()
        self.eot_id = tokenizer.token_to_id(self._eot)
        ends = map(tokenizer.token_to_id, self.tool_format.turn_ends)
        self._turn_ends = {self.eot_id, *(i for i in ends if i is not None)}
        self.stop_ids = sorted({*self._turn_ends, *end_ids})
        for tools in ([], [_PROBE]):
            check_appends(self._template, self._eot, tools)
            self._check_ids(tools)

    @classmethod
    def load(cls, path: str, tool_format: str = "auto") -> ChatFormat:
        """From a model folder or hub name. Raises ``ChatFormatError``."""
        config = json.loads(_read(path, "tokenizer_config.json") or "{}")
        template = _read(path, "chat_template.jinja") or config.get("chat_template")
        if isinstance(template, list):  # older models name several
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("tool_use") or named.get("default")
        definition = _read(path, "tokenizer.json")
        if definition is None or template is None:
            missing = "tokenizer.json" if definition is None else "a chat template"
            raise ChatFormatError(f"model {path!r} has no {missing}: check model.path, or add it to that folder")
        tokenizer = Tokenizer.from_str(definition)
        special = {
            key: value["content"] if isinstance(value, dict) else value
            for key, value in config.items()
            if key.endswith("_token") and value
        }
        ends = json.loads(_read(path, "generation_config.json") or "{}").get("eos_token_id")
        if ends is None:
            ends = tokenizer.token_to_id(special.get("eos_token", ""))
        end_ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
        return cls(tokenizer, template, special, end_ids, path, tool_format)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        """Ids of the first prompt, up to where the policy starts to write."""
        return list(self._encode_prompt(self._template.render(messages, tools)))

    def continue_ids(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[Schema] = ()
    ) -> list[int]:
        """Ids to append after a sampled turn: all that stands between it and the next one.

        That is the template's separator, the new messages and the generation prompt.
        A turn that was cut has no end-of-turn token: it comes first then. None of these
        ids was sampled, so none is trained on.
        """
        ids = self._encode(self._template.after_turn(messages, tools))
        return ids[1:] if sampled and sampled[-1] in self._turn_ends else ids

    def decode(self, sampled: Sequence[int]) -> str:
        """Text of a sampled turn, without the token that ended it.

        Where the template opens the turn with ``<think>``, the text does too: what the model
        wrote goes on from there.
        """
        ids = sampled[:-1] if sampled and sampled[-1] in self.stop_ids else sampled
        # Not skipping special tokens: some models have <tool_call> among them.
        return self._template.opened + self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _end_of_turn(self) -> str:
        rest = self._template.after_turn([{"role": "user", "content": "next"}])
        first = self._encode(rest)[0] if rest else None
        token = None if first is None else self._tokenizer.id_to_token(first)
        added = self._tokenizer.get_added_tokens_decoder()
        if first not in added or not rest.startswith(token):
            raise ChatFormatError(
                f"the chat template of {self._name!r} does not close a turn with an end-of-turn token of its own "
                f"(it continues with {rest[:20]!r}). Use a template that does, e.g. ChatML with <|im_end|>."
            )
        return token

    def _check_ids(self, tools: Sequence[Schema]) -> None:
        """Raise ``ChatFormatError`` unless what follows a turn has the same ids alone as within its conversation."""
        turn = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "done"}]
        for new in ({"role": "tool", "name": "search", "content": " found\n\n"}, {"role": "user", "content": "go on"}):
            whole = self._encode(self._template.render([*turn, new], tools))
            added = self.continue_ids([], [new], tools)
            if whole[-len(added) :] != added:
                raise ChatFormatError(
                    f"the tokenizer of {self._name!r} splits what follows {self._eot!r} in another way where it stands "
                    "alone. Use a tokenizer for which that token is a special token."
                )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _format(name: str, template: str, model: str) -> ToolFormat:
    """The format of ``model.tool_format``. Raises ``ChatFormatError``."""
    if name != "auto":
        return FORMATS[name]
    try:
        found = detect_format(template)
    except UnknownFormat as error:
        raise ChatFormatError(
            f"the chat template of {model!r} {error}. "
            f"Set model.tool_format to the form that the policy is to write: {', '.join(FORMATS)}."
        ) from error
    if found is None:
        log.info("the chat template of %r shows no tool calls: they are read in Hermes form", model)
    return found or HERMES


def _read(path: str, filename: str) -> str | None:
    """A file of a model folder or, where there is no such folder, of a hub repository; None if it has none."""
    folder = Path(path)
    try:
        file = folder / filename if folder.is_dir() else Path(hf_hub_download(path, filename))
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, EntryNotFoundError):
        return None
    except Exception as error:
        raise ChatFormatError(f"cannot read {filename} of model {path!r}: {error}. Check model.path.") from error
