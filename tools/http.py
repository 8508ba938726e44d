"""``http``: one call of a web service as a tool, described in the configuration."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

import aiohttp
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from pydantic import Field, validate_call
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from tools.base import CallTimeout, Tool
from tools.secrets import expand

_PLACE = re.compile(r"\{(\w+)\}")
_PASSING_STATUSES = {429, 502, 503, 504}
_MAX_REASON = 200
#: Longest pause between two tries, seconds.
_WAIT_S = 2.0


class HttpError(Exception):
    """The service did not answer as it should; in words for the model. status: 0 where it did not answer at all."""

    def __init__(self, reason: str, status: int = 0):
        super().__init__(reason)
        self.status = status


class Http(Tool):
    """Arguments of the model's go into the URL's ``{places}``; the others into the query, or into
    a JSON body where the method has one. The answer is shown as text, JSON compactly; ``data``
    is the JSON value.

    name, description: for the model. url: http(s), with places in path or query only. parameters:
    JSON schema of the arguments. headers: values may have ``${NAME}`` from the actor's
    environment, so that no key need stand in a configuration. timeout_s: one try. retries: further
    tries after a status that says "later" or a broken connection; of POST and PATCH only where no
    connection came about. max_bytes: larger answers are refused. Redirects are not followed.
    Raises ``ValueError`` for arguments that do not fit.
    """

    @validate_call
    def __init__(
        self,
        name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")],
        description: str,
        url: str,
        parameters: dict[str, Any],
        method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET",
        headers: dict[str, str] | None = None,
        timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0,
        retries: Annotated[int, Field(ge=0, le=10)] = 2,
        max_bytes: Annotated[int, Field(ge=1)] = 1_000_000,
    ):
        self.name, self.description, self.parameters = name, description, parameters
        self.url, self.method, self.headers = url, method, headers or {}
        self.retries, self.max_bytes, self.try_s = retries, max_bytes, timeout_s
        self.timeout_s = (timeout_s + _WAIT_S) * (1 + retries)
        self._places = set(_PLACE.findall(url))
        self._session: aiohttp.ClientSession | None = None
        _check(url, parameters, self._places)

    async def prepare(self) -> None:
        try:
            expand(self.headers)
        except ValueError as error:
            raise ValueError(f"tool {self.name}: headers: {error}") from None

    async def execute(self, **arguments: Any) -> tuple[str, Any]:
        """Raises ``HttpError`` or ``CallTimeout``."""
        url = _PLACE.sub(lambda place: _segment(place[1], arguments.get(place[1], "")), self.url)
        rest = {name: value for name, value in arguments.items() if name not in self._places}
        send = {"json": rest} if self.method in ("POST", "PUT", "PATCH") else {"params": _query(rest)}
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception(self._may_pass),
                stop=stop_after_attempt(1 + self.retries),
                wait=wait_random_exponential(multiplier=0.2, max=_WAIT_S),
                reraise=True,
            ):
                with attempt:
                    return await self._request(url, send)
        except TimeoutError:
            raise CallTimeout(f"the service gave no answer within {self.try_s:g} s") from None
        except aiohttp.ClientError as error:
            raise HttpError(f"the service cannot be reached: {type(error).__name__}: {error}"[:_MAX_REASON]) from None
        raise AssertionError("tenacity ends by a return or by raising")

    async def shutdown(self) -> None:
        if (session := self._session) is not None:
            self._session = None
            await session.close()

    async def _request(self, url: str, send: dict[str, Any]) -> tuple[str, Any]:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(headers=expand(self.headers))
        limit = aiohttp.ClientTimeout(total=self.try_s)
        async with self._session.request(self.method, url, timeout=limit, allow_redirects=False, **send) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                body += chunk
                if len(body) > self.max_bytes:
                    raise HttpError(f"the answer is larger than {self.max_bytes} bytes", response.status)
            text = _decode(bytes(body), response.charset or "utf-8")
            if response.status >= 300:
                raise HttpError(f"status {response.status}: {text[:_MAX_REASON]}", response.status)
            if response.content_type.endswith("json"):
                return _compact(text)
            return text, None

    def _may_pass(self, error: BaseException) -> bool:
        if isinstance(error, aiohttp.ClientConnectorError):
            return True
        if self.method in ("POST", "PATCH"):  # it may have been done already
            return False
        return isinstance(error, aiohttp.ClientConnectionError | TimeoutError) or (
            isinstance(error, HttpError) and error.status in _PASSING_STATUSES
        )


def _check(url: str, parameters: dict[str, Any], places: set[str]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url {url!r}: want http://host/… or https://host/…")
    if _PLACE.search(parts.netloc):
        raise ValueError(f"url {url!r}: the model may not choose the host; use places in path and query only")
    try:
        validator_for(parameters).check_schema(parameters)
    except SchemaError as error:
        raise ValueError(f"parameters are not a JSON schema: {error.message}") from None
    if parameters.get("type") != "object":
        raise ValueError('parameters: want a JSON schema with "type": "object"')
    missing = places - set(parameters.get("required", []))
    if missing:
        raise ValueError(f"url {url!r}: {{{sorted(missing)[0]}}} must be among the required parameters")


def _segment(name: str, value: Any) -> str:
    """One piece of a URL and no more: no way up, no further query."""
    text = value if isinstance(value, str) else json.dumps(value)
    if text in (".", "..") or not text:
        raise HttpError(f"{name} may not be {text!r}")
    return quote(text, safe="")


def _query(arguments: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}


def _decode(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, "replace")
    except LookupError:  # a charset that nobody knows
        return body.decode("utf-8", "replace")


def _compact(text: str) -> tuple[str, Any]:
    try:
        value = json.loads(text)
        return json.dumps(value, ensure_ascii=False), value
    except (ValueError, RecursionError):
        raise HttpError("the service answered with broken JSON") from None
