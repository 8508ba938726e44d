"""The HTTP server of an actor: ``/episode/{id}/v1``, one base URL and one key an episode, on the loopback."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from actors.openai.errors import ApiError
from actors.openai.request import read_request
from actors.openai.session import Session

log = logging.getLogger("rollway.agent")

_HOST = "127.0.0.1"
#: The largest request: conversations are text.
_MAX_BYTES = 32 << 20


class Endpoint:
    """``async with Endpoint() as endpoint``: listens on a free port."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[str, Session]] = {}

    async def __aenter__(self) -> Endpoint:
        app = web.Application(middlewares=[_errors], client_max_size=_MAX_BYTES)
        app.router.add_post("/episode/{id}/v1/chat/completions", self._complete)
        app.router.add_get("/episode/{id}/v1/models", self._models)
        # An agent that hangs up wants no answer: what is being sampled for it is dropped, and nothing is recorded.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, _HOST, 0).start()
        self._url = f"http://{_HOST}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @contextlib.contextmanager
    def open(self, session: Session) -> Iterator[tuple[str, str]]:
        """(base URL, API key) of an episode, for as long as the context is open."""
        name, key = secrets.token_hex(8), secrets.token_urlsafe(24)
        self._sessions[name] = (key, session)
        try:
            yield f"{self._url}/episode/{name}/v1", key
        finally:
            session.closed = True
            del self._sessions[name]

    def _session(self, request: web.Request) -> Session:
        key, session = self._sessions.get(request.match_info["id"], ("", None))
        if session is None:
            raise ApiError("there is no such episode, or it is over", status=404)
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {key}".encode()):
            raise ApiError("wrong API key: use the one of this episode", status=401, code="invalid_api_key")
        return session

    async def _models(self, request: web.Request) -> web.Response:
        self._session(request)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "rollway"}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        try:
            body = msgspec.json.decode(await request.read())
        except msgspec.DecodeError as error:
            raise ApiError(f"the request is not JSON: {error}") from None
        reply = await session.complete(read_request(body))
        if not reply.request.stream:
            return web.json_response(reply.body())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for event in reply.events():
            await response.write(_event(event))
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Whatever goes wrong is told in the form of the API. Clients are told not to try again by themselves:
    the servers were asked again already."""
    try:
        return await handler(request)
    except ApiError as error:
        refusal = error
    except web.HTTPException as error:
        refusal = ApiError(f"{request.path}: {error.reason}: only /chat/completions is served", status=error.status)
    except ConnectionError:  # it hung up
        raise
    except Exception as error:
        log.exception("an agent's request failed")
        refusal = ApiError(f"{type(error).__name__}: {error}", status=500)
    return web.json_response(refusal.body(), status=refusal.status, headers={"x-should-retry": "false"})
