"""Rows from JSON lists, JSON lines, Parquet and the hub's library; each bad one named with its place."""

import json
import logging
import sys
from dataclasses import dataclass

import pytest

from envs.data.loading import BadRow, load
from envs.data.rows import read_rows
from envs.data.source import Catalogue, Source

ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 3}]


def read(path, **more):
    return list(read_rows(Source(path=str(path), **more)))


@dataclass(frozen=True)
class Thing:
    id: str
    n: int


def thing(row, number):
    if "n" not in row:
        raise BadRow("a thing needs n")
    return Thing(row["id"], row["n"])


@pytest.mark.parametrize("layout", ["lines", "list", "one line", "bom", "blank lines"])
def test_json_is_told_by_its_content_and_every_row_has_its_line(tmp_path, layout):
    path = tmp_path / "rows.json"
    lines = [json.dumps(row) for row in ROWS]
    text, places = {
        "lines": ("\n".join(lines), ["1", "2", "3"]),
        "list": ("[\n" + ",\n\n".join(lines) + "\n]\n", ["2 (row 1)", "4 (row 2)", "6 (row 3)"]),
        "one line": (" [" + ", ".join(lines) + "]", ["1 (row 1)", "1 (row 2)", "1 (row 3)"]),
        "bom": ("\ufeff" + "\n".join(lines), ["1", "2", "3"]),
        "blank lines": ("\n\n" + "\n \n".join(lines) + "\n\n", ["3", "5", "7"]),
    }[layout]
    path.write_text(text, encoding="utf-8")
    assert read(path) == [(f"{path}:{place}", row) for place, row in zip(places, ROWS, strict=True)]


def test_an_empty_list_has_no_rows(tmp_path):
    (tmp_path / "rows.json").write_text("[ ]")
    assert read(tmp_path / "rows.json") == []


def test_a_pattern_names_several_files_in_order(tmp_path):
    for number, row in enumerate(ROWS):
        (tmp_path / f"part-{2 - number}.jsonl").write_text(json.dumps(row))
    assert [row["id"] for _, row in read(tmp_path / "part-*.jsonl")] == ["c", "b", "a"]
    with pytest.raises(ValueError, match=r"no such file .*none-\*"):
        read(tmp_path / "none-*.jsonl")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{oops", "not valid JSON"),
        (b'{"id": "\xff"}', "not valid JSON .*utf-8"),
        (b'{"id": NaN}', "NaN is not JSON"),
        (b"3", "want an object, got int"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_line_is_one_bad_row(tmp_path, line, says):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": "a"}\n' + line + b'\n{"id": "b"}\n')
    rows = read(path)
    assert [where for where, _ in rows] == [f"{path}:{n}" for n in (1, 2, 3)]
    with pytest.raises(BadRow, match=says):
        raise rows[1][1]


@pytest.mark.parametrize(
    ("end", "says"), [(', {"id": ', ":2.*row 2.*not valid JSON"), ("", ":1.*want a comma"), ("{", "")]
)
def test_a_list_that_breaks_off_is_never_taken_for_a_whole_one(tmp_path, end, says):
    path = tmp_path / "rows.json"
    path.write_text('[{"id": "a"}' + end.replace(" {", "\n{"))
    with pytest.raises(ValueError, match=says):
        load(path, read_rows(Source(path=str(path))), lambda row, n: Thing(row["id"], 0), "skip")


def test_parquet_is_read_without_the_nulls_that_pad_objects(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    rows = [{"id": "a", "args": {"x": [1]}}, {"id": "b", "args": {"y": ["", "u"]}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert read(path) == [(f"{path} (row 1)", rows[0]), (f"{path} (row 2)", rows[1])]
    path.write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as Parquet"):
        read(path)


def test_the_hub_library_reads_a_folder_and_says_what_to_do_without_a_network(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    source = Source(hub=str(folder), split="train[:2]")
    assert list(read_rows(source)) == [(f"{folder}[train[:2]] (row {n})", ROWS[n - 1]) for n in (1, 2)]
    with pytest.raises(ValueError, match=r"nobody/nothing.*cannot be loaded.*give their path"):
        list(read_rows(Source(hub="nobody/nothing", split="train")))


@pytest.mark.parametrize(
    ("module", "source"),
    [("pyarrow", {"path": "rows.parquet"}), ("datasets", {"hub": "nobody/nothing", "split": "train"})],
)
def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch, module, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f"pip install {module}"):
        list(read_rows(Source(**source)))


# ── bad rows: fatal or skipped ───────────────────────────────────────────────


def bad_file(tmp_path, bad=1):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [ROWS[0], *[{"id": "x"}] * bad, ROWS[1], ROWS[0]]))
    return path


def test_a_bad_row_is_fatal_and_named(tmp_path):
    path = bad_file(tmp_path)
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: a thing needs n\. .*bad_rows: skip"):
        load(path, read_rows(Source(path=str(path))), thing, "fatal")


def test_skipped_rows_are_named_counted_and_an_id_is_used_once(tmp_path, caplog):
    path = bad_file(tmp_path, bad=30)
    with caplog.at_level(logging.DEBUG, "rollway.data"):
        items = load(path, read_rows(Source(path=str(path))), thing, "skip")
    assert items == (Thing("a", 1), Thing("b", 2))
    assert caplog.messages[0] == f"skipped {path}:2: a thing needs n"
    assert caplog.messages[-2] == f"skipped {path}:33: its id 'a' is that of {path}:1"
    assert caplog.messages[-1] == f"{path}: 31 of 33 rows skipped, 2 used"
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING] * 20 + [logging.DEBUG] * 11 + [logging.WARNING]


def test_a_source_without_any_usable_row_is_fatal_in_any_case(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a"}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl: none of its 1 rows can be used"):
        load(path, read_rows(Source(path=str(path))), thing, "skip")


# ── env.args ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("files", "bad_rows", "says"),
    [
        ({"train": {"a": {}}}, "skip", "files: train.a: give either path or hub"),
        ({"train": {"a": {"path": "x", "hub": "y", "split": "train"}}}, "skip", "either path or hub"),
        ({"train": {"a": {"hub": "y"}}}, "skip", "hub needs a split"),
        ({"train": {"a": {"path": "x", "split": "train"}}}, "skip", "are for hub"),
        ({"train": {"a": {"path": "x", "format": "json"}}}, "skip", "train.a.format: Extra inputs"),
        ({"test": {"a": "x"}}, "skip", "files: test"),
        ("x.json", "skip", "files: "),
        ({}, "ignore", r"bad_rows: Input should be 'fatal' or 'skip'"),
    ],
)
def test_wrong_sources_stop_with_one_line(files, bad_rows, says):
    with pytest.raises(ValueError, match=rf"^env\.args\..*{says}") as error:
        Catalogue(files, Source, bad_rows)
    assert "\n" not in str(error.value)


def test_a_catalogue_knows_its_sources_each_once():
    catalogue = Catalogue({"train": {"a": "x", "b": "y"}, "eval": {"a": "x"}}, Source, "fatal")
    assert catalogue.source("eval", "a") == Source(path="x")
    assert catalogue.sources() == (Source(path="x"), Source(path="y"))
    with pytest.raises(ValueError, match="no eval file for the data set 'b'"):
        catalogue.source("eval", "b")
