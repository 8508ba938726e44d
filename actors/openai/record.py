"""The contexts of one episode: what the policy has seen and written, token by token.

A request repeats the conversation as messages. Where it begins with a state that is recorded, the
recorded tokens stand and only what is new is tokenised. A history that the agent has changed is
another context: it is rendered anew, and nothing in it is trained on but what is sampled after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.chat import ChatFormat
from actors.openai.request import Message, same
from actors.row import Row
from actors.sampler import Sampled


@dataclass(slots=True, eq=False)
class Context:
    """tools: as declared to the policy. ends: how many of ``messages`` there are after each turn, that turn included.

    busy: a request that goes on from its end is under way.
    """

    tools: str
    row: Row = field(default_factory=Row)
    messages: list[Message] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A request on its way. added: the ids that are new to ``context``. new: the messages that they say."""

    context: Context
    added: list[int]
    new: list[Message]
    fresh: bool

    @property
    def ids(self) -> list[int]:
        """The whole prompt."""
        return [*self.context.row.token_ids, *self.added]


class Record:
    def __init__(self, chat: ChatFormat):
        self._chat = chat
        self.contexts: list[Context] = []
        self._opening = 0

    @property
    def count(self) -> int:
        """Contexts, those included whose first turn is under way."""
        return len(self.contexts) + self._opening

    def draft(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Draft:
        """The tokens of a request. ``commit`` or ``discard`` has to follow. Raises ``ChatFormatError``."""
        key = json.dumps(tools, sort_keys=True)
        origin, turn = self._origin(messages, key)
        if origin is None:
            prompt = self._chat.prompt_ids(messages, tools)
            self._opening += 1
            return Draft(Context(key), prompt, list(messages), fresh=True)
        known, (start, end) = origin.ends[turn], origin.row.turns[turn]
        new = list(messages[known:])
        added = self._chat.continue_ids(origin.row.token_ids[start:end], new, tools)
        if turn == len(origin.ends) - 1 and not origin.busy:
            origin.busy = True
            return Draft(origin, added, new, fresh=False)
        # A branch: others went on from here, or do so now. It shares the tokens so far, which are trained on once.
        branch = Context(key, messages=origin.messages[:known])
        branch.row.add_context(origin.row.token_ids[:end])
        self._opening += 1
        return Draft(branch, added, new, fresh=True)

    def commit(self, draft: Draft, sampled: Sampled, message: Message) -> None:
        """Write down what was sampled. message: how the next request will repeat it."""
        context = draft.context
        context.row.add_context(draft.added)
        context.row.add_turn(sampled)
        context.messages += [*draft.new, message]
        context.ends.append(len(context.messages))
        self.discard(draft)
        if draft.fresh:
            self.contexts.append(context)

    def discard(self, draft: Draft) -> None:
        """The request is over."""
        draft.context.busy = False
        self._opening -= draft.fresh

    def _origin(self, messages: Sequence[Message], tools: str) -> tuple[Context | None, int]:
        """(context, turn) of the longest recorded state that the messages go on from with no turn but the policy's own."""
        best: tuple[Context | None, int] = (None, -1)
        longest = 0
        for context in self.contexts:
            if context.tools != tools:
                continue
            shared = _shared(context.messages, messages)
            for turn, end in enumerate(context.ends):
                idle = turn == len(context.ends) - 1 and not context.busy
                if end <= shared and (end > longest or (end == longest and idle)):
                    best, longest = (context, turn), end
        if any(message["role"] == "assistant" for message in messages[longest:]):
            return None, -1
        return best


def _shared(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if not same(a, b):
            break
        count += 1
    return count
