"""One episode as the endpoint sees it: requests in, sampled turns out, all of it recorded."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors.chat import ChatFormat, ChatFormatError
from actors.episode import Limits, Sampling, TurnReport, request_seed
from actors.openai.errors import CONTEXT_LENGTH, EPISODE_LIMIT, ApiError
from actors.openai.record import Context, Draft, Record
from actors.openai.reply import Reply, Turn
from actors.openai.request import ChatRequest
from actors.sampler import Sampled, Sampler, SamplingFailed
from actors.turnstile import Turnstile
from tools.base import ToolResult

log = logging.getLogger("rollway.agent")

#: As Mistral's templates want them: nine letters and digits.
_CALL_ID = "call{:05d}"
_told: set[str] = set()  # ignored parameters that the log has named


@dataclass(slots=True)
class _Asked:
    """A call that the agent has been given. turn: its place in the turns of ``context``."""

    context: Context
    turn: int
    name: str
    known: bool
    since: float


class Session:
    """Limits of the episode hold over all its requests: ``max_turns`` answers, ``max_tokens`` in each context.

    refused: how the first request that met one of them was answered. failure: why no turn could be sampled; the
    episode is lost then. tool_calls: (context, facts of a call with its turn in that context).
    """

    def __init__(
        self,
        chat: ChatFormat,
        sampler: Sampler,
        seed: int,
        limits: Limits,
        contexts: int,
        sampling: Sampling,
        key: str,
        on_turn: Callable[[TurnReport], None],
        turnstile: Turnstile,
    ):
        """contexts: the most there may be. The rest as for ``actors.episode.run_episode``."""
        self._chat, self._sampler, self._seed = chat, sampler, seed
        self._limits, self._contexts, self._sampling, self._key = limits, contexts, sampling, key
        self._on_turn, self._turnstile = on_turn, turnstile
        self._record = Record(chat)
        self._asked: dict[str, _Asked] = {}
        self._turns, self._call_numbers = 0, itertools.count()
        self.refused: ApiError | None = None
        self.failure: SamplingFailed | None = None
        self.tool_calls: list[tuple[Context, dict[str, Any]]] = []
        self.closed = False

    @property
    def contexts(self) -> list[Context]:
        """In the order of their first turns."""
        return self._record.contexts

    async def complete(self, request: ChatRequest) -> Reply:
        """Sample the next turn. Raises ``ApiError``."""
        self._refuse_if_closed()
        arrived = time.perf_counter()
        for name in request.ignored - _told:
            _told.add(name)
            log.info("the agent's %s has no effect: the run's own sampling decides", name)
        if self._turns >= self._limits.max_turns:
            raise self._limited("max_turns", f"the episode has had its {self._limits.max_turns} turns (env.max_turns)")
        try:
            draft = self._record.draft(request.messages, request.tools)
        except ChatFormatError as error:
            raise ApiError(str(error), "messages") from error
        try:
            sampled, number = await self._sample(draft, request.max_tokens)
        except BaseException:
            self._record.discard(draft)
            raise
        return self._write_down(request, draft, sampled, number, arrived)

    async def _sample(self, draft: Draft, max_tokens: int | None) -> tuple[Sampled, int]:
        """The turn, and its number in the episode."""
        prompt = draft.ids
        if draft.fresh and self._record.count > self._contexts:
            raise self._limited("length", f"the episode has {self._contexts} contexts already (agent.contexts)")
        if (room := self._limits.max_tokens - len(prompt)) <= 0:
            what = f"{len(prompt)} tokens are more than model.max_tokens ({self._limits.max_tokens}) leaves room for"
            raise self._limited("length", what, CONTEXT_LENGTH)
        number, self._turns = self._turns, self._turns + 1
        try:
            sampled = await self._sampler.generate(
                prompt,
                max_tokens=min(self._limits.turn_tokens, room, max_tokens or room),
                temperature=self._sampling.temperature,
                top_p=self._sampling.top_p,
                seed=request_seed(self._seed, number),
                stop_ids=self._chat.stop_ids,
                episode_key=self._key,
                min_version=self._sampling.min_version,
            )
        except SamplingFailed as error:
            self.failure = self.failure or error
            raise ApiError(str(error), status=503) from error
        await self._turnstile.enter()
        self._refuse_if_closed()
        return sampled, number

    def _write_down(self, request: ChatRequest, draft: Draft, sampled: Sampled, number: int, arrived: float) -> Reply:
        prompt_tokens, answered = len(draft.ids), self._answered(draft, arrived)
        cut = sampled.finish == "length"
        turn = Turn.of(
            self._chat.decode(sampled.ids), cut, self._chat.tool_format, request.tools if request.may_call else []
        )
        message = self._message(turn)
        self._record.commit(draft, sampled, message)
        self._ask(draft.context, message, request)
        malformed = [ToolResult("", "", "malformed") for _ in range(turn.malformed)]
        self._note(draft.context, malformed, len(draft.context.ends) - 1)
        self._on_turn(TurnReport(sampled, answered + malformed))
        finish = "tool_calls" if turn.calls else "length" if cut else "stop"
        return Reply(request, message, finish, prompt_tokens, len(sampled.ids), number)

    def _message(self, turn: Turn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if turn.thought:
            message["reasoning_content"] = turn.thought
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id or _CALL_ID.format(next(self._call_numbers)),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in turn.calls
            ]
        return message

    # ── tools: the agent runs them, so what can be told is who was asked, and how long the answer took ──

    def _ask(self, context: Context, message: dict[str, Any], request: ChatRequest) -> None:
        declared = {tool["function"]["name"] for tool in request.tools}
        for call in message.get("tool_calls", []):
            name = call["function"]["name"]
            self._asked[call["id"]] = _Asked(
                context, len(context.ends) - 1, name, name in declared, time.perf_counter()
            )

    def _answered(self, draft: Draft, arrived: float) -> list[ToolResult]:
        """What the request, which came at ``arrived``, tells of calls."""
        results = []
        for message in draft.new:
            if message["role"] != "tool" or (asked := self._asked.pop(message["tool_call_id"], None)) is None:
                continue
            fault = None if asked.known else "unknown_tool"
            result = ToolResult(asked.name, "", fault, arrived - asked.since)
            self._note(asked.context, [result], asked.turn)
            results.append(result)
        return results

    def _note(self, context: Context, results: list[ToolResult], turn: int) -> None:
        for r in results:
            fact = {"turn": turn, "name": r.name, "latency_s": r.latency_s, "fault": r.fault}
            self.tool_calls.append((context, fact))

    def _limited(self, limit: str, message: str, code: str = EPISODE_LIMIT) -> ApiError:
        refusal = ApiError(message, code=code, limit=limit)
        self.refused = self.refused or refusal
        return refusal

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ApiError("this episode is over", status=404)
