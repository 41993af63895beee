"""`snapshots export` and `load`: files that other programs read, with metadata about their rows, complete or absent."""

from __future__ import annotations

import json
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import agg, sync
from scankv.formats.origin import Origin
from scankv.formats.parquet_types import parquet_schema
from scankv.model.errors import UsageError
from scankv.model.types.types import parse_schema
from tests.support.command_line import CommandLine
from tests.support.definitions import RandomDefinition, definitions
from tests.support.examples import examples
from tests.unit.cli.test_text import COLUMNS

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

FORMATS = ["parquet", "arrow"]
# `hundreds` has a negative scale, which Parquet does not support.
TYPES = {name: column for name, column in COLUMNS.items() if name != "hundreds"}


@pytest.fixture
def typed(scankv: CommandLine, table: str, tmp_path: Path) -> str:
    """Makes a table with all types, three rows and two buckets."""
    rows = pa.table({"id": [0, 1, 2], "part": ["a", "b", None], **TYPES})
    with pa.OSFile(str(tmp_path / "typed.arrow"), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    scankv("load", table, str(tmp_path / "typed.arrow"), "--create", "--key", "id", "--buckets", "2")
    return table


def read(path: Path) -> pa.Table:
    """Returns what plain pyarrow reads from a file."""
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def metadata_of(path: Path) -> dict[str, Any]:
    """Returns our entries in the metadata of a file."""
    entries = {name.decode(): text for name, text in (read(path).schema.metadata or {}).items()}
    return {
        name.removeprefix("scankv."): json.loads(text) for name, text in entries.items() if name.startswith("scankv.")
    }


def described(scankv: CommandLine, table: str) -> dict[str, Any]:
    """Returns the complete definition of a table, without its name."""
    return {**tomllib.loads(scankv("describe", table, "--toml").text), "table": ""}


def rows_of(scankv: CommandLine, table: str) -> pa.Table:
    return pa.ipc.open_stream(scankv("scan", table, "--format", "arrow").stdout).read_all()


@pytest.mark.parametrize("files", [None, 3])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.represented_by("parquet-None")
def test_a_table_with_all_types_comes_back_equal(
    scankv: CommandLine, typed: str, tmp_path: Path, format_: str, files: int | None
) -> None:
    path = tmp_path / ("all" if files else f"all.{format_}")
    options = ["--files", str(files), "--format", format_] if files else []
    text = scankv("snapshots", "export", typed, str(path), *options).text
    assert text.startswith(f"exported 3 rows of {typed} as of 20")
    if files:
        assert sorted(each.name for each in path.iterdir()) == [f"part-000{i}-of-0003.{format_}" for i in range(3)]
    copy = typed + "_copy"
    assert "loaded 3 rows" in scankv("load", copy, str(path), "--create").text
    assert described(scankv, copy) == described(scankv, typed)
    assert rows_of(scankv, copy).equals(rows_of(scankv, typed))
    assert scankv("snapshots", "list", typed, "--json").json == [], "a lease is left"


@pytest.mark.breadth
@pytest.mark.parametrize("format_", FORMATS)
def test_the_metadata_say_which_rows_these_are(scankv: CommandLine, scores: str, tmp_path: Path, format_: str) -> None:
    snapshot = scankv("snapshots", "create", scores).text.strip()
    (pinned,) = scankv("snapshots", "list", scores, "--json").json
    scankv("put", scores, "player=dan", "score=1")
    path = tmp_path / f"scores.{format_}"
    scankv("snapshots", "export", snapshot, str(path), "--columns", "score", "--where", "score > 27")
    assert read(path).to_pydict() == {"score": [31]}
    assert metadata_of(path) == {
        "table": scores,
        "schema_id": 1,
        "definition": {
            "table": scores,
            "schema": "player string not null, score int64",
            "key": ["player"],
            "buckets": 2,
        },
        "table_incarnation": pinned["table_incarnation"],
        "log_offsets": pinned["log_offsets"],
        "view_time": pinned["taken_at"],
        "where": "score > 27",
    }
    (left,) = scankv("snapshots", "list", scores, "--json").json
    assert left["id"] == snapshot, "it is not ours to release"


def test_others_read_what_was_exported(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    path, parts = tmp_path / "scores.parquet", tmp_path / "parts"
    scankv("snapshots", "export", scores, str(path))
    scankv("snapshots", "export", scores, str(parts), "--files", "2")
    expected, con = [("ann", 31), ("bob", 27), ("cem", None)], duckdb.connect()
    for found in (str(path), str(parts / "*.parquet")):
        rows = con.execute(f"select player, score from read_parquet('{found}') order by player").fetchall()
        assert rows == expected
        assert pl.read_parquet(found).sort("player").rows() == expected
    assert sorted(pa.parquet.read_table(parts)["player"].to_pylist()) == ["ann", "bob", "cem"]
    con.execute(f"select value from parquet_kv_metadata('{path}') where key = 'scankv.table'")
    ((origin,),) = con.fetchall()
    assert json.loads(origin) == scores
    scankv("snapshots", "export", scores, str(tmp_path / "scores.arrow"))
    assert pl.read_ipc(tmp_path / "scores.arrow").sort("player").rows() == expected


def test_a_column_that_parquet_cannot_hold_is_refused_before_anything_is_written(
    scankv: CommandLine, table: str, tmp_path: Path
) -> None:
    scankv("create", table, "--schema", "id int64, hundreds decimal128(10, -2)", "--key", "id")
    scankv("put", table, "id=1", "hundreds=300")
    path = tmp_path / "t.parquet"
    message = scankv.fails("snapshots", "export", table, str(path))
    assert 'column "hundreds": Parquet cannot hold decimal128(10, -2)' in message
    assert list(tmp_path.iterdir()) == []
    scankv("snapshots", "export", table, str(path), "--columns", "id")
    scankv("snapshots", "export", table, str(tmp_path / "t.arrow"))
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
        message = scankv.fails("snapshots", "export", table, str(tmp_path / "out"), *options)
        assert 'column "t": Parquet has no such value: a timestamp is beyond the range of milliseconds' in message
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.breadth
@pytest.mark.parametrize("files", [[], ["--files", "2"]], ids=["file", "directory"])
def test_what_is_there_is_only_replaced_when_asked_for(
    scankv: CommandLine, scores: str, tmp_path: Path, files: list[str]
) -> None:
    path = tmp_path / "scores"
    export = ["snapshots", "export", scores, str(path), *files]
    scankv(*export)
    scankv("put", scores, "player=dan", "score=1")
    assert "already exists: choose another name, or add --overwrite" in scankv.fails(*export)
    assert pa.parquet.read_table(path).num_rows == 3
    scankv(*export, "--overwrite")
    assert pa.parquet.read_table(path).num_rows == 4
    assert [each.name for each in tmp_path.iterdir()] == ["scores"]
    other = [] if files else ["--files", "2"]
    assert "choose another name" in scankv.fails("snapshots", "export", scores, str(path), *other, "--overwrite")
    if files:
        (path / "notes.txt").write_text("of somebody else")
        message = scankv.fails(*export, "--overwrite")
        assert "has files that are not part of an export, such as notes.txt" in message
        assert (path / "notes.txt").read_text() == "of somebody else"


def test_what_cannot_be_exported_is_refused(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    message = scankv.fails("snapshots", "export", "abc", path)
    assert "neither a table, as database.table, nor the id of a snapshot" in message
    assert f'"{scores}x"' in scankv.fails("snapshots", "export", scores + "x", path)
    assert '"scor"' in scankv.fails("snapshots", "export", scores, path, "--columns", "scor")
    assert "scankv scan" in scankv.fails("snapshots", "export", scores, str(tmp_path / "x.csv"))
    assert "is not a directory" in scankv.fails("snapshots", "export", scores, str(tmp_path / "none" / "x.parquet"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.breadth
@examples(6)
@given(made=definitions(), format_=st.sampled_from(FORMATS))
def test_an_exported_table_is_created_again_with_its_whole_definition(
    shared_server: ServerProcess, made: RandomDefinition, format_: str
) -> None:
    scankv = CommandLine(shared_server.url)
    with sync.connect(shared_server.url) as client, tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"table.{format_}")
        made.create(client, "cli.exported")
        try:
            if format_ == "parquet":
                with suppress(UsageError):
                    parquet_schema(made.schema)
                    # Otherwise the table has a type that Parquet does not support.
                    scankv("snapshots", "export", "cli.exported", str(path))
            else:
                scankv("snapshots", "export", "cli.exported", str(path))
            if path.exists():
                scankv("load", "cli.restored", str(path), "--create")
                assert described(scankv, "cli.restored") == described(scankv, "cli.exported")
        finally:
            for table in client.tables():
                if table.name in ("cli.exported", "cli.restored"):
                    client.drop_table(table.name)


AGGREGATE = """
table = "TABLE"
schema = "route string, leg int64, flights int64, delay int64, late double, worst int32"
key = ["route", "leg"]
bucket_key = ["route"]
buckets = 3
indexes = ["worst", ["delay", "flights"]]
options = { merge_engine = "aggregate", compression = "zstd" }
aggregators = { flights = "count", delay = "sum", late = "avg", worst = { function = "max", ignore_retract = true } }
"""


@pytest.fixture
def routes(scankv: CommandLine, table: str, tmp_path: Path) -> str:
    """Makes a table with counts and sums, with seven rows merged into two."""
    (tmp_path / "routes.toml").write_text(AGGREGATE.replace("TABLE", table))
    scankv("create", "-f", str(tmp_path / "routes.toml"))
    rows = [f"{route},1,1,{n},{n}.5,{n}\n" for n in range(7) for route in ("a", "b")[: 1 + n // 3]]
    scankv("load", table, "-", stdin="route,leg,flights,delay,late,worst\n" + "".join(rows))
    return table


@pytest.mark.breadth
def test_merged_rows_come_back_as_they_were_and_merge_on(scankv: CommandLine, routes: str, tmp_path: Path) -> None:
    path, copy = str(tmp_path / "routes.parquet"), routes + "_copy"
    scankv("snapshots", "export", routes, path)
    finished = scankv("load", copy, path, "--create")
    assert described(scankv, copy) == described(scankv, routes)
    assert rows_of(scankv, copy).equals(rows_of(scankv, routes))
    assert finished.stderr.splitlines() == [
        'unlike the exported table: column "late": an export does not contain the inputs of an avg; each exported '
        "value counts as one input"
    ]
    for each in (routes, copy):
        scankv("put", each, "route=a", "leg=1", "flights=1", "delay=1", "late=0", "worst=99")
    exact = ["route", "leg", "flights", "delay", "worst"]
    assert rows_of(scankv, copy).select(exact).equals(rows_of(scankv, routes).select(exact))
    scankv("load", copy, path, "--mode", "overwrite")
    scankv("load", routes, path, "--mode", "overwrite")
    assert rows_of(scankv, copy).equals(rows_of(scankv, routes))
    before = rows_of(scankv, copy).column("delay").to_pylist()
    scankv("load", copy, path)
    assert rows_of(scankv, copy).column("delay").to_pylist() == [2 * delay for delay in before]


def test_options_of_load_replace_what_a_file_says_and_are_reported(
    scankv: CommandLine, routes: str, tmp_path: Path
) -> None:
    path, copy = str(tmp_path / "routes.parquet"), routes + "_copy"
    scankv("snapshots", "export", routes, path)
    same = ["--key", "route,leg", "--buckets", "3", "--set", "compression=zstd"]
    assert "instead of" not in scankv("load", copy, path, "--create", *same).stderr
    assert described(scankv, copy) == described(scankv, routes)
    other = ["--key", "leg,route", "--buckets", "2", "--set", "compression=none", "--set", "log_retention_bytes=5"]
    changed = copy + "2"
    assert [line.split(": ")[1] for line in scankv("load", changed, path, "--create", *other).stderr.splitlines()][
        :5
    ] == [
        "key leg,route instead of route,leg",
        "bucket key leg,route instead of route",
        "buckets 2 instead of 3",
        "compression none instead of zstd",
        "log_retention_bytes 5 instead of the default",
    ]
    found = described(scankv, changed)
    assert (found["key"], found["buckets"], found["options"]["compression"]) == (["leg", "route"], 2, "none")
    assert (found["aggregators"], found["indexes"]) == tuple(
        described(scankv, routes)[n] for n in ("aggregators", "indexes")
    )
    third = copy + "3"
    message = scankv.fails("load", third, path, "--create", "--set", "merge_engine=last_row")
    assert 'aggregators is only for merge_engine "aggregate"' in message
    message = scankv.fails("load", third, path, "--create", "--ignore-definition")
    assert "--key" in message
    scankv("load", third, path, "--create", "--ignore-definition", "--key", "leg,route")
    assert described(scankv, third).keys() == {"table", "schema", "key", "buckets"}
    assert "add --create" in scankv.fails("load", third, path, "--ignore-definition")
    assert "give --buckets" in scankv.fails("load", third + "4", path, "--create", "--set", "buckets=3")


def test_what_belongs_to_columns_that_were_not_exported_is_left_out_and_reported(
    scankv: CommandLine, routes: str, tmp_path: Path
) -> None:
    path, copy = str(tmp_path / "routes.parquet"), routes + "_copy"
    scankv("snapshots", "export", routes, path, "--columns", "leg,route,worst,flights")
    finished = scankv("load", copy, path, "--create")
    with sync.connect(scankv.url) as client:
        left_out = [
            name for name in client.table(routes).schema.names if name not in ("leg", "route", "worst", "flights")
        ]
    assert finished.stderr.splitlines() == [
        *(f'unlike the exported table: no column "{name}": the file does not have it' for name in left_out),
        "unlike the exported table: no index on (delay, flights): the file does not have all of these columns",
    ]
    found = described(scankv, copy)
    assert (found["indexes"], found["aggregators"].keys()) == ([["worst"]], {"flights", "worst"})
    scankv("snapshots", "export", routes, path, "--columns", "leg,worst", "--overwrite")
    message = scankv.fails("load", copy + "2", path, "--create")
    assert 'the file does not have the column "route"' in message
    assert scankv.fails("describe", copy + "2")


def test_a_file_of_a_snapshot_has_the_definition_of_then(scankv: CommandLine, routes: str, tmp_path: Path) -> None:
    path = str(tmp_path / "routes.arrow")
    snapshot, before = scankv("snapshots", "create", routes).text.strip(), described(scankv, routes)
    with sync.connect(scankv.url) as client:
        added = pa.schema([("added", pa.int64())])
        client.alter_table(routes, add_columns=added, add_aggregators={"added": agg.sum()}, add_indexes=["added"])
    scankv("snapshots", "export", snapshot, path)
    scankv("load", routes + "_copy", path, "--create")
    assert described(scankv, routes + "_copy") == before


def test_a_file_that_an_earlier_version_exported_keeps_its_aggregators(
    scankv: CommandLine, routes: str, tmp_path: Path
) -> None:
    path = tmp_path / "routes.parquet"
    scankv("snapshots", "export", routes, str(path))
    rows = read(path)
    definition = rows.schema.metadata[b"scankv.definition"]
    assert definition.count(b'"aggregators"') == 1
    earlier = {**rows.schema.metadata, b"scankv.definition": definition.replace(b'"aggregators"', b'"aggregates"')}
    pa.parquet.write_table(rows.replace_schema_metadata(earlier), path)
    scankv("load", routes + "_copy", str(path), "--create")
    assert described(scankv, routes + "_copy") == described(scankv, routes)


@pytest.mark.breadth
@pytest.mark.parametrize(
    "definition",
    [
        "5",
        "{",
        "[" * 100_000,
        '{"table": "a.b"}',
        '{"table": "a.b", "schema": "k int64", "key": ["player"], "buckets": "x"}',
    ],
)
def test_metadata_that_were_changed_are_refused(
    scankv: CommandLine, scores: str, tmp_path: Path, definition: str
) -> None:
    path = tmp_path / "scores.parquet"
    scankv("snapshots", "export", scores, str(path))
    rows = pa.parquet.read_table(path)
    changed = {**rows.schema.metadata, b"scankv.definition": definition.encode()}
    pa.parquet.write_table(rows.replace_schema_metadata(changed), path)
    message = scankv.fails("load", scores + "_copy", str(path), "--create", "--key", "player")
    assert "metadata" in message or "buckets" in message
    assert len(message) < 400
    scankv("load", scores + "_copy", str(path), "--create", "--ignore-definition", "--key", "player")


def test_a_directory_with_anything_else_or_other_columns_is_not_loaded(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    assert "No such file" in scankv.fails("load", scores, str(parts))
    parts.mkdir()
    assert "the directory has no files" in scankv.fails("load", scores, str(parts))
    pa.parquet.write_table(pa.table({"player": ["dan"], "score": [1]}), parts / "a.parquet")
    (parts / "_SUCCESS").write_text("")
    (parts / "b.csv").write_text("player,score\neve,2\n")
    assert "has the file b.csv" in scankv.fails("load", scores, str(parts))
    (parts / "b.csv").unlink()
    pa.parquet.write_table(pa.table({"player": ["eve"], "points": [1]}), parts / "c.parquet")
    assert 'c.parquet: the table has no column "points"' in scankv.fails("load", scores, str(parts))
    assert scankv("count", scores).text == "3\n"
    (parts / "c.parquet").unlink()
    rows = pa.table({"player": ["eve"], "score": [2]})
    pa.feather.write_feather(rows, parts / "c.feather")
    assert "loaded 2 rows" in scankv("load", scores, str(parts)).text
    assert scankv("count", scores).text == "5\n"


def test_a_directory_with_files_of_two_tables_is_not_created_as_one(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    copy, path = scores + "_copy", str(tmp_path / "parts")
    scankv("snapshots", "export", scores, path, "--files", "2")
    scankv("load", copy, path, "--create", "--set", "log_retention_seconds=60")
    scankv("snapshots", "export", copy, str(tmp_path / "parts" / "z.parquet"))
    assert "was exported from another table" in scankv.fails("load", scores + "_both", path, "--create")
    assert scankv.fails("describe", scores + "_both")
    scankv("load", scores + "_both", path, "--create", "--ignore-definition", "--key", "player")


def test_a_file_whose_columns_were_changed_since_keeps_its_own_types() -> None:
    columns = "id int64, at timestamp[s], deep list<item: time32[s]>, gone string"
    known = parse_schema(columns)
    origin = Origin(
        table="a.b",
        schema_id=1,
        definition={"table": "a.b", "schema": columns, "key": ["id"], "buckets": 1},
        table_incarnation="i",
        log_offsets={"0": 7},
        view_time="2026-01-01T00:00:00+00:00",
    )
    given = parquet_schema(known)
    assert Origin.of(given.with_metadata(origin.metadata())) == origin
    assert origin.table_file(given).schema.equals(known)
    changed = pa.schema([given.field("at"), pa.field("id", pa.string()), pa.field("new", pa.int8())])
    assert origin.table_file(changed).schema.types == [pa.timestamp("s"), pa.string(), pa.int8()]
    assert Origin.of(pa.schema([], {"table": "of somebody else"})) is None
