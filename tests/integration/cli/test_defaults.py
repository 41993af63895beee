"""Columns with defaults, which every way to write gives to rows that lack them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from aio_client import sync
from scankv.cli.keyed_writes import put_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.command_line import CommandLine

OLD = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
ADDED = pa.schema([("level", pa.int32()), ("tags", pa.list_(pa.string())), ("plain", pa.string())])
DEFAULTS = {"level": 7, "tags": ["new"]}
ROWS = [{"k": 1, "n": 10}, {"k": 2, "n": 20}]
FORMATS = ["csv", "jsonl", "parquet", "arrow"]


def further(*values: Any) -> Any:
    """Returns a parameter for `make soak`."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.fixture
def client(scankv: CommandLine) -> Iterator[sync.Client]:
    with sync.connect(scankv.url) as client:
        yield client


def make(client: sync.Client, name: str, added: pa.Schema = ADDED, **options: Any) -> sync.Table:
    """Creates a table with a row 1, and adds columns, of which some have defaults."""
    key = [] if options.pop("no_key", False) else ["k"]
    table = client.create_table(name, OLD, primary_key=key, buckets=2, **options)
    if key:
        table.upsert(ROWS[:1])
    else:
        table.append(ROWS[:1])
    defaults = {column: DEFAULTS[column] for column in added.names if column in DEFAULTS}
    return client.alter_table(name, add_columns=added, column_defaults=defaults)


def rows_of(table: sync.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: json.dumps(row["k"]))


def write_file(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = OLD) -> Path:
    match path.suffix:
        case ".csv":
            lines = [",".join(schema.names), *(",".join(str(row[name]) for name in schema.names) for row in rows)]
            path.write_text("\n".join(lines))
        case ".jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        case ".parquet":
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema), path)
        case _:
            table = pa.Table.from_pylist(rows, schema)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("format_", "no_key"),
    [*((format_, False) for format_ in FORMATS), ("csv", True), *(further(format_, True) for format_ in FORMATS[1:])],
)
@pytest.mark.represented_by("csv-False")
def test_load_gives_a_column_that_the_file_lacks_its_default(
    scankv: CommandLine, client: sync.Client, table: str, tmp_path: Path, format_: str, no_key: bool
) -> None:
    added = pa.schema([field for field in ADDED if field.name != "plain"])
    found = make(client, table, added, no_key=no_key)
    file = write_file(tmp_path / f"rows.{format_}", [{"k": 2, "n": 20}, {"k": 3, "n": 30}])
    scankv("load", table, str(file))
    assert rows_of(found) == [{"k": k, "n": 10 * k, **DEFAULTS} for k in (1, 2, 3)]
    if not no_key:
        scankv("replace", table, str(file))
        assert rows_of(found) == [{"k": k, "n": 10 * k, **DEFAULTS} for k in (2, 3)]
        scankv("load", table, str(file), "--mode", "overwrite", "--no-track-changes")
        assert rows_of(found) == [{"k": k, "n": 10 * k, **DEFAULTS} for k in (2, 3)]


def test_files_of_a_directory_may_lack_different_columns(
    scankv: CommandLine, client: sync.Client, table: str, tmp_path: Path
) -> None:
    found = make(client, table, pa.schema([ADDED.field("level")]))
    (tmp_path / "files").mkdir()
    write_file(tmp_path / "files" / "a.parquet", [{"k": 2, "n": 20}])
    with_level = pa.schema([*OLD, ADDED.field("level")])
    write_file(tmp_path / "files" / "b.parquet", [{"k": 3, "n": 30, "level": None}], with_level)
    for command in ("load", "replace"):
        scankv(command, table, str(tmp_path / "files"))
        assert [row["level"] for row in rows_of(found)][-2:] == [7, None]


def test_each_json_line_has_the_defaults_of_what_it_lacks(scankv: CommandLine, client: sync.Client, table: str) -> None:
    found = make(client, table)
    lines = ['{"k": 2, "n": 1}', '{"k": 3, "n": 1, "level": null}', '{"k": 4, "n": 1, "tags": null, "level": 9}']
    for command in ("load", "replace"):
        scankv(command, table, "-", "--format", "jsonl", stdin="\n".join(lines))
        assert [(row["level"], row["tags"], row["plain"]) for row in rows_of(found)[-3:]] == [
            (7, ["new"], None),
            (None, ["new"], None),
            (9, None, None),
        ]


@pytest.mark.parametrize("format_", ["csv", "jsonl", *map(further, FORMATS[2:])])
def test_a_column_without_a_default_is_missing_as_in_an_upsert(
    scankv: CommandLine, client: sync.Client, table: str, tmp_path: Path, format_: str
) -> None:
    found = make(client, table)
    file = write_file(tmp_path / f"rows.{format_}", ROWS)
    if format_ == "jsonl":  # a field of an object that is missing is null, as in a dictionary
        scankv("load", table, str(file))
        assert [row["plain"] for row in rows_of(found)] == [None, None]
        file.write_text('{"k": 5}')
        assert 'column "n": n is null, but it is NOT NULL' in scankv.fails("load", table, str(file))
        return
    for command in ("load", "replace"):
        assert 'the file has no column "plain"' in scankv.fails(command, table, str(file))
    assert len(rows_of(found)) == 1


@pytest.mark.breadth
@pytest.mark.parametrize("form", ["dict", "arrow", "pandas", further("batch"), further("polars")])
def test_every_call_gives_complete_rows_the_defaults_of_columns_that_they_lack(
    client: sync.Client, table: str, form: str
) -> None:
    arrow = pa.Table.from_pylist([{"k": 2, "n": 20}], OLD)
    data: Any = {
        "dict": [{"k": 2, "n": 20}],
        "arrow": arrow,
        "batch": arrow.to_batches()[0],
        "pandas": pd.DataFrame({"k": [2], "n": [20]}),
        "polars": pl.DataFrame({"k": [2], "n": [20]}),
    }[form]
    added = pa.schema([field for field in ADDED if field.name != "plain"])
    found, log = make(client, table, added), make(client, table + "_log", added, no_key=True)
    expected = {"k": 2, "n": 20, **DEFAULTS}

    def check() -> None:
        assert rows_of(found)[-1] == expected
        found.delete([2])

    found.upsert(data)
    check()
    with found.writer() as writer:
        writer.upsert(data)
    check()
    with client.transaction() as transaction:
        transaction.upsert(found, data)
    check()
    found.replace(data)
    assert rows_of(found) == [expected]
    log.append(data)
    assert rows_of(log)[-1] == expected


def test_no_rows_without_a_column_of_lists_are_written(client: sync.Client, table: str) -> None:
    found = make(client, table, pa.schema([ADDED.field("tags")]))
    assert found.upsert(pa.RecordBatch.from_pylist([], OLD)).rows == 0
    assert found.scan(where="k = 99").to_arrow().num_rows == 0


def test_a_write_of_named_columns_leaves_the_others_and_null_in_new_rows(client: sync.Client, table: str) -> None:
    created = client.create_table(table, pa.schema([("k", pa.int64()), ("n", pa.int64())]), primary_key=["k"])
    created.upsert(ROWS[:1])
    found = client.alter_table(table, add_columns=ADDED, column_defaults=DEFAULTS)
    found.upsert([{"k": 1, "n": 11, "level": 8}])
    found.upsert([{"k": 1, "n": 12}, {"k": 2, "n": 20}], ["k", "n"])
    assert rows_of(found) == [
        {"k": 1, "n": 12, "level": 8, "tags": ["new"], "plain": None},
        {"k": 2, "n": 20, "level": None, "tags": None, "plain": None},
    ]


PUT: dict[str, tuple[dict[str, Any], list[int]]] = {
    "last_row": ({}, [12, 8]),
    "no changelog": ({"changelog": "none"}, [12, 8]),
    "sequence column": ({"sequence_column": "n"}, [12, 8]),
}
COMPLETE_ONLY: dict[str, dict[str, Any]] = {
    "first_row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": "versioned", "version_column": "n"},
}


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("kind", "nullable"),
    [*((kind, True) for kind in PUT), ("last_row", False), *(further(kind, False) for kind in list(PUT)[1:])],
)
def test_put_leaves_columns_of_a_row_and_gives_a_new_row_their_defaults(
    scankv: CommandLine, client: sync.Client, table: str, kind: str, nullable: bool
) -> None:
    options, first = PUT[kind]
    schema = pa.schema([field.with_nullable(nullable and field.name == "n") for field in OLD])
    created = client.create_table(table, schema, primary_key=["k"], buckets=2, **options)
    created.upsert(ROWS[:1])
    found = client.alter_table(table, add_columns=ADDED, column_defaults=DEFAULTS)
    scankv("put", table, "k=1", "n=11", "level=8", "tags=", "plain=p")
    assert scankv("put", table, '{"k": 1, "n": 12}', '{"k": 2, "n": 20}', '{"k": 2, "n": 21}').text == "wrote 3 rows\n"
    row, new = rows_of(found)
    assert [row["n"], row["level"]] == first
    assert new == {"k": 2, "n": 21, **DEFAULTS, "plain": None}
    scankv("put", table, "k=2", "n=22", "level=")
    assert rows_of(found)[1]["level"] is None
    assert rows_of(found)[1]["tags"] == ["new"]
    assert '"k"' in scankv.fails("put", table, "n=5")


