"""Messages to token ids: whole prompts, and what comes after a turn that was sampled.

What the policy wrote is never decoded and encoded again. After each turn only the new
part of the chat template is tokenised. It is read off a rendering of a fixed *anchor*
conversation, so a template that rewrites history (dropping thinking from old turns,
say) cannot change ids that are already there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

Message = dict[str, Any]
#: A tool in OpenAI function form, as ``tools.base.Tool.schema`` gives it.
Schema = dict[str, Any]

_ANCHOR = "anchor0turn"
_ANCHORED: list[Message] = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _ANCHOR}]
#: A tool to render when a template is checked.
_PROBE: Schema = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


class ChatFormatError(Exception):
    """The model's tokenizer or chat template cannot be used; says why and what to do."""


class ChatFormat:
    """Tokenizer and chat template of one model. Imports no torch.

    eot_id: the token that the template puts at the end of a turn of the policy.
    stop_ids: tokens that end a generation: ``eot_id`` and the model's own end tokens.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, special: dict[str, str], end_ids: Sequence[int], name: str):
        """
        special: ``bos_token`` and the like, as templates refer to them. end_ids: the
        model's end-of-sequence ids. name: of the model, for messages to a person.
        Raises ``ChatFormatError`` where the template does not only append.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._template, self._special, self._name = tokenizer, template, special, name
        self._eot = self._end_of_turn()
        self.eot_id = tokenizer.token_to_id(self._eot)
        self.stop_ids = sorted({self.eot_id, *end_ids})
        for tools in ([], [_PROBE]):
            self._check(tools)

    @classmethod
    def load(cls, path: str) -> ChatFormat:
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
        return cls(tokenizer, template, special, end_ids, path)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        """Ids of the first prompt, up to where the policy starts to write."""
        return self._encode(self._render(messages, tools))

    def continue_ids(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[Schema] = ()
    ) -> list[int]:
        """Ids to append after a sampled turn: all that stands between it and the next one.

        That is the template's separator, the new messages and the generation prompt.
        A turn that was cut has no end-of-turn token: it comes first then. None of these
        ids was sampled, so none is trained on.
        """
        rest = self._tail(self._render([*_ANCHORED, *messages], tools))
        ids = self._encode(rest)
        return ids[1:] if sampled and sampled[-1] == self.eot_id else ids

    def decode(self, sampled: Sequence[int]) -> str:
        """Text of a sampled turn, without the token that ended it."""
        ids = sampled[:-1] if sampled and sampled[-1] in self.stop_ids else sampled
        # Not skipping special tokens: some models have <tool_call> among them.
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _check(self, tools: Sequence[Schema]) -> None:
        """Raise ``ChatFormatError`` unless ids built turn by turn equal those of the whole conversation."""
        opening = [{"role": "user", "content": "first question"}]
        replies = [
            [{"role": "tool", "name": "search", "content": text} for text in ("one found\n\ntwo", " three ")],
            [{"role": "user", "content": "go on"}],
            [{"role": "tool", "name": "search", "content": "{}"}],
        ]
        messages, built = list(opening), self.prompt_ids(opening, tools)
        for i, new in enumerate(replies):
            text = f"turn {i}."
            turn = [*self._encode(text), self.eot_id]
            built += turn + self.continue_ids(turn, new, tools)
            messages += [{"role": "assistant", "content": text}, *new]
        whole = self.prompt_ids(messages, tools)
        if built != whole:
            differs = (i for i, (a, b) in enumerate(zip(built, whole, strict=False)) if a != b)
            at = next(differs, min(len(built), len(whole)))
            raise ChatFormatError(
                f"the chat template of {self._name!r} does not only append: whole conversations render as "
                f"{self._around(whole, at)!r}, turn by turn as {self._around(built, at)!r}. "
                "Use a template whose earlier text does not depend on later messages."
            )

    def _render(self, messages: Sequence[Message], tools: Sequence[Schema]) -> str:
        try:
            [text], _ = render_jinja_template(
                [list(messages)],
                tools=list(tools) or None,
                chat_template=self._template,
                add_generation_prompt=True,
                **self._special,
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise ChatFormatError(
                f"the chat template of {self._name!r} refuses a conversation with tool messages: {error}. "
                "Use a template that supports the roles user, assistant and tool."
            ) from error
        return text

    def _tail(self, rendered: str) -> str:
        """What follows the anchor turn's text."""
        _, anchor, rest = rendered.partition(_ANCHOR)
        if not anchor:
            raise ChatFormatError(
                f"the chat template of {self._name!r} leaves out the text of a finished turn. "
                "Use a template that renders assistant messages as they are."
            )
        return rest

    def _end_of_turn(self) -> str:
        rest = self._tail(self._render([*_ANCHORED, {"role": "user", "content": "next"}], ()))
        first = self._encode(rest)[0] if rest else None
        token = None if first is None else self._tokenizer.id_to_token(first)
        added = self._tokenizer.get_added_tokens_decoder()
        if first not in added or not rest.startswith(token):
            raise ChatFormatError(
                f"the chat template of {self._name!r} does not close a turn with an end-of-turn token of its own "
                f"(it continues with {rest[:20]!r}). Use a template that does, e.g. ChatML with <|im_end|>."
            )
        return token

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _around(self, ids: list[int], at: int) -> str:
        return self._tokenizer.decode(ids[max(0, at - 8) : at + 8], skip_special_tokens=False)


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
