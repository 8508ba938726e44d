"""Refusals in the form of the OpenAI API, which its clients turn into exceptions of their own."""

from __future__ import annotations

from typing import Any

#: As OpenAI's own API calls it; agents that shorten their history look for this.
CONTEXT_LENGTH = "context_length_exceeded"
#: No more turns or contexts in this episode.
EPISODE_LIMIT = "episode_limit"


class ApiError(Exception):
    """A request that is not carried out. ``limit``: the limit of the episode that it met, as ``finish`` of its facts."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        limit: str | None = None,
    ):
        super().__init__(message)
        self.param, self.status, self.code, self.limit = param, status, code, limit

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}
