"""Model folders that a command makes, for those who name one before it is there."""

from __future__ import annotations

from pathlib import Path

#: Folder, from the repository's root → the command that makes it.
MADE_BY = {"runs/models/smollm2-135m-instruct": "make smollm2"}


def how_to_get(path: str | Path) -> str:
    """What to add to a message about a missing folder; empty for one that no command makes."""
    command = MADE_BY.get(Path(path).as_posix())
    return f"; `{command}` makes it" if command else ""
