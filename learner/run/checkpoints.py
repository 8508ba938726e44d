"""The folder of checkpoints: each is whole or not there, and known to be whole before a run goes on from it.

``checkpoint-<step>`` is written aside, sealed with the size and CRC-32 of its every file,
synced, renamed, and only then pointed to by ``latest``. A kill at any moment leaves
``latest`` at a whole one: the one before, until the very last rename. What a kill cannot
do, a disk can: a checkpoint that is torn all the same is found out by its seal.
"""

from __future__ import annotations

import json
import logging
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from learner.run.durable import replace_folder, replace_text

log = logging.getLogger("rollway.checkpoints")

LATEST = "latest"
STATE = "state.json"
_PREFIX = "checkpoint-"
_CHUNK = 1 << 20
_READERS = 8


def path_of(root: Path, step: int) -> Path:
    return root / f"{_PREFIX}{step}"


def step_of(name: str) -> int | None:
    """The step of the finished checkpoint called ``name``; None for any other name."""
    number = name.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() else None


def steps(root: Path) -> list[int]:
    """Steps of the finished checkpoints, oldest first."""
    found = (step_of(path.name) for path in root.glob(f"{_PREFIX}*"))
    return sorted(step for step in found if step is not None)


def seal(folder: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (JSON values) together with what the other files in ``folder`` are to be."""
    replace_text(folder / STATE, json.dumps(state | {"files": _measure(folder)}))


def amend(folder: Path, **changes: Any) -> None:
    """Change values of a sealed checkpoint's state, all or none; its other files stay as they are."""
    replace_text(folder / STATE, json.dumps(json.loads((folder / STATE).read_text(encoding="utf-8")) | changes))


def place(aside: Path, root: Path, step: int) -> Path:
    """Put the sealed folder ``aside`` under its name, durably, and point to it."""
    target = path_of(root, step)
    replace_folder(aside, target)
    replace_text(root / LATEST, target.name)
    return target


def prune(root: Path, keep: int) -> int:
    """Remove all but the ``keep`` newest checkpoints, and what killed or undone ones left. Returns the oldest step kept."""
    kept = steps(root)[-keep:]
    for path in root.glob(f"{_PREFIX}*"):
        if path not in [path_of(root, step) for step in kept]:
            shutil.rmtree(path)
    return kept[0]


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None where every file is as it was sealed. Reads all of it."""
    try:
        sealed = json.loads((folder / STATE).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return f"there is no {STATE}"
    except (ValueError, KeyError):
        return f"{STATE} is torn"
    found = _measure(folder)
    for name, (size, crc) in sealed.items():
        if name not in found:
            return f"{name} is missing"
        if found[name][0] != size:
            return f"{name} has {found[name][0]:,} bytes of {size:,}"
        if found[name][1] != crc:
            return f"{name} is not what was written"
    return None


def newest_whole(root: Path) -> Path | None:
    """The checkpoint to go on from: the one that ``latest`` names, or, where that is damaged, the one before it.

    None where there is none at all yet. Raises ``ValueError`` where there are some and none is whole.
    """
    pointer = root / LATEST
    if not pointer.exists():
        return None
    named = pointer.read_text(encoding="utf-8").strip()
    bound = step_of(named)
    before = [path_of(root, step) for step in steps(root) if bound is None or step < bound]
    for folder in (root / named, *reversed(before)):
        problem = damage(folder)
        if problem is None:
            return folder
        log.error("%s cannot be gone on from, the one before it is tried: %s", folder, problem)
    raise ValueError(
        f"none of the checkpoints in {root} is whole (the log says why): put one back from a copy, or delete that "
        "folder to begin again from version 0 with the groups that are kept"
    )


def set_aside_after(root: Path, step: int) -> None:
    """Going on from ``step``, what comes after it is undone: it must neither count as newer nor be mistaken for new."""
    for later in steps(root):
        if later > step:
            aside = path_of(root, later).with_suffix(".undone")
            shutil.rmtree(aside, ignore_errors=True)
            path_of(root, later).rename(aside)
            log.warning("%s is undone; until the next checkpoint it is kept as %s", path_of(root, later), aside.name)
    replace_text(root / LATEST, path_of(root, step).name)


def _measure(folder: Path) -> dict[str, tuple[int, int]]:
    """Relative name → (bytes, CRC-32) of each file but the state. zlib lets go of the GIL: threads help."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / STATE)
    with ThreadPoolExecutor(_READERS) as pool:
        return {str(path.relative_to(folder)): found for path, found in zip(files, pool.map(_crc, files), strict=True)}


def _crc(path: Path) -> tuple[int, int]:
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc
