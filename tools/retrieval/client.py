"""Client of ``POST /retrieve``, ours or Search-R1's: time limits, retries, and a circuit breaker around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp
from pydantic import BaseModel, ValidationError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from tools.retrieval.breaker import CircuitBreaker
from tools.retrieval.contents import split_contents

_PASSING_STATUSES = {429, 502, 503, 504}
_MAX_REASON = 200
_MAX_BYTES = 32 * 2**20
#: Longest pause between two tries, seconds.
MAX_WAIT_S = 2.0
#: Calls in a row without an answer after which none is made for _PAUSE_S seconds.
_FAILURES, _PAUSE_S = 5, 5.0


class _Document(BaseModel):
    contents: str


class _Hit(BaseModel):
    document: _Document


class _Answer(BaseModel):
    result: list[list[_Hit]]


class RetrieverError(Exception):
    """No answer that can be used; in words for the model. status: 0 where there was none at all."""

    def __init__(self, reason: str, status: int = 0):
        super().__init__(reason)
        self.status = status


class RetrieverTimeout(RetrieverError):
    """The last try took too long."""


class RetrieverClient:
    """url: as far as the host and port. timeout_s: one try. retries: further tries where one may help.

    One instance serves all episodes of a process, on one event loop.
    """

    def __init__(self, url: str, timeout_s: float, retries: int):
        self.url = url.rstrip("/").removesuffix("/retrieve")
        self._timeout_s, self._retries = timeout_s, retries
        self._breaker = CircuitBreaker(_FAILURES, _PAUSE_S)
        self._session: aiohttp.ClientSession | None = None

    async def retrieve(self, queries: Sequence[str], k: int) -> list[list[tuple[str, str]]]:
        """(title, text) of at most ``k`` passages for each query, best first. Raises ``RetrieverError``."""
        if not self._breaker.allow():
            raise RetrieverError("the search service is down; it will be tried again in some seconds")
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception(_may_pass),
                stop=stop_after_attempt(1 + self._retries),
                wait=wait_random_exponential(multiplier=0.2, max=MAX_WAIT_S),
                reraise=True,
            ):
                with attempt:
                    answer = await self._post({"queries": list(queries), "topk": k, "return_scores": True})
        except TimeoutError:
            self._breaker.record(answered=False)
            raise RetrieverTimeout(f"the search service gave no answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            self._breaker.record(answered=False)
            reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
            raise RetrieverError(f"the search service cannot be reached: {reason}") from None
        except RetrieverError as error:
            self._breaker.record(answered=400 <= error.status < 500)
            raise
        self._breaker.record(answered=True)
        if len(answer.result) != len(queries):
            raise RetrieverError(f"the search service answered {len(answer.result)} of {len(queries)} queries")
        return [[split_contents(hit.document.contents) for hit in hits] for hits in answer.result]

    async def wait_until_healthy(self, wait_s: float) -> None:
        """Raises ``RetrieverError`` that says what the last look at ``/health`` gave."""
        until = time.monotonic() + wait_s
        while True:
            try:
                async with self._open().get(f"{self.url}/health", timeout=self._limit()) as response:
                    if response.status in (200, 404):  # Search-R1's own server has no such route
                        return
                    problem = f"status {response.status}"
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = f"{type(error).__name__}: {error}"[:_MAX_REASON]
            if time.monotonic() >= until:
                raise RetrieverError(f"no retriever at {self.url} within {wait_s:g} s ({problem})")
            await asyncio.sleep(0.5)

    async def close(self) -> None:
        if (session := self._session) is not None:
            self._session = None
            await session.close()

    async def _post(self, body: dict[str, object]) -> _Answer:
        async with self._open().post(f"{self.url}/retrieve", json=body, timeout=self._limit()) as response:
            data = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                data += chunk
                if len(data) > _MAX_BYTES:
                    raise RetrieverError(f"the answer is larger than {_MAX_BYTES} bytes", response.status)
            if response.status != 200:
                text = data.decode("utf-8", "replace")[:_MAX_REASON]
                raise RetrieverError(f"the search service answered status {response.status}: {text}", response.status)
        try:
            return _Answer.model_validate_json(bytes(data))
        except ValidationError:
            raise RetrieverError("the search service answered with something else than Search-R1's form") from None

    def _limit(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=self._timeout_s)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # Without a limit of its own: hundreds of episodes search at once, and the service queues them.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session


def _may_pass(error: BaseException) -> bool:
    """Searching changes nothing, so whatever looks passing is tried again."""
    return isinstance(error, aiohttp.ClientConnectionError | TimeoutError) or (
        isinstance(error, RetrieverError) and error.status in _PASSING_STATUSES
    )
