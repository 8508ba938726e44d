"""Rows → items. A row that cannot be used is named with its place, counted, and skipped or fatal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, StringConstraints, ValidationError

log = logging.getLogger("rollway.data")

#: What happens to a row that cannot be used.
BadRows = Literal["fatal", "skip"]
#: Text that is there: not empty, not only blanks, and with a UTF-8 form (pydantic refuses lone surrogates).
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
#: Skipped rows that are named as warnings; the others are named on level DEBUG.
_NAMED = 20


class BadRow(ValueError):
    """A row that cannot be used; the message says why, without its place."""


class Item(Protocol):
    id: str


#: (place for error messages, the row or what is wrong with it)
Row = tuple[str, dict[str, Any] | BadRow]
ItemT = TypeVar("ItemT", bound=Item)
ModelT = TypeVar("ModelT", bound=BaseModel)


def load(
    source: object, rows: Iterable[Row], convert: Callable[[dict[str, Any], int], ItemT], bad_rows: BadRows
) -> tuple[ItemT, ...]:
    """All rows of ``source`` (a name for messages) as items with ids of their own, in order.

    convert: (row, its number from 1) → item; raises ``BadRow``.
    Raises ``ValueError`` for the first bad row if those are fatal, and where no row at all can be used.
    """
    items, places, skipped, number = [], {}, 0, 0
    for number, (where, row) in enumerate(rows, start=1):
        try:
            if isinstance(row, BadRow):
                raise row
            item = _convert(convert, row, number)
            if (first := places.setdefault(item.id, where)) != where:
                raise BadRow(f"its id {item.id!r} is that of {first}")
            items.append(item)
        except BadRow as bad:
            if bad_rows == "fatal":
                raise ValueError(f"{where}: {bad}. Mend it, or set env.args.bad_rows: skip") from None
            skipped += 1
            log.log(logging.WARNING if skipped <= _NAMED else logging.DEBUG, "skipped %s: %s", where, bad)
    if not items:
        raise ValueError(f"{source}: none of its {number} rows can be used")
    if skipped:
        log.warning("%s: %d of %d rows skipped, %d used", source, skipped, number, len(items))
    return tuple(items)


def _convert(convert: Callable[[dict[str, Any], int], ItemT], row: dict[str, Any], number: int) -> ItemT:
    try:
        return convert(row, number)
    except RecursionError:
        raise BadRow("nested too deeply") from None


def validate(model: type[ModelT], row: dict[str, Any], what: str) -> ModelT:
    """The row as ``model``. Raises ``BadRow``: "a passage needs title: Field required"."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        raise BadRow(f"{what} needs {explain(error)}") from None


def explain(error: ValidationError) -> str:
    """What is wrong, by field, in one line; without the values, which may be long."""
    lines = []
    for item in error.errors(include_input=False, include_url=False):
        field = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        lines.append(f"{field}: {message}" if field else message)
    return "; ".join(lines[:3]) + ("; …" if len(lines) > 3 else "")
