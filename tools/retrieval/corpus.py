"""A corpus that stays on disk: where each document begins is known, the documents are read when asked for."""

from __future__ import annotations

import json
import logging
import mmap
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tools.progress import progress
from tools.retrieval.contents import join_contents, split_contents
from tools.retrieval.files import replacing

log = logging.getLogger("rollway.retriever")

#: Skipped lines that are named as warnings; the others are named on level DEBUG.
_NAMED = 20
_UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Document:
    """id, contents: as the service answers. title, text: what is indexed."""

    id: str
    contents: str
    title: str
    text: str


class Corpus(Sequence[Document]):
    """Documents by their row. Memory: 8 bytes a document; the file is mapped. Safe to read from several threads.

    offsets: int64 [rows], where the lines of the documents begin.
    """

    def __init__(self, path: Path, offsets: np.ndarray):
        self.path, self._offsets = path, offsets
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, row: int) -> Document:
        start = int(self._offsets[row])
        end = self._bytes.find(b"\n", start)
        return parse_document(self._bytes[start : end if end >= 0 else len(self._bytes)])


def index_lines(path: Path, target: Path, bad_rows: Literal["fatal", "skip"]) -> dict[str, int]:
    """Check every line and write the offsets (npy, int64 [rows]); how many rows there are, and skipped ones.

    Raises ``ValueError`` that names file and line of a bad row where those are fatal, and where no row can be used.
    """
    offsets, skipped = array("q"), 0
    with progress("corpus, bytes", path.stat().st_size, say=log.info) as advance:
        for number, offset, line in _lines(path):
            advance(len(line))
            if not line.strip():
                continue
            try:
                parse_document(line)
            except ValueError as error:
                if bad_rows == "fatal":
                    raise ValueError(f"{path}:{number}: {error}. Mend it, or set retriever.bad_rows: skip") from None
                skipped += 1
                log.log(
                    logging.WARNING if skipped <= _NAMED else logging.DEBUG, "skipped %s:%d: %s", path, number, error
                )
            else:
                offsets.append(offset)
    if not offsets:
        raise ValueError(f"{path}: no line can be used; want {{'id', 'title', 'text'}} or {{'id', 'contents'}} a line")
    if skipped:
        log.warning("%s: %d lines skipped, %d used", path, skipped, len(offsets))
    with replacing(target) as scratch, scratch.open("wb") as file:
        np.save(file, np.frombuffer(offsets, np.int64))
    return {"rows": len(offsets), "skipped": skipped}


def parse_document(line: bytes) -> Document:
    """Raises ``ValueError`` that says what the line lacks."""
    try:
        row = json.loads(line.removeprefix(_UTF8_MARK))
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError, too
        raise ValueError(f"not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"want an object, got {type(row).__name__}")
    identity = row.get("id")
    if not isinstance(identity, str | int) or isinstance(identity, bool) or identity == "":
        raise ValueError("a passage needs id: a string or an integer")
    if "contents" in row and "text" not in row:
        contents = _text(row, "contents")
        title, text = split_contents(contents)
    else:
        title, text = _text(row, "title", may_be_empty=True), _text(row, "text", may_be_empty=True)
        if not (title.strip() or text.strip()):
            raise ValueError("a passage needs title or text: both are empty")
        contents = join_contents(title, text)
    return Document(str(identity), contents, title, text)


def _text(row: dict[str, Any], field: str, may_be_empty: bool = False) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        raise ValueError(f"a passage needs {field}: {'a string' if may_be_empty else 'a string that is not empty'}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a passage needs {field}: it holds a lone surrogate, which has no UTF-8 form") from None
    return value


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(line number from 1, offset of its first byte, line)."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield number, offset, line
            offset += len(line)
