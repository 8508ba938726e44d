"""Files that are whole or not there, one builder a folder, and a large file's identity."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BLOCK = 4096
_BLOCKS = 256


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A scratch path to write to. It takes the place of ``path`` if the block ends well, also through a power cut."""
    scratch = path.with_name(path.name + ".part")
    yield scratch
    for name in (scratch, path.parent):  # the folder's entry must not reach the disk before the content
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if name == scratch:
            os.replace(scratch, path)


def write_json(path: Path, value: dict[str, Any]) -> None:
    with replacing(path) as scratch:
        scratch.write_text(json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file. Raises ``ValueError`` for one that is not ours."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); delete the folder {path.parent} to build anew") from None
    return value


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Nobody else builds in ``folder`` meanwhile. Raises ``ValueError`` where somebody does."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder}: another process is building this index; wait for it") from None
        yield  # the lock goes with the descriptor, also when the process is killed


def fingerprint(path: Path) -> str:
    """Identity of a file by its size and 256 blocks of 4 KiB spread evenly over it.

    Reading 14 GB at every start would cost minutes. A change that keeps the size to the byte
    and misses every block is not seen; below 1 MiB every byte counts.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    last = max(0, size - _BLOCK)
    with path.open("rb") as file:
        for offset in sorted({last * number // (_BLOCKS - 1) for number in range(_BLOCKS)}):
            file.seek(offset)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()
