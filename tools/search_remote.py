"""The ``search`` tool against a retrieval service, so that an actor holds no index."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, validate_call

from tools.base import CallTimeout
from tools.retrieval.client import MAX_WAIT_S, RetrieverClient, RetrieverError, RetrieverTimeout
from tools.search import Search
from tools.search_index import Passage


class RemoteSearch(Search):
    """url: of ``--role retriever`` or another service that speaks Search-R1's form. top_k: passages of a search.
    passage_chars: longer ones are cut for the model. timeout_s: one try, seconds. retries: further tries after a
    broken connection, a time-out or a status that says "later". wait_s: how long ``prepare`` waits for the
    service. Raises ``ValueError`` for arguments that do not fit.
    """

    @validate_call
    def __init__(
        self,
        url: str,
        top_k: Annotated[int, Field(ge=1)] = 5,
        passage_chars: Annotated[int, Field(ge=20)] = 2000,
        timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0,
        retries: Annotated[int, Field(ge=0, le=10)] = 2,
        wait_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0,
    ):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r}: want http://host:port")
        super().__init__(top_k, passage_chars)
        self.wait_s = wait_s
        self.timeout_s = (timeout_s + MAX_WAIT_S) * (1 + retries)
        self._client = RetrieverClient(url, timeout_s, retries)

    async def prepare(self) -> None:
        try:
            await self._client.wait_until_healthy(self.wait_s)
        except RetrieverError as error:
            raise ValueError(f"tool search: {error}; start it with: python run.py --role retriever") from None

    async def execute(self, query: str) -> tuple[str, list[str]]:
        """Raises ``RetrieverError``, and ``CallTimeout`` where no try was answered in time."""
        try:
            [hits] = await self._client.retrieve([query], self.top_k)
        except RetrieverTimeout as error:
            raise CallTimeout(str(error)) from None
        return self.answer([Passage("", title, text) for title, text in hits[: self.top_k]])

    async def shutdown(self) -> None:
        await self._client.close()
