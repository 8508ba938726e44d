"""A conversation with the policy: like an episode, token-exact, but a person may go on after each answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from actors.chat import ChatFormat
from actors.episode import Limits, Sampling, request_seed
from actors.sampler import Sampler
from envs.base import Message, StepResult, ToolEnv
from envs.calling import call_env


class ConversationFull(Exception):
    """No tokens are left for another turn (``model.max_tokens``)."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a conversation stands. ids: all before ``last``, the turn sampled last; nothing follows it yet."""

    ids: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    turns: int = 0


class Conversation:
    """Made by ``open``; ``close`` it. An environment runs the tools and says what a turn means.

    on_turn: called with the text of each turn of the policy and what it came to.
    """

    def __init__(
        self,
        env: ToolEnv,
        chat: ChatFormat,
        sampler: Sampler,
        limits: Limits,
        sampling: Sampling,
        seed: int,
        on_turn: Callable[[str, StepResult], None],
    ):
        self._env, self._chat, self._sampler = env, chat, sampler
        self._limits, self._sampling, self._seed, self._on_turn = limits, sampling, seed, on_turn
        self._place = _Place()
        self._opening: list[Message] = []

    async def open(self, payload: dict[str, Any]) -> list[Message]:
        """Set the environment to a task; returns its first messages. Of these only system messages are kept for ``say``."""
        self._env.tool_format = self._chat.tool_format
        messages = list(await call_env(self._env.reset, payload, self._seed))
        self._schemas = [tool.schema() for tool in self._env.tools]
        self._opening = [message for message in messages if message["role"] == "system"]
        return messages

    async def play(self, messages: list[Message]) -> StepResult:
        """The task as an episode, from its first messages to its end or a limit; returns the outcome."""
        result = await self._reply(self._chat.prompt_ids(messages, self._schemas), to_the_end=True)
        return result if result.done else await call_env(self._env.truncate)

    async def say(self, text: str) -> None:
        """Tell the policy something and let it answer, with all the calls that this takes.

        Whatever this raises leaves the conversation as it was before: ``ConversationFull``,
        ``SamplingFailed``, what the environment raises, cancellation.
        """
        message = {"role": "user", "content": text}
        if self._place.turns == 0:
            ids = self._chat.prompt_ids([*self._opening, message], self._schemas)
        else:
            ids = self._continued([message])
        await self._reply(ids, to_the_end=False)

    async def close(self) -> None:
        await call_env(self._env.close)

    async def _reply(self, ids: list[int], to_the_end: bool) -> StepResult:
        """Turns of the policy until it is done, calls no tool (unless ``to_the_end``) or has had ``max_turns``."""
        before, result = self._place, StepResult()
        try:
            for _ in range(self._limits.max_turns):
                room = self._limits.max_tokens - len(ids)
                if room <= 0:
                    if to_the_end:
                        break
                    raise ConversationFull
                sampled = await self._sampler.generate(
                    ids,
                    max_tokens=min(self._limits.turn_tokens, room),
                    temperature=self._sampling.temperature,
                    top_p=self._sampling.top_p,
                    seed=request_seed(self._seed, self._place.turns),
                    stop_ids=self._chat.stop_ids,
                    episode_key=f"chat/{self._seed}",
                )
                self._place = replace(self._place, ids=tuple(ids), last=tuple(sampled.ids), turns=self._place.turns + 1)
                text = self._chat.decode(sampled.ids)
                result = await call_env(self._env.step, text, sampled.finish)
                self._on_turn(text, result)
                if result.done or not (result.tool_results or to_the_end):
                    break
                ids = self._continued(result.messages)
            return result
        except BaseException:
            self._place = before
            raise

    def _continued(self, messages: list[Message]) -> list[int]:
        place = self._place
        return [*place.ids, *place.last, *self._chat.continue_ids(place.last, messages, self._schemas)]
