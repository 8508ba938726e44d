"""Calculator and SQL: right answers, and what a hostile model may write."""

from __future__ import annotations

import math
import sqlite3
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.base import ToolCall
from tools.calculator import Calculator, CalculatorError, evaluate
from tools.runner import run_calls
from tools.sql import Sql


async def run_one(tool, **arguments):
    [result] = await run_calls([tool], [ToolCall(tool.name, arguments)])
    return result


# ── calculator ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("-(7 // 2) ** 2", -9),
        ("10 % 4 / 2", 1.0),
        ("2 ** -1", 0.5),
        ("sqrt(16) + max(1, 2, 3)", 7.0),
        ("round(2.567, 2)", 2.57),
        ("round(2.5)", 2),
        ("factorial(5) + comb(5, 2) + gcd(12, 18)", 136),
        ("pi", math.pi),
        ("  1_000 ", 1000),
        ("-" * 490 + "1", 1),
    ],
)
def test_values(expression, value):
    assert evaluate(expression) == value and type(evaluate(expression)) is type(value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("9**9**9", "too large"),
        ("2 ** 4096", "too large"),
        ("(2**4000) * (2**4000)", "too large"),
        ("10.0 ** 400", "too large"),
        ("1e308 * 10", "not finite"),
        ("factorial(501)", "too large"),
        ("comb(10**9, 10**8)", "too large"),
        ("round(10**300, -10**9)", "300 at most"),
        ("round(1, 1.5)", "300 at most"),
        ("9" * 501, "500 are the limit"),
        ("1 / 0", "division by zero"),
        ("(-8) ** 0.5", "not a real number"),
        ("1,000 + 1", "thousands separators"),
        ("2 ^ 3", r"write \*\*"),
        ("__import__('os').system('true')", "no such function"),
        ("().__class__", "not arithmetic"),
        ("[x for x in (1,)]", "not arithmetic"),
        ("'a' * 10", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("lambda: 1", "not arithmetic"),
        ("x := 1", "not an arithmetic expression"),
        ("x", "'x' is not known"),
        ("sqrt()", "wrong kind of number"),
        ("log(0)", "math domain error"),
        ("\0", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
    ],
)
def test_what_cannot_be_computed_is_refused_at_once(expression, words):
    started = time.process_time()
    with pytest.raises(CalculatorError, match=words):
        evaluate(expression)
    assert time.process_time() - started < 0.1


_atoms = st.sampled_from(["9", "0", "1.5", "1e300", "pi", "factorial(400)", "(-3)", "x", "''"])
_expressions = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "^", ",", "<<"]), inner).map(
            lambda parts: f"({parts[0]}{parts[1]}{parts[2]})"
        ),
        st.tuples(st.sampled_from(["round", "lcm", "comb", "exp", "floor", "hypot"]), inner).map(
            lambda p: f"{p[0]}({p[1]})"
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=1000)
@given(_expressions)
def test_every_expression_ends_soon_with_a_finite_number_or_a_reason(expression):
    try:
        assert math.isfinite(evaluate(expression)) or isinstance(evaluate(expression), int)
    except CalculatorError as error:
        assert str(error)
    except OverflowError:  # math.isfinite of an integer beyond floats
        assert isinstance(evaluate(expression), int)


async def test_the_tool_shows_rounded_and_keeps_full_values():
    result = await run_one(Calculator(), expression="0.1 + 0.2")
    assert result.text == "0.3" and result.data == 0.1 + 0.2
    assert (await run_one(Calculator(), expression="2**70")).text == str(2**70)
    wrong = await run_one(Calculator(), expression="9**9**9")
    assert wrong.fault == "error" and "too large" in wrong.text


# ── SQL ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop ? #1.db"  # characters that mean something in a URI
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE goods (name TEXT, price INTEGER, picture BLOB)")
        rows = [("apple", 3, b"\0\1"), ("bread", None, None), ("long", 1, b"")] + [
            (f"g{n}", n, None) for n in range(100)
        ]
        connection.executemany("INSERT INTO goods VALUES (?, ?, ?)", rows)
    connection.close()
    return path


async def test_sql_answers_with_columns_and_rows(database):
    tool = Sql(database)
    await tool.prepare()
    assert "CREATE TABLE goods (name TEXT, price INTEGER, picture BLOB)" in tool.schema()["function"]["description"]
    result = await run_one(tool, query="SELECT * FROM goods LIMIT 2")
    assert result.text == "name | price | picture\napple | 3 | [2 bytes]\nbread | NULL | NULL"
    assert result.data == [("apple", 3, b"\0\1"), ("bread", None, None)]


async def test_sql_shows_a_bounded_number_of_rows_and_says_so(database):
    result = await run_one(Sql(database, max_rows=3), query="SELECT name FROM goods")
    assert result.text.count("\n") == 4 and "only the first 3 rows" in result.text and len(result.data) == 3
    exactly = await run_one(Sql(database, max_rows=3), query="SELECT name FROM goods LIMIT 3")
    assert "only" not in exactly.text
    long = await run_one(Sql(database), query="SELECT hex(zeroblob(1000))")
    assert "[2000 characters]" in long.text and len(long.text) < 600


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM goods",
        "INSERT INTO goods VALUES ('x', 1, NULL)",
        "UPDATE goods SET price = 0",
        "DROP TABLE goods",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "ATTACH DATABASE '{tmp}/other.db' AS other",
        "VACUUM INTO '{tmp}/copy.db'",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA table_info(goods)",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "SELECT printf('%.*c', 2000000000, 'x')",
        "BEGIN",
        "SELECT 1; DELETE FROM goods",
        "WITH x AS (SELECT 1) DELETE FROM goods",
    ],
)
async def test_sql_refuses_all_but_reading(database, tmp_path, query):
    before = database.read_bytes()
    result = await run_one(Sql(database), query=query.format(tmp=tmp_path))
    assert result.fault == "error" and ("only SELECT" in result.text or "one statement" in result.text), result.text
    assert database.read_bytes() == before and list(tmp_path.iterdir()) == [database]


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
        "SELECT count(*) FROM goods a, goods b, goods c, goods d, goods e",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT * FROM c WHERE x < 0",
    ],
)
async def test_a_query_without_end_is_stopped(database, query):
    started = time.perf_counter()
    result = await run_one(Sql(database, time_s=0.2), query=query)
    assert result.fault == "timeout" and "stopped after 0.2 s" in result.text
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT zeroblob(2000000000)", "too big"),
        ("SELECT replace(hex(zeroblob(9999)), '0', hex(zeroblob(9999)))", "too big"),
        ("SELECT hex(zeroblob(400000)) FROM goods", "larger than 8 MB"),
        ("SELECT " + "(" * 500 + "1" + ")" * 500, "overflow"),
        ("SELECT " + "1," * 20_000 + "1", "too large"),
        ("SELECT nope FROM goods", "no such column: nope"),
        ("", "empty"),
    ],
)
async def test_too_much_and_mistakes_are_told(database, query, words):
    result = await run_one(Sql(database), query=query)
    assert result.fault == "error" and words in result.text and len(result.text) < 400


async def test_a_database_that_is_not_there_is_told_before_the_first_episode(tmp_path):
    with pytest.raises(ValueError, match="unable to open"):
        await Sql(tmp_path / "none.db").prepare()
    (tmp_path / "text.db").write_text("no database at all" * 100)
    with pytest.raises(ValueError, match="not a database"):
        await Sql(tmp_path / "text.db").prepare()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.db"], "nothing is created"
