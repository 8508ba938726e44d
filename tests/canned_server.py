"""A stand-in for vLLM's token-in, token-out route: answers with canned tokens over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

#: What to answer to a request body: a full response body, a status code, or None to drop the connection.
Script = Callable[[dict[str, Any]], dict[str, Any] | int | None]


def answer(ids: list[int], finish: str = "stop", versions: list[tuple[str, int, int]] | None = None) -> dict[str, Any]:
    """A response as vLLM 0.32 writes it, as far as a client of ours reads it."""
    spans = versions if versions is not None else [("0", 0, len(ids))]
    return {
        "request_id": "canned",
        "choices": [
            {
                "index": 0,
                "token_ids": ids,
                "finish_reason": finish,
                "logprobs": {"content": [{"token_id": i, "logprob": -0.5 - 0.01 * n} for n, i in enumerate(ids)]},
                "weight_versions": [{"version": v, "start": a, "end": b} for v, a, b in spans],
            }
        ],
    }


class CannedServer:
    """``async with CannedServer(script) as server``: listens on a free port of the loopback.

    requests: bodies received, in order. delay_s: wait before each answer.
    """

    def __init__(self, script: Script, delay_s: float = 0.0):
        self.script, self.delay_s = script, delay_s
        self.requests: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0

    async def __aenter__(self) -> CannedServer:
        app = web.Application()
        app.router.add_post("/inference/v1/generate", self._generate)
        for path in ("/health", "/weight_info"):
            app.router.add_get(path, self._fine)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _fine(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.delay_s)
            reply = self.script(body)
        finally:
            self.in_flight -= 1
        if reply is None:
            request.transport.close()
            return web.Response()
        if isinstance(reply, int):
            return web.Response(status=reply, text="canned failure")
        return web.json_response(reply)
