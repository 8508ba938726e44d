"""A disk that is full or cannot be written, told from other errors: it is for a person to mend, not for a restart."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
#: What SQLite and torch say in place of the system's error.
_WORDS = ("disk is full", "readonly database", "PytorchStreamWriter failed writing file", "disk I/O error")


def disk_trouble(error: BaseException, folder: Path) -> str | None:
    """One line on what is wrong with the disk under ``folder`` and what to do; None for an error of another kind."""
    if not any(getattr(link, "errno", None) in _CODES or _says_so(link) for link in _chain(error)):
        return None
    free = shutil.disk_usage(folder).free / 2**20
    return (
        f"{folder} cannot be written ({error}); {free:,.0f} MiB are free there: make room, or make it writable, then go on "
        "from the last checkpoint with --resume"
    )


def _says_so(error: BaseException) -> bool:
    return any(word in str(error) for word in _WORDS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
