"""`snapshot export` and the way back: files that others read, with where their rows come from, whole or not there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from scankv.formats.origin import Origin
from scankv.formats.parquet_types import parquet_schema
from table_model.types import parse_schema
from tests.unit.cli.test_text import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine

FORMATS = ["parquet", "arrow"]
# `hundreds` has a negative scale, which Parquet has not.
TYPES = {name: column for name, column in COLUMNS.items() if name != "hundreds"}


@pytest.fixture
def typed(scankv: CommandLine, table: str, tmp_path: Path) -> str:
    """A table with all types, three rows and two buckets."""
    rows = pa.table({"id": [0, 1, 2], "part": ["a", "b", None], **TYPES})
    with pa.OSFile(str(tmp_path / "typed.arrow"), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    scankv("load", table, str(tmp_path / "typed.arrow"), "--create", "--key", "id", "--buckets", "2")
    return table


def read(path: Path) -> pa.Table:
    """What a plain pyarrow reads of a file."""
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def metadata_of(path: Path) -> dict[str, Any]:
    """The entries of ours in the metadata of a file."""
    entries = {name.decode(): text for name, text in (read(path).schema.metadata or {}).items()}
    return {
        name.removeprefix("scankv."): json.loads(text) for name, text in entries.items() if name.startswith("scankv.")
    }


def described(scankv: CommandLine, table: str) -> dict[str, Any]:
    found = scankv("describe", table, "--json").json
    return {name: found[name] for name in ("primary_key", "bucket_key", "buckets", "columns")}


def rows_of(scankv: CommandLine, table: str) -> pa.Table:
    return pa.ipc.open_stream(scankv("scan", table, "--format", "arrow").stdout).read_all()


@pytest.mark.parametrize("files", [None, 3])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_table_with_all_types_comes_back_equal(
    scankv: CommandLine, typed: str, tmp_path: Path, format_: str, files: int | None
) -> None:
    path = tmp_path / ("all" if files else f"all.{format_}")
    options = ["--files", str(files), "--format", format_] if files else []
    text = scankv("snapshot", "export", typed, str(path), *options).text
    assert text.startswith(f"exported 3 rows of {typed} as of 20")
    if files:
        assert sorted(each.name for each in path.iterdir()) == [f"part-000{i}-of-0003.{format_}" for i in range(3)]
    copy = typed + "_copy"
    assert "loaded 3 rows" in scankv("load", copy, str(path), "--create").text
    assert described(scankv, copy) == described(scankv, typed)
    assert rows_of(scankv, copy).equals(rows_of(scankv, typed))
    assert scankv("snapshot", "list", typed, "--json").json == [], "a lease is left"


@pytest.mark.parametrize("format_", FORMATS)
def test_the_metadata_say_which_rows_these_are(scankv: CommandLine, scores: str, tmp_path: Path, format_: str) -> None:
    snapshot = scankv("snapshot", "create", scores).text.strip()
    (pinned,) = scankv("snapshot", "list", scores, "--json").json
    scankv("put", scores, "player=dan", "score=1")
    path = tmp_path / f"scores.{format_}"
    scankv("snapshot", "export", snapshot, str(path), "--columns", "score", "--where", "score > 27")
    assert read(path).to_pydict() == {"score": [31]}
    assert metadata_of(path) == {
        "table": scores,
        "schema_id": 1,
        "columns": "score int64",
        "primary_key": ["player"],
        "bucket_key": ["player"],
        "buckets": 2,
        "table_incarnation": pinned["table_incarnation"],
        "log_offsets": pinned["log_offsets"],
        "view_time": pinned["taken_at"],
        "where": "score > 27",
    }
    (left,) = scankv("snapshot", "list", scores, "--json").json
    assert left["id"] == snapshot, "it is not ours to release"


def test_others_read_what_was_exported(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    path, parts = tmp_path / "scores.parquet", tmp_path / "parts"
    scankv("snapshot", "export", scores, str(path))
    scankv("snapshot", "export", scores, str(parts), "--files", "2")
    expected, con = [("ann", 31), ("bob", 27), ("cem", None)], duckdb.connect()
    for found in (str(path), str(parts / "*.parquet")):
        rows = con.execute(f"select player, score from read_parquet('{found}') order by player").fetchall()
        assert rows == expected
        assert pl.read_parquet(found).sort("player").rows() == expected
    assert sorted(pa.parquet.read_table(parts)["player"].to_pylist()) == ["ann", "bob", "cem"]
    con.execute(f"select value from parquet_kv_metadata('{path}') where key = 'scankv.table'")
    ((origin,),) = con.fetchall()
    assert json.loads(origin) == scores
    scankv("snapshot", "export", scores, str(tmp_path / "scores.arrow"))
    assert pl.read_ipc(tmp_path / "scores.arrow").sort("player").rows() == expected


def test_a_column_that_parquet_cannot_hold_is_refused_before_anything_is_written(
    scankv: CommandLine, table: str, tmp_path: Path
) -> None:
    scankv("create", table, "--schema", "id int64, hundreds decimal128(10, -2)", "--key", "id")
    scankv("put", table, "id=1", "hundreds=300")
    path = tmp_path / "t.parquet"
    message = scankv.fails("snapshot", "export", table, str(path))
    assert 'column "hundreds": Parquet cannot hold decimal128(10, -2)' in message
    assert list(tmp_path.iterdir()) == []
    scankv("snapshot", "export", table, str(path), "--columns", "id")
    scankv("snapshot", "export", table, str(tmp_path / "t.arrow"))
    scankv("load", table + "_copy", str(tmp_path / "t.arrow"), "--create")
    assert rows_of(scankv, table + "_copy").equals(rows_of(scankv, table))


def test_a_value_that_parquet_cannot_hold_leaves_no_file(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "t": pa.array([2**60], pa.timestamp("s"))})
    source = tmp_path / "in" / "rows.arrow"
    source.parent.mkdir()
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    scankv("load", table, str(source), "--create", "--key", "id")
    for options in ([], ["--files", "2"]):
        message = scankv.fails("snapshot", "export", table, str(tmp_path / "out"), *options)
        assert "out cannot be written: " in message
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("files", [[], ["--files", "2"]], ids=["file", "directory"])
def test_what_is_there_is_only_replaced_when_asked_for(
    scankv: CommandLine, scores: str, tmp_path: Path, files: list[str]
) -> None:
    path = tmp_path / "scores"
    export = ["snapshot", "export", scores, str(path), *files]
    scankv(*export)
    scankv("put", scores, "player=dan", "score=1")
    assert "exists already: choose another name, or --overwrite" in scankv.fails(*export)
    assert pa.parquet.read_table(path).num_rows == 3
    scankv(*export, "--overwrite")
    assert pa.parquet.read_table(path).num_rows == 4
    assert [each.name for each in tmp_path.iterdir()] == ["scores"]
    other = [] if files else ["--files", "2"]
    assert "choose another name" in scankv.fails("snapshot", "export", scores, str(path), *other, "--overwrite")
    if files:
        (path / "notes.txt").write_text("of somebody else")
        message = scankv.fails(*export, "--overwrite")
        assert "has more than an export in it, notes.txt for one" in message
        assert (path / "notes.txt").read_text() == "of somebody else"


def test_what_cannot_be_exported_is_refused(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    assert "neither a table, as database.table, nor a snapshot" in scankv.fails("snapshot", "export", "abc", path)
    assert f'"{scores}x"' in scankv.fails("snapshot", "export", scores + "x", path)
    assert '"scor"' in scankv.fails("snapshot", "export", scores, path, "--columns", "scor")
    assert "scankv scan" in scankv.fails("snapshot", "export", scores, str(tmp_path / "x.csv"))
    assert "is no directory" in scankv.fails("snapshot", "export", scores, str(tmp_path / "none" / "x.parquet"))
    assert list(tmp_path.iterdir()) == []


def test_options_of_load_override_what_a_file_says(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    path = str(tmp_path / "scores.parquet")
    scankv("snapshot", "export", scores, path, "--where", "score is not null")
    copy = scores + "_copy"
    scankv("load", copy, path, "--create", "--key", "score,player", "--buckets", "3")
    found = described(scankv, copy)
    assert (found["primary_key"], found["bucket_key"], found["buckets"]) == (["score", "player"],) * 2 + (3,)


def test_a_directory_with_anything_else_or_other_columns_is_not_loaded(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    assert "No such file" in scankv.fails("load", scores, str(parts))
    parts.mkdir()
    assert "there is none" in scankv.fails("load", scores, str(parts))
    pa.parquet.write_table(pa.table({"player": ["dan"], "score": [1]}), parts / "a.parquet")
    (parts / "_SUCCESS").write_text("")
    (parts / "b.csv").write_text("player,score\neve,2\n")
    assert "b.csv is none" in scankv.fails("load", scores, str(parts))
    (parts / "b.csv").unlink()
    pa.parquet.write_table(pa.table({"player": ["eve"], "points": [1]}), parts / "c.parquet")
    assert 'c.parquet: the table has no column "points"' in scankv.fails("load", scores, str(parts))
    assert scankv("count", scores).text == "3\n"
    (parts / "c.parquet").unlink()
    rows = pa.table({"player": ["eve"], "score": [2]})
    pa.feather.write_feather(rows, parts / "c.feather")
    assert "loaded 2 rows" in scankv("load", scores, str(parts)).text
    assert scankv("count", scores).text == "5\n"


def test_a_file_whose_columns_were_changed_since_keeps_its_own_types() -> None:
    known = parse_schema("id int64, at timestamp[s], deep list<item: time32[s]>, gone string")
    origin = Origin(
        table="a.b",
        schema_id=1,
        columns="id int64, at timestamp[s], deep list<item: time32[s]>, gone string",
        primary_key=["id"],
        bucket_key=["id"],
        buckets=1,
        table_incarnation="i",
        log_offsets={"0": 7},
        view_time="2026-01-01T00:00:00+00:00",
    )
    given = parquet_schema(known)
    assert Origin.of(given.with_metadata(origin.metadata())) == origin
    assert origin.exact(given).equals(known)
    changed = pa.schema([given.field("at"), pa.field("id", pa.string()), pa.field("new", pa.int8())])
    assert origin.exact(changed).types == [pa.timestamp("s"), pa.string(), pa.int8()]
    assert Origin.of(pa.schema([], {"scankv.table": "no JSON"})) is None
