"""Tokens in, tokens out: the client of vLLM's ``POST /inference/v1/generate``."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import aiohttp
import msgspec

from actors.stats import Latencies

#: vLLM's label of weights that nothing was pushed into yet.
UNPUSHED = "default"
#: vLLM's stand-in for a log-probability that is -inf or NaN.
_NO_LOGPROB = -9999.0
_RETRY_STATUS = {408, 425, 429}
_POLL_S = 0.02


class SamplingFailed(Exception):
    """No turn could be sampled; the message says who was asked and what came back."""


class Servers(Protocol):
    """Which servers may be used, as the learner last said. ``actors.link.Link`` is one."""

    @property
    def servers(self) -> Sequence[str]:
        """Base URLs of those that have the current weights."""

    @property
    def version(self) -> int:
        """The current policy version."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled turn of n tokens, exactly as the server gave it.

    ids, logprobs, versions: length n; logprobs under the distribution sampled from,
    versions the policy version that sampled each token. finish: ``stop`` (the last id
    ended the turn) or ``length``.
    """

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Literal["stop", "length"]


class _TokenLogprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob]


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


class _TryElsewhere(Exception):
    """This server cannot answer now; another one, or a later try, may."""


class Sampler:
    """Samples turns from the servers that the learner lists as current.

    The turns of an episode stick to one server, for its prefix cache, for as long as
    that server is listed and answers. A failed request starts again from the turn's
    first token, on the next server. A slow answer is waited for: only the total time
    of a request is limited.
    """

    def __init__(self, servers: Servers, request_timeout_s: float):
        self._servers = servers
        self._timeout_s = request_timeout_s
        self._pushed: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self.latency = Latencies()
        self.latency_by_server: defaultdict[str, Latencies] = defaultdict(Latencies)
        self.faults: Counter[str] = Counter()

    async def __aenter__(self) -> Sampler:
        self._session = aiohttp.ClientSession(
            # Below the 5 s after which vLLM's server closes an idle connection, or it would do so under a request.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def generate(
        self,
        ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
        stop_ids: Sequence[int],
        episode_key: str,
        min_version: int = 0,
    ) -> Sampled:
        """Sample one turn after ``ids``.

        temperature: 0 is greedy. min_version: no token may come from an older policy.
        Raises ``SamplingFailed`` when the server refuses the request or the time is over.
        """
        body = _encode(
            {
                "token_ids": ids,
                "sampling_params": {
                    "max_tokens": max_tokens,
                    "temperature": temperature,
                    "top_p": top_p,
                    # vLLM 0.32 on CPUs dies of a seeded request whose prefill is split over steps
                    # (torch's CPU generator has no offset): such a server needs --no-enable-chunked-prefill.
                    "seed": seed,
                    "stop_token_ids": stop_ids,
                    "logprobs": 0,  # of the sampled token alone
                    "detokenize": False,
                },
            }
        )
        del ids  # the wait may be long, and thousands wait
        tried: set[str] = set()
        waiting_for, last_problem = "", ""
        pause_s = 0.1
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    waiting_for = f"the learner to list a server with version {min_version} or later"
                    url = await self._pick(episode_key, tried, min_version)
                    if url is None:  # all have failed: give them time, then ask them all again
                        waiting_for = "a server to recover"
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, 2.0)
                        tried.clear()
                        continue
                    waiting_for = url
                    try:
                        return await self._ask(url, body, min_version)
                    except _TryElsewhere as problem:
                        tried.add(url)
                        last_problem = f"; before that {url}: {problem}"
        except TimeoutError:
            self.faults["timeout"] += 1
            raise SamplingFailed(
                f"no turn within {self._timeout_s:g} s: waiting for {waiting_for}{last_problem}"
            ) from None

    async def _pick(self, key: str, tried: set[str], min_version: int) -> str | None:
        """The episode's server, by rendezvous hashing: stable while it is listed, no state to leak."""
        while not self._servers.servers or self._servers.version < min_version:
            await asyncio.sleep(_POLL_S)
        usable = [url for url in self._servers.servers if url not in tried]
        return max(usable, key=lambda url: hashlib.blake2b(f"{key} {url}".encode()).digest(), default=None)

    async def _ask(self, url: str, body: bytes, min_version: int) -> Sampled:
        announced = self._servers.version
        started = time.perf_counter()
        try:
            async with self._session.post(
                f"{url}/inference/v1/generate", data=body, headers={"Content-Type": "application/json"}
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            self.faults["connection"] += 1
            raise _TryElsewhere(f"{type(error).__name__}: {error}") from error
        if response.status != 200:
            self.faults[f"http_{response.status}"] += 1
            problem = f"HTTP {response.status}: {answer[:300].decode('utf-8', 'replace')}"
            if response.status >= 500 or response.status in _RETRY_STATUS:
                raise _TryElsewhere(problem)
            raise SamplingFailed(f"{url} refused the request: {problem}")
        try:
            sampled = self._read(url, answer, announced)
        except (msgspec.MsgspecError, ValueError) as error:
            self.faults["bad_answer"] += 1
            raise _TryElsewhere(f"unusable answer: {error}") from error
        if min(sampled.versions) < min_version:
            self.faults["old_weights"] += 1
            raise _TryElsewhere(f"sampled by version {min(sampled.versions)}, wanted ≥ {min_version}")
        for latency in (self.latency, self.latency_by_server[url]):
            latency.add(time.perf_counter() - started)
        return sampled

    def _read(self, url: str, answer: bytes, announced: int) -> Sampled:
        """Validate an answer. Raises ``ValueError`` or ``msgspec.MsgspecError``."""
        [choice] = _decode(answer).choices
        ids, logprobs = choice.token_ids, [token.logprob for token in choice.logprobs.content]
        if choice.finish_reason not in ("stop", "length"):  # "abort": the server was told to drop it
            raise ValueError(f"finish_reason {choice.finish_reason!r}")
        if not ids or len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} tokens with {len(logprobs)} log-probabilities")
        if min(logprobs) <= _NO_LOGPROB:
            raise ValueError("a token without a log-probability")
        versions: list[int] = []
        for span in choice.weight_versions or [_Span(UNPUSHED, 0, len(ids))]:
            if span.start != len(versions) or span.end < span.start:
                raise ValueError(f"weight_versions with a gap at token {len(versions)}")
            versions += [self._version(url, span.version, announced)] * (span.end - span.start)
        if len(versions) != len(ids):
            raise ValueError(f"weight_versions cover {len(versions)} of {len(ids)} tokens")
        return Sampled(ids, logprobs, versions, choice.finish_reason)

    def _version(self, url: str, label: str, announced: int) -> int:
        """Policy version of a label. A server that was never pushed to has the weights that it was
        started with: those of version 0, or it was restarted and the learner has yet to notice."""
        if label != UNPUSHED:
            self._pushed.add(url)
            return int(label)
        if url in self._pushed or announced > 0:
            raise ValueError("the server has lost its weights: it was restarted")
        return announced
