"""``sql``: questions to an SQLite database, which no statement can change."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, validate_call

from tools.base import CallTimeout, Tool

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
#: Functions of some builds that reach out of the database or into the process; the last two can count to
#: billions in one step of the virtual machine, where nothing looks at the clock.
_FORBIDDEN_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "printf", "format"}
#: So many steps of SQLite's virtual machine go by between two looks at the clock: well under a millisecond.
_STEPS = 1000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,  # of a string, a blob, a row
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,  # long patterns take quadratic time
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_MAX_CELL = 500
#: Text and blobs of one answer, before it is cut for the model.
_MAX_BYTES = 8_000_000
_MAX_SCHEMA = 4000


class Sql(Tool):
    """One ``SELECT`` a call; ``data`` is the list of rows as tuples, not cut.

    database: an SQLite file, opened read-only by each call. max_rows: rows shown; the model is
    told of more. time_s: longest query, seconds. name: where there are several databases.
    Raises ``ValueError`` for arguments that do not fit.
    """

    name: ClassVar[str] = "sql"
    description: ClassVar[str] = "Query an SQLite database with one SELECT statement."
    parameters: ClassVar[dict] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "one SELECT statement"}},
        "required": ["query"],
        "additionalProperties": False,
    }

    @validate_call
    def __init__(
        self,
        database: Path,
        max_rows: Annotated[int, Field(ge=1, le=1000)] = 50,
        time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0,
        name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "sql",
    ):
        self.database, self.max_rows, self.time_s, self.name = database, max_rows, time_s, name
        self.timeout_s = time_s + 5.0  # the query ends itself; this is for a disk that hangs

    async def prepare(self) -> None:
        """Opens the file and puts its tables into the description."""
        try:
            tables = self._query("SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND sql IS NOT NULL")[1]
        except sqlite3.Error as error:
            raise ValueError(f"tool sql: database {self.database}: {error}") from None
        schema = "\n".join(" ".join(sql.split()) for (sql,) in tables)
        self.description = f"{Sql.description} Tables:\n{schema[:_MAX_SCHEMA]}"

    def execute(self, query: str) -> tuple[str, list[tuple]]:
        columns, rows = self._query(query)
        shown = [columns, *rows[: self.max_rows]]
        text = "\n".join(" | ".join(map(_cell, row)) for row in shown)
        if len(rows) > self.max_rows:
            text += f"\n[only the first {self.max_rows} rows are shown; use LIMIT, or count(*)]"
        return text, rows[: self.max_rows]

    def _query(self, query: str) -> tuple[list[str], list[tuple]]:
        """Names of the columns, and one row more than are shown where there are more."""
        deadline = time.monotonic() + self.time_s
        uri = f"{self.database.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=self.time_s, isolation_level=None)) as connection:
            for limit, value in _LIMITS.items():
                connection.setlimit(limit, value)
            connection.set_authorizer(_authorise)
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            try:
                cursor = connection.execute(query)
                if cursor.description is None:
                    raise ValueError("the query is empty")
                return [name for name, *_ in cursor.description], self._fetch(cursor)
            except sqlite3.DatabaseError as error:
                if time.monotonic() > deadline:
                    raise CallTimeout(f"the query was stopped after {self.time_s:g} s") from None
                if "authoriz" in str(error):  # the words differ by kind of statement
                    raise PermissionError(f"only SELECT on the tables is allowed ({error})") from None
                raise

    def _fetch(self, cursor: sqlite3.Cursor) -> list[tuple]:
        rows, size = [], 0
        for row in cursor:
            rows.append(row)
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if size > _MAX_BYTES:
                raise ValueError(f"the answer is larger than {_MAX_BYTES // 1_000_000} MB; select less")
            if len(rows) > self.max_rows:
                break
        return rows


def _authorise(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    text = str(value)
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}… [{len(text)} characters]"
