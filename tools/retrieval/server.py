"""The HTTP side: ``POST /retrieve`` as Search-R1's clients speak it, ``GET /health``, ``GET /metrics``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from configs.retriever import RetrieverConfig
from tools.retrieval.batcher import Batcher, Overloaded
from tools.retrieval.corpus import Corpus
from tools.retrieval.hits import Hits, Searcher
from tools.retrieval.metrics import Metrics

log = logging.getLogger("rollway.retriever")

#: Largest body of a request, bytes.
MAX_BODY = 16 * 2**20
#: Longest query, characters.
MAX_QUERY = 10_000


class RetrieveRequest(BaseModel):
    """Other fields are ignored: clients of other servers send some."""

    queries: list[Annotated[str, StringConstraints(strip_whitespace=True, max_length=MAX_QUERY)]]
    topk: int | None = Field(default=None, ge=1)
    return_scores: bool = False


class Service:
    """Answers over a corpus and its searcher.

    A blank query has no hits. Mistakes of the client are status 400, a body that comes too slowly 408, a full
    queue 503, a search that takes too long 504; each with ``{"error": …}`` that says what to change.
    """

    def __init__(self, corpus: Corpus, searcher: Searcher, config: RetrieverConfig):
        self._corpus, self._config = corpus, config
        self._metrics = Metrics()
        self._metrics.set_passages(len(corpus))
        self._batcher = Batcher(searcher, self._metrics, config.max_batch, config.max_waiting, config.cache_entries)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/retrieve", self._retrieve)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._show_metrics)
        app.cleanup_ctx.append(self._run_batcher)
        return app

    async def _run_batcher(self, _: web.Application) -> Any:
        work = asyncio.create_task(self._batcher.run())
        yield
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    async def _retrieve(self, request: web.Request) -> web.Response:
        started = time.perf_counter()
        try:
            status, value = 200, {"result": await self._answer(await self._read(request))}
        except _Refused as refused:
            status, value = refused.status, {"error": str(refused)}
        except Overloaded as error:
            status, value = 503, {"error": f"overloaded: {error}; try again later"}
        except TimeoutError:
            status, value = 504, {"error": f"no answer within {self._config.timeout_s:g} s (retriever.timeout_s)"}
        except Exception as error:  # of the searcher; the batcher has logged it
            status, value = 500, {"error": f"the search failed: {type(error).__name__}"}
        self._metrics.observe_request(status, time.perf_counter() - started)
        return web.json_response(value, status=status, headers={"Retry-After": "1"} if status == 503 else None)

    async def _read(self, request: web.Request) -> RetrieveRequest:
        limit = self._config
        try:
            async with asyncio.timeout(limit.timeout_s):
                body = await request.read()
        except TimeoutError:
            raise _Refused(408, f"the request did not arrive within {limit.timeout_s:g} s") from None
        except web.HTTPRequestEntityTooLarge:
            raise _Refused(413, f"the request is larger than {MAX_BODY} bytes; send fewer queries at once") from None
        try:
            asked = RetrieveRequest.model_validate_json(body)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise _Refused(400, f"{where}: {problem['msg']}" if where else problem["msg"]) from None
        if (asked.topk or 0) > limit.max_top_k:
            raise _Refused(400, f"topk {asked.topk}: at most {limit.max_top_k} (retriever.max_top_k)")
        if len(asked.queries) > limit.max_waiting:
            raise _Refused(400, f"{len(asked.queries)} queries: at most {limit.max_waiting} (retriever.max_waiting)")
        return asked

    async def _answer(self, asked: RetrieveRequest) -> list[list[dict[str, Any]]]:
        queries = [query for query in asked.queries if query]
        async with asyncio.timeout(self._config.timeout_s):
            hits = iter(await self._batcher.search(queries, asked.topk or self._config.top_k))
            answers = [next(hits) if query else [] for query in asked.queries]
            # Documents may have to come from the disk: not on the event loop.
            return await asyncio.to_thread(self._documents, answers, asked.return_scores)

    def _documents(self, answers: list[Hits], with_scores: bool) -> list[list[dict[str, Any]]]:
        def show(row: int, score: float) -> dict[str, Any]:
            document = self._corpus[row]
            value = {"id": document.id, "contents": document.contents}
            return {"document": value, "score": score} if with_scores else value

        return [[show(row, score) for row, score in hits] for hits in answers]

    async def _health(self, _: web.Request) -> web.Response:
        busy_s = self._batcher.busy_s
        value = {"status": "ok", "passages": len(self._corpus), "kind": self._config.kind}
        if busy_s <= self._config.timeout_s:
            return web.json_response(value)
        return web.json_response({**value, "status": f"one search has been running for {busy_s:.0f} s"}, status=503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), content_type="text/plain", charset="utf-8")


class _Refused(Exception):
    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


async def serve(
    corpus: Corpus, searcher: Searcher, config: RetrieverConfig, ready: Callable[[int], Awaitable[None]]
) -> None:
    """Listen at ``config.host:config.port`` until ``ready``, called with the port once it listens, returns.

    Raises ``OSError`` where the address cannot be had.
    """
    runner = web.AppRunner(Service(corpus, searcher, config).app(), shutdown_timeout=2.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        await ready(runner.addresses[0][1])
    finally:
        await runner.cleanup()
