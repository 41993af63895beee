"""A scan with `read_path("lake", ...)` returns the rows of the live table at its instant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow as pa
import pytest
from pyarrow import parquet

from aio_client import LakeDamaged, SchemaMismatch, UsageError, connect
from scankv.lake.formats import FORMATS, open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.integration.lake.test_publish import SCORES, SMALL, create, rows_of
from tests.support.lake_readers import sorted_rows
from tests.support.streams import cancel_reading, read_between_cancellations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aio_client import Client, Scan, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio
VECTORS = PublishOptions(file_rows=50, masks=True)


async def publish_to(client: Client, name: str, uri: str, options: PublishOptions = SMALL) -> None:
    await publish(client, name, open_lake_table(uri), options)


async def change(table: Table) -> None:
    await table.upsert(rows_of(range(100, 150), score=2))
    await table.delete(list(range(300, 310)))
    await table.upsert(rows_of(range(2000, 2020), score=3, league="b"))


async def compare(table: Table, scan: Scan, uri: str, fallback: str | None = None) -> pa.Table:
    """Reads a scan with and without the lake, and returns its rows."""
    expected = await scan.to_arrow()
    async with scan.read_path("lake", uri).stream() as stream:
        batches = [rows async for rows in stream]
        if fallback is None:
            assert stream.lake_fallback is None
        else:
            assert fallback in str(stream.lake_fallback)
        assert stream.resume_token is None or fallback is not None
        assert stream.stats().rows_returned == expected.num_rows
    found = pa.Table.from_batches(batches, stream.schema)
    assert found.schema == expected.schema
    key = expected.schema.names
    assert sorted_rows(found, key) == sorted_rows(expected, key)
    return found


@pytest.mark.parametrize("changelog", ["full", "upsert"])
@pytest.mark.parametrize("options", [SMALL, VECTORS], ids=["files", "vectors"])
@pytest.mark.represented_by("files-full")
async def test_changes_after_the_published_version_are_read_from_the_server(
    client: Client, name: str, uri: str, options: PublishOptions, changelog: str
) -> None:
    table = await create(client, name, changelog=changelog)
    await publish_to(client, name, uri, options)
    await compare(table, table.scan(), uri)
    await change(table)
    assert (await compare(table, table.scan(), uri)).num_rows == 1010
    await publish_to(client, name, uri, options)
    await table.upsert(rows_of(range(140, 160), score=9))
    await table.delete([0, 149])
    await compare(table, table.scan(), uri)


async def test_reads_that_are_cancelled_lose_no_row_and_return_none_twice(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri, VECTORS)
    await change(table)
    stream = table.scan().read_path("lake", uri).with_chunk(rows=20).stream()
    batches, cancelled = await read_between_cancellations(stream)
    assert cancelled > 50
    assert stream.lake_fallback is None
    assert stream.stats().rows_returned == 1010
    expected = await table.scan().to_arrow()
    assert sorted_rows(pa.Table.from_batches(batches), ["player"]) == sorted_rows(expected, ["player"])


async def test_a_stream_that_is_closed_or_dropped_while_it_is_planned_leaves_no_task(
    client: Client, name: str, uri: str
) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri)
    before = asyncio.all_tasks()
    stream = table.scan().read_path("lake", uri).stream()
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    with pytest.raises(UsageError, match="the scan was closed while it was being read"):
        await reading
    stream = table.scan().read_path("lake", uri).stream()
    await cancel_reading(stream)
    left = asyncio.all_tasks() - before
    assert left
    del stream
    await asyncio.wait_for(asyncio.wait(left), 60)


@pytest.mark.parametrize("format_", FORMATS)
async def test_published_tables_of_every_format_are_read(client: Client, name: str, uri: str, format_: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("small", pa.uint16()), ("at", pa.timestamp("s", "UTC"))])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    values = {"id": range(100), "small": [65_535] * 100, "at": [7] * 100}
    await table.upsert(pa.table(values, schema))
    await publish(client, name, open_lake_table(uri, format_), SMALL)
    await table.upsert([{"id": 1, "small": 1, "at": None}])
    await table.delete([2])
    await compare(table, table.scan(), uri)
    await client.alter_table(name, rename_columns={"small": "points"}, add_columns=pa.schema([("new", pa.string())]))
    table = await client.table(name)
    await compare(table, table.scan(["new", "points", "id"]), uri)
    assert (await table.scan().read_path("lake", uri).explain()).read_path == "lake"


async def test_columns_predicates_buckets_and_keys_are_those_of_the_scan(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri, VECTORS)
    await change(table)
    await publish_to(client, name, uri, VECTORS)
    await table.upsert(rows_of(range(120, 170), score=5))
    for scan in (
        table.scan(["score", "player"]),
        table.scan(["league"], where="score > 1"),
        table.scan(["player"], where="score in (2, 5) and league = 'a'"),
        table.scan().with_buckets(1),
        table.scan().key_range(110, 145),
        table.scan(["score"]).key_range(110, 1_000_000).where("player < 2010"),
        table.scan().with_chunk(rows=7),
    ):
        await compare(table, scan, uri)
    assert (await table.scan([]).read_path("lake", uri).to_arrow()).num_rows == 1010
    assert (await table.scan(limit=30).read_path("lake", uri).to_arrow()).num_rows == 30


@pytest.mark.breadth
async def test_polars_duckdb_and_blocking_code_read_the_lake(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri)
    await change(table)
    scan = table.scan().read_path("lake", uri)
    total = sum((await table.scan(["score"]).to_arrow())["score"].to_pylist())
    frame = await scan.to_polars(lazy=True)
    found = await asyncio.to_thread(frame.filter(polars.col("league") == "b").select("score").collect)
    assert found["score"].to_list() == [3] * 20
    assert (await scan.to_polars())["score"].sum() == total
    con = duckdb.connect()
    await scan.to_duckdb(con, "scores")
    assert con.sql("select sum(score), count(*) from scores").fetchall() == [(total, 1010)]
    with scan.stream_sync() as stream:
        assert stream.lake_fallback is None  # type: ignore[attr-defined]
        assert sum(rows.num_rows for rows in stream) == 1010


@pytest.mark.breadth
async def test_a_read_of_a_snapshot_is_as_of_the_snapshot(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri)
    await change(table)
    async with table.snapshot() as pinned:
        await table.upsert(rows_of(range(500), score=100))
        await compare(table, table.scan().as_of(pinned), uri)
        async with table.scan().as_of(pinned).read_path("lake", uri).stream() as stream:
            assert stream.log_offsets == pinned.log_offsets
        await publish_to(client, name, uri)
        await compare(
            table, table.scan().as_of(pinned), uri, "the published version is newer than the instant of the scan"
        )


async def test_a_snapshot_with_other_columns_under_the_same_names_is_read_from_the_server(
    client: Client, name: str, uri: str
) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri)
    async with table.snapshot() as pinned:
        await client.alter_table(name, drop_columns=["score"])
        table = await client.alter_table(name, add_columns=pa.schema([("score", pa.int64())]))
        await compare(
            table,
            table.scan(["player", "score"]).as_of(pinned),
            uri,
            "the columns of the table were changed after the instant of the scan",
        )
    await compare(table, table.scan(), uri)


async def test_explain_says_what_is_read_from_where(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    scan = table.scan().read_path("lake", uri)
    explanation = await scan.explain()
    assert explanation.read_path == "rocksdb"
    assert f"the lake is not used, because nothing was published in {uri}" in explanation.read_path_reason
    await publish_to(client, name, uri)
    await change(table)
    explanation = await scan.explain()
    assert explanation.read_path == "lake"
    assert f"version 0 in {uri}, which shows" in explanation.read_path_reason
    assert "without 80 keys changed since, and 70 rows from the server" in str(explanation)


@pytest.mark.breadth
async def test_the_server_alone_is_read_where_the_lake_cannot_be_used(
    client: Client, name: str, uri: str, tmp_path: Path
) -> None:
    table = await create(client, name)
    await compare(table, table.scan(), uri, f"nothing was published in {uri}")
    await publish_to(client, name, uri)
    for scan in (table.scan().ordered(), table.scan().reverse()):
        await compare(table, scan, uri, "the server sorts the rows")
    other = await create(client, f"{name}2")
    await compare(other, other.scan(), uri, f"{uri} was published from table {name}")
    await table.delete(where="player < 10", track_changes=False)
    await falls_back(table, uri, "the changes since the table was published are not known: ")
    await publish_to(client, name, uri)
    await compare(table, table.scan(), uri)
    for value in range(70):
        await table.upsert(rows_of(range(1000), score=value))
    await falls_back(table, uri, "too much has changed since the table was published: more than 65,536 times")
    await client.drop_table(name)
    table = await create(client, name)
    why = "the table was restored, or dropped and created again, after it was published"
    await compare(table, table.scan(), uri, why)
    damage_log(uri)
    await falls_back(table, uri, f"the Delta table in {uri} cannot be read")
    parquet.write_table(rows_of(range(1)), tmp_path / "file")
    await falls_back(table, str(tmp_path / "file" / "published"), "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ttl_seconds": 3600}, "rows of the table expire"),
        ({"changelog": "none"}, 'the changelog of the table does not have its rows (changelog="none")'),
    ],
)
async def test_tables_whose_changes_do_not_say_which_rows_they_have_are_read_from_the_server(
    client: Client, name: str, uri: str, options: dict[str, Any], reason: str
) -> None:
    table = await client.create_table(name, SCORES, primary_key=["player"], **options)
    await table.upsert(rows_of(range(100)))
    await publish_to(client, name, uri)
    if "changelog" in options:
        reason = "the table had no changelog when version 0 in "
    await compare(table, table.scan(), uri, reason)


async def test_a_table_without_a_key_is_read_from_the_server(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCORES, primary_key=[])
    await table.append(rows_of(range(100)))
    await publish_to(client, name, uri)
    await compare(table, table.scan(), uri, "the table has no primary key")


async def test_a_file_that_is_damaged_or_gone_is_an_error_and_no_short_answer(
    client: Client, name: str, uri: str
) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri)
    paths = data_files(uri)
    shorter = pa.table({"player": [1], "score": [1], "league": ["a"]}, SCORES)
    parquet.write_table(shorter, paths[3])
    with pytest.raises(LakeDamaged, match="it has 1 row of "):
        await table.scan().read_path("lake", uri).to_arrow()
    paths[3].write_bytes(b"PAR1")
    with pytest.raises(LakeDamaged, match="cannot be used"):
        await table.scan().read_path("lake", uri).to_arrow()
    paths[3].unlink()
    with pytest.raises(LakeDamaged, match="it does not exist; publish with --full"):
        await table.scan().read_path("lake", uri).to_arrow()
    await publish_to(client, name, uri, replace(SMALL, is_full=True))
    await compare(table, table.scan(), uri)


async def test_files_without_a_key_that_can_match_are_not_read(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri)
    version = open_lake_table(uri).load()
    assert version is not None
    first, *others = sorted(version.files, key=lambda file: (file.bucket, file.first_key))
    (kept,) = parquet.read_table(Path(uri, first.path)).slice(0, 1).to_pylist()
    remove_files(uri, [file.path for file in others])
    player = kept["player"]
    for where in (f"player = {player}", f"player in ({player}, {player}) and score < 99"):
        found = await table.scan(where=where).read_path("lake", uri).to_pylist()
        assert [row["player"] for row in found] == [player]
    with pytest.raises(LakeDamaged, match="it does not exist"):
        await table.scan(where=f"player >= {player}").read_path("lake", uri).to_arrow()


async def test_a_changed_bit_in_a_file_is_an_error_and_no_wrong_answer(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_to(client, name, uri)
    path = data_files(uri)[3]
    before, rows = path.read_bytes(), await table.scan().ordered().to_arrow()
    pages_bytes = len(before) - parquet.read_metadata(path).serialized_size - 8
    errors = []
    for place in range(4, pages_bytes, pages_bytes // 20):
        content = bytearray(before)
        content[place] ^= 4
        path.write_bytes(content)
        try:
            # Some bits are those of statistics, which are not read.
            assert (await table.scan().read_path("lake", uri).to_arrow()).sort_by("player") == rows
        except LakeDamaged as error:
            errors.append(error.message)
    assert len(errors) > 10
    assert all(f"{path.name} of the table in {uri} cannot be used" in each for each in errors)


async def test_a_read_survives_the_death_of_the_server(server: ServerProcess, uri: str) -> None:
    async with connect(server.url) as client:
        table = await create(client, "lake.dies")
        await publish_to(client, "lake.dies", uri)
        await change(table)
        expected = await table.scan().to_arrow()
        async with table.scan().read_path("lake", uri).stream() as stream:
            server.kill()
            found = pa.Table.from_batches([rows async for rows in stream], stream.schema)
        assert sorted_rows(found, ["player"]) == sorted_rows(expected, ["player"])


async def test_a_location_is_needed_for_the_lake_alone(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    no_locations: list[Any] = [None, "", Path(uri)]
    for lake in no_locations:
        with pytest.raises(UsageError, match="needs the location of the published table as text, such as"):
            table.scan().read_path("lake", lake)
    for lake in [uri, *no_locations[1:]]:
        with pytest.raises(UsageError, match='lake is for read_path "lake" only, not for "auto"'):
            table.scan().read_path("auto", lake)
    with pytest.raises(UsageError, match="is no location for a table"):
        await table.scan().read_path("lake", "nonsense://x").to_arrow()
    with pytest.raises(SchemaMismatch):
        await table.scan(["nothing"]).read_path("lake", uri).to_arrow()


def remove_files(uri: str, paths: Iterable[str]) -> None:
    for path in paths:
        Path(uri, path).unlink()


def data_files(uri: str) -> list[Path]:
    return sorted(Path(uri).glob("*.parquet"))


def damage_log(uri: str) -> None:
    for path in Path(uri, "_delta_log").glob("*.json"):
        path.write_bytes(b"{")


async def falls_back(table: Table, uri: str, reason: str) -> None:
    """Checks that a scan of the lake returns all rows, and that the server was read alone for a reason."""
    expected = await table.scan().to_arrow()
    async with table.scan().read_path("lake", uri).stream() as stream:
        found = pa.Table.from_batches([rows async for rows in stream], stream.schema)
        assert stream.lake_fallback is not None
        assert stream.lake_fallback.startswith(reason)
    assert found == expected
