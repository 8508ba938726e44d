"""Whether a conversation can be built turn by turn under a chat template."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from actors.template import ChatFormatError, ChatTemplate, Message, Schema, with_call_ids
from tools.formats.thinking import THINKING

_THOUGHT = re.compile("|".join(f"{re.escape(o)}.*?{re.escape(c)}\\s*" for o, c in THINKING.items()), re.DOTALL)
_OPENING: list[Message] = [{"role": "user", "content": "first question"}]
_REPLIES: list[list[Message]] = [
    [{"role": "tool", "name": "search", "content": text} for text in ("one found\n\ntwo", " three ")],
    [{"role": "tool", "name": "search", "content": "{}"}],
    [{"role": "user", "content": "go on"}],
]


def check_appends(template: ChatTemplate, end_of_turn: str, tools: Sequence[Schema]) -> None:
    """Raise ``ChatFormatError`` unless text built turn by turn equals that of the whole conversation.

    Thinking and the list of tools may be left out of earlier turns, as many templates do:
    what was sampled with them in view is trained on with them in view.
    """
    messages, built = list(_OPENING), template.render(_OPENING, tools)
    for (message, said), new in zip(_turns(template, end_of_turn, tools), _REPLIES, strict=True):
        messages += [message, *new]
        built += said + template.after_turn(new, tools)
    whole = template.render(messages, tools)
    listed = _inserted(template.render(_OPENING, tools), template.render(_OPENING))
    if built == whole or _lasting(built, listed) == _lasting(whole, listed):
        return
    at = _common(built, whole)
    raise ChatFormatError(
        f"the chat template of {template.name!r} does not only append: whole conversations render as "
        f"{_around(whole, at)!r}, turn by turn as {_around(built, at)!r}. "
        "Use a template whose earlier text does not depend on later messages."
    )


def _turns(template: ChatTemplate, end_of_turn: str, tools: Sequence[Schema]) -> list[tuple[Message, str]]:
    """A turn before each of ``_REPLIES``: as a message of the history, and as a policy would have written it.

    They are plain text; calls only where the template insists on ``tool_calls`` before an answer of a tool.
    """
    thought = f"why\n{THINKING[template.opened.strip()]}\n\n" if template.opened else ""
    texts = [f"{thought}turn {i}." for i in range(len(_REPLIES))]
    turns = [({"role": "assistant", "content": template.opened + text}, text) for text in texts]
    messages = list(_OPENING)
    for (message, _), new in zip(turns, _REPLIES, strict=True):
        messages += [message, *new]
    try:
        template.render(messages, tools)
        return turns
    except ChatFormatError:
        [answer] = with_call_ids(_REPLIES[1])
        call = {"id": answer["tool_call_id"], "type": "function", "function": {"name": "search", "arguments": {}}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        prompt, history = template.render(_OPENING, tools), template.render([*_OPENING, message], tools, generate=False)
        written = history.removeprefix(prompt).removesuffix(end_of_turn)
        return [
            (message, written) if new[0]["role"] == "tool" else turn for turn, new in zip(turns, _REPLIES, strict=True)
        ]


def _lasting(text: str, listed: str) -> str:
    """What a template has to keep of a conversation: all but thinking and the list of tools."""
    return _THOUGHT.sub("", text.replace(listed, "") if listed else text)


def _inserted(longer: str, shorter: str) -> str:
    """The part of ``longer`` that ``shorter`` does not have, the rest being the same."""
    start = _common(longer, shorter)
    end = _common(longer[start:][::-1], shorter[start:][::-1])
    return longer[start : len(longer) - end]


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _around(text: str, at: int) -> str:
    return text[max(0, at - 20) : at + 20]
