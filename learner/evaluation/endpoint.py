"""The client of an OpenAI-compatible ``/chat/completions`` with tools: any server or service that speaks it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from configs.schema import Config

#: Tries of one request, and the longest pause between two, seconds.
TRIES, PAUSE_S = 5, 30.0
#: Statuses after which the same request may succeed.
_AGAIN = {408, 409, 425, 429}


class EndpointError(Exception):
    """The endpoint refuses what every episode would ask of it; says what it answered."""


class _NotNow(Exception):
    """This request failed; the next try may not."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn. calls: as the API gives them, arguments a JSON string. tokens: prompt and reply, None if not told."""

    content: str
    calls: list[dict[str, Any]]
    finish: str
    tokens: int | None

    def text(self) -> str:
        """The turn as an environment reads it: calls in the Hermes form, arguments as they came."""
        return self.content + "".join(
            f'\n<tool_call>{{"name": {json.dumps(c["function"]["name"])}, '
            f'"arguments": {c["function"]["arguments"]}}}</tool_call>'
            for c in self.calls
        )

    def message(self) -> dict[str, Any]:
        """The turn as the next request repeats it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        return message | {"tool_calls": self.calls} if self.calls else message


class ChatClient:
    """``eval.endpoint`` with its key from the environment, which no message of ours repeats."""

    def __init__(self, config: Config):
        """Raises ``EndpointError`` where ``eval.api_key_env`` is given and not set."""
        ev = config.eval
        self._url = ev.endpoint.rstrip("/") + "/chat/completions"
        self._body = {
            "model": ev.endpoint_model,
            "temperature": ev.temperature,
            "max_tokens": config.sampling.turn_tokens,
        }
        self._more, self._timeout_s = ev.request, config.actor.request_timeout_s
        self._key = os.environ.get(ev.api_key_env, "") if ev.api_key_env else ""
        if ev.api_key_env and not self._key:
            raise EndpointError(f"eval.api_key_env: {ev.api_key_env} is not set in the environment")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ChatClient:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=10), trust_env=True
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], seed: int) -> Reply:
        """Raises ``EndpointError`` where it refuses, ``ConnectionError`` where it did not answer in ``TRIES`` tries."""
        body = self._body | {"messages": messages, "seed": seed} | ({"tools": tools} if tools else {}) | self._more
        body = {name: value for name, value in body.items() if value is not None}
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_NotNow),
                stop=stop_after_attempt(TRIES),
                wait=wait_random_exponential(max=PAUSE_S),
                reraise=True,
            ):
                with attempt:
                    return await self._ask(body)
        except _NotNow as problem:
            raise ConnectionError(f"{self._url}: {problem} ({TRIES} tries)") from None
        raise AssertionError("unreachable: tenacity returns or raises")

    async def _ask(self, body: dict[str, Any]) -> Reply:
        try:
            async with self._session.post(self._url, json=body) as response:
                status, answer = response.status, await response.text(errors="replace")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _NotNow(self._hide(f"{type(error).__name__} {error}".strip())) from None
        if status != 200:
            problem = f"HTTP {status}: {self._hide(' '.join(answer.split())[:300])}"
            if status >= 500 or status in _AGAIN:
                raise _NotNow(problem)
            raise EndpointError(f"{self._url} refused the request: {problem}")
        try:
            return _read(json.loads(answer))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _NotNow(f"an answer that is no chat completion ({type(error).__name__}: {error})") from None

    def _hide(self, text: str) -> str:
        """Servers like to repeat the key that they refuse."""
        return text.replace(self._key, "[key]") if self._key else text


def _read(answer: dict[str, Any]) -> Reply:
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [
        {
            "id": str(call["id"]),
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or "{}"},
        }
        for call in message.get("tool_calls") or []
    ]
    finish = "length" if choice.get("finish_reason") == "length" else "stop"
    return Reply(message.get("content") or "", calls, finish, (answer.get("usage") or {}).get("total_tokens"))
