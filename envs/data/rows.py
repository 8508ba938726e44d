"""Reads the rows of a source: a JSON list, JSON lines, Parquet, or a data set of the hub."""

from __future__ import annotations

import codecs
import glob
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from envs.data.loading import BadRow, Row
from envs.data.source import Source

_BLANK = re.compile(r"[ \t\r\n]*")


def read_rows(source: Source) -> Iterator[Row]:
    """Every row of the source, in order, with its place: ``file:line``, in Parquet and on the hub the row's number.

    A row that cannot be read is yielded as what is wrong with it. Raises ``ValueError`` that says what to
    change where the source itself cannot be read, or not beyond a certain row.
    """
    if source.hub is not None:
        yield from _hub(source)
        return
    for path in _files(source.path):
        yield from _parquet(path) if path.suffix == ".parquet" else _json(path)


def _files(pattern: str) -> list[Path]:
    if Path(pattern).is_file():
        return [Path(pattern)]
    found = [Path(name) for name in sorted(glob.glob(pattern)) if Path(name).is_file()]
    if not found:
        raise ValueError(f"no such file {pattern}")
    return found


def _json(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()
    return _json_list(path) if head.startswith(b"[") else _json_lines(path)


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                yield f"{path}:{number}", _parse(line)


def _parse(line: bytes) -> dict[str, Any] | BadRow:
    try:
        return _object(json.loads(line.decode(), parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError, too
        return BadRow(f"not valid JSON ({error})")


def _json_list(path: Path) -> Iterator[Row]:
    """Row by row, which keeps the line of each and never holds the whole list beside the text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error})") from None
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    at, line, number = _skip_blank(text, text.index("[") + 1), 1, 0
    counted = 0
    while not text.startswith("]", at):
        line, counted, number = line + text.count("\n", counted, at), at, number + 1
        where = f"{path}:{line} (row {number})"
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not valid JSON ({error}); what follows cannot be read") from None
        yield where, _object(value)
        at = _skip_blank(text, at)
        if text.startswith(",", at):
            at = _skip_blank(text, at + 1)
        elif not text.startswith("]", at):
            raise ValueError(f"{where}: after it, want a comma or the end of the list; what follows cannot be read")


def _parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(f"{path}: Parquet needs pyarrow: pip install pyarrow, or convert it to JSON lines") from None
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} (row {number})", _without_padding(row)
    except (OSError, ArrowException) as error:
        raise ValueError(f"{path}: cannot be read as Parquet: {error}") from None


def _hub(source: Source) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{source}: the hub needs datasets: pip install datasets, or give a local path") from None
    try:
        rows = datasets.load_dataset(source.hub, source.name, split=source.split, revision=source.revision)
    except Exception as error:  # whatever its back ends raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"{source}: cannot be loaded ({reason}). Check name, split and network; without a network, "
            "download its files elsewhere and give their path"
        ) from None
    for number, row in enumerate(rows, start=1):
        yield f"{source} (row {number})", _without_padding(row)


def _without_padding(value: Any) -> Any:
    """Arrow gives every object all keys of its column, null where a row had none: those are taken out again."""
    if isinstance(value, dict):
        return {key: _without_padding(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_padding(item) for item in value]
    return value


def _object(value: Any) -> dict[str, Any] | BadRow:
    return value if isinstance(value, dict) else BadRow(f"want an object, got {type(value).__name__}")


def _skip_blank(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
