"""Where an MCP server is. Known without the SDK, which takes seconds to import: who only checks does without."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


class McpUnavailable(Exception):
    """The server cannot be reached now; in words for the model."""


@dataclass(frozen=True)
class Endpoint:
    """A command or a URL; ``env`` goes with the one, ``headers`` with the other."""

    command: tuple[str, ...]
    url: str
    env: dict[str, str]
    headers: dict[str, str]

    @classmethod
    def checked(cls, command: list[str] | None, url: str | None, env: dict, headers: dict) -> Endpoint:
        """Raises ``ValueError``."""
        if bool(command) == bool(url):
            raise ValueError("give either command (a list: program, arguments) or url")
        if url and urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"url {url!r}: want http://… or https://…")
        if (url and env) or (command and headers):
            raise ValueError("env goes with command, headers with url")
        return cls(tuple(command or ()), url or "", env, headers)

    def __str__(self) -> str:
        return self.url or f"`{' '.join(self.command)}`"
