"""A model's chat template: messages to text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from tools.formats.thinking import THINKING

Message = dict[str, Any]
#: A tool in OpenAI function form, as ``tools.base.Tool.schema`` gives it.
Schema = dict[str, Any]

_ANCHOR = "anchor0turn"
_ANCHORED: list[Message] = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _ANCHOR}]
#: As Mistral's templates want them: nine letters and digits.
_CALL_ID = "call{:05d}"
_OPENED = re.compile(f"(?:{'|'.join(map(re.escape, THINKING))})\\s*$")


class ChatFormatError(Exception):
    """The model's tokenizer or chat template cannot be used; says why and what to do."""


class ChatTemplate:
    """A Jinja chat template and what it takes from the tokenizer's configuration.

    source: its text. name: of the model, for messages to a person.
    opened: what of the generation prompt is the beginning of the turn's thinking, ``<think>\\n``
    or the like; empty for most templates.
    """

    def __init__(self, source: str, special: dict[str, str], name: str):
        """special: ``bos_token`` and the like, as templates refer to them. Raises ``ChatFormatError``."""
        self.source, self.name = source, name
        self._special = special
        opened = _OPENED.search(self.render([{"role": "user", "content": "question"}]))
        self.opened = opened.group() if opened else ""

    def render(self, messages: Sequence[Message], tools: Sequence[Schema] = (), generate: bool = True) -> str:
        """The conversation; generate: up to where the policy starts to write. Raises ``ChatFormatError``."""
        try:
            [text], _ = render_jinja_template(
                [with_call_ids(messages)],
                tools=list(tools) or None,
                chat_template=self.source,
                add_generation_prompt=generate,
                **self._special,
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise ChatFormatError(
                f"the chat template of {self.name!r} refuses a conversation with tool messages: {error}. "
                "Use a template that supports the roles user, assistant and tool."
            ) from error
        return text

    def after_turn(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> str:
        """What stands between the text of one turn and the next turn: its end, ``messages``, the generation prompt.

        Raises ``ChatFormatError``.
        """
        _, anchor, rest = self.render([*_ANCHORED, *messages], tools).partition(_ANCHOR)
        if not anchor:
            raise ChatFormatError(
                f"the chat template of {self.name!r} leaves out the text of a finished turn. "
                "Use a template that renders assistant messages as they are."
            )
        return rest


def with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Some templates want the id of the call that is answered: where the model gave none, its number in the turn."""
    numbered, number = [], itertools.count()
    for message in messages:
        if message["role"] == "tool":
            message = {"tool_call_id": _CALL_ID.format(next(number)), **message}
        else:
            number = itertools.count()
        numbered.append(message)
    return numbered