@pytest.mark.parametrize("kind", list(COMPLETE_ONLY))
def test_put_of_some_columns_of_an_existing_row_is_refused_if_the_engine_takes_complete_rows(
    scankv: CommandLine, client: sync.Client, table: str, kind: str
) -> None:
    found = make(client, table, **COMPLETE_ONLY[kind])
    before = rows_of(found)
    for rows in (["k=1", "n=3"], ['{"k": 2, "n": 20}', '{"k": 1, "n": 12}']):
        assert "takes only complete rows" in scankv.fails("put", table, *rows)
        assert rows_of(found) == before
    scankv("put", table, "k=2", "n=20")
    assert rows_of(found)[1] == {"k": 2, "n": 20, **DEFAULTS, "plain": None}
    assert '"k"' in (message := scankv.fails("put", table, "n=5")) or "takes only complete rows" in message


@pytest.mark.breadth
@pytest.mark.parametrize(("stored", "given"), [(0.0, "-0"), (-0.0, "0"), (float("nan"), "nan"), (float("nan"), "-nan")])
def test_put_get_and_delete_find_a_row_by_every_form_of_its_float_key(
    scankv: CommandLine, client: sync.Client, table: str, stored: float, given: str
) -> None:
    schema = pa.schema([("k", pa.float64()), ("a", pa.string()), ("x", pa.int64()), ("y", pa.int64())])
    client.create_table(table, schema, primary_key=["k", "a"], buckets=2)
    found = client.alter_table(table, column_defaults={"x": 7})
    found.upsert([{"k": stored, "a": "b", "x": 5, "y": 1}])
    scankv("put", table, f"k={given}", "a=b", "y=2")
    assert [(row["x"], row["y"]) for row in found.scan().to_pylist()] == [(5, 2)]
    assert '"y":2' in scankv("get", table, "--format", "jsonl", "--", f"{given},b").text
    deleted = scankv("delete", table, "--", f"{given},b")
    assert (deleted.text, deleted.stderr) == ("deleted 1 row\n", "")
    assert found.count() == 0


def test_put_gives_the_rows_of_a_log_table_their_defaults(scankv: CommandLine, client: sync.Client, table: str) -> None:
    found = make(client, table, no_key=True)
    scankv("put", table, '{"k": 2, "n": 20}')
    scankv("put", table, '{"k": 3, "n": 30, "level": null}')
    assert [(row["level"], row["tags"]) for row in rows_of(found)[1:]] == [(7, ["new"]), (None, ["new"])]
    assert '"n"' in scankv.fails("put", table, "k=4")


def test_a_default_may_be_a_time_that_python_does_not_have(
    scankv: CommandLine, client: sync.Client, table: str
) -> None:
    scankv("create", table, "--schema", "k int64", "--key", "k")
    defaults = {"day": "+10000-01-01", "nanos": "2020-01-01T00:00:00.000000001", "tags": '["a"]'}
    added = "day date32, nanos timestamp[ns], tags list<string>"
    scankv("alter", table, "--add-columns", added, *(f"--default={name}={text}" for name, text in defaults.items()))
    described = {each["name"]: each.get("default") for each in scankv("describe", table, "--json").json["columns"]}
    assert described == {"k": None, **defaults}
    assert "default +10000-01-01" in scankv("describe", table).text
    found = client.table(table)
    found.upsert([{"k": 1}])
    found.upsert([{"k": k, **({"tags": None} if k % 2 else {})} for k in range(2, 300)])
    found.upsert(pa.table({"k": [300]}))
    scankv("put", table, "k=301")
    scankv("load", table, "-", stdin="k\n302\n")
    scankv("load", table, "-", "--format", "jsonl", stdin='{"k": 303}')
    lines = scankv("scan", table, "--ordered", "--format", "jsonl").text.splitlines()
    expected = [{"k": k, **defaults, "tags": None if 2 <= k < 300 and k % 2 else ["a"]} for k in range(1, 304)]
    assert [json.loads(line) for line in lines] == expected


@pytest.mark.breadth
def test_puts_of_a_new_row_by_several_lose_no_column(client: sync.Client, table: str) -> None:
    columns = ("a", "b", "c")
    schema = pa.schema([("k", pa.int64()), *((name, pa.int64()) for name in columns)])
    client.create_table(table, schema, primary_key=["k"], buckets=1)
    found = client.alter_table(table, column_defaults=dict.fromkeys(columns, 0))
    together = threading.Barrier(len(columns))

    def put(name: str) -> None:
        for k in range(30):
            together.wait()
            put_rows(found, pa.record_batch({"k": [k], name: [1]}))

    with ThreadPoolExecutor(len(columns)) as pool:
        for done in [pool.submit(put, name) for name in columns]:
            done.result()
    assert rows_of(found) == [{"k": k, "a": 1, "b": 1, "c": 1} for k in sorted(range(30), key=str)]
