"""Files and folders that are there whole or not at all, whenever the process dies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def replace_folder(aside: Path, target: Path) -> None:
    """Put the finished folder ``aside`` in the place of ``target``, durably.

    A kill leaves either the old or the new one under ``target`` (or, for an instant,
    the old one under ``<target>.old``); both are on the same file system.
    """
    _sync_tree(aside)
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    aside.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def fresh_folder_beside(target: Path) -> Path:
    """An empty ``<target>.tmp`` to build in; what a killed process left there is removed."""
    aside = target.with_name(target.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    return aside


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` so that readers and crashes see the old or the new text."""
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(text, encoding="utf-8")
    _sync(aside)
    aside.replace(path)
    _sync(path.parent)


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            _sync(Path(root, name))
        _sync(Path(root))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
