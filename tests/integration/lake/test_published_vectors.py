"""With deletion vectors, changed rows are masked where they are, and only they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import live_rows, read_delta, read_with_polars, sorted_rows

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table
    from scankv.lake.publisher import PublishReport

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema(
    [("id", pa.uint64()), ("at", pa.timestamp("s", "Europe/Berlin")), ("value", pa.int64()), ("small", pa.float16())]
)
VECTORS = PublishOptions(file_rows=5000, masks=True)


def rows_of(ids: range, value: int = 1) -> pa.Table:
    count = len(ids)
    columns = [pa.array(ids, pa.uint64()), pa.array([7] * count).cast(pa.timestamp("s", "Europe/Berlin"))]
    return pa.table([*columns, pa.array([value] * count), pa.array([0.5] * count, pa.float16())], schema=SCHEMA)


async def create(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["id", "at"], buckets=2)
    await table.upsert(rows_of(range(20_000)))
    return table


async def publish_and_compare(client: Client, name: str, uri: str, options: PublishOptions = VECTORS) -> PublishReport:
    report = await publish(client, name, open_lake_table(uri), options)
    live = await live_rows(await client.table(name))
    expected = [(int(row["id"]), row["value"], row["small"]) for row in live]
    for found in (read_delta(uri), read_with_polars(uri)):
        assert [(int(row["id"]), row["value"], row["small"]) for row in sorted_rows(found, ["id"])] == expected
    return report


@pytest.mark.breadth
async def test_only_changed_rows_are_written(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    first = await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(0, 20_000, 100), value=2))
    await table.delete(rows_of(range(50, 60)).select(["id", "at"]))
    await table.upsert(rows_of(range(30_000, 30_005)))
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.rows, report.files_removed) == ("changes", 205, 0)
    assert report.files_kept == first.files_added
    assert "deletionVectors" in (deltalake.DeltaTable(uri).protocol().reader_features or ())


@pytest.mark.soak
async def test_rows_are_masked_again_and_again(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    for value in range(2, 16):
        await table.upsert(rows_of(range(value * 10, value * 10 + 500), value=value))
        report = await publish_and_compare(client, name, uri)
        assert report.mode == "changes"
    # Files that are small or mostly masked are written again.
    assert len(deltalake.DeltaTable(uri).file_uris()) < 20


async def test_a_file_without_rows_goes(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.delete(where="id < 19000")
    report = await publish_and_compare(client, name, uri)
    assert report.files_removed >= 2
    await table.delete(where="id >= 0")
    assert (await publish_and_compare(client, name, uri)).files_kept == 0


@pytest.mark.breadth
async def test_long_vectors_are_in_files_that_expire(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    for start in range(3):
        await table.upsert(rows_of(range(start, 20_000, 17), value=2))
        await publish_and_compare(client, name, uri)
    vectors = tmp_path / "published/scankv"
    assert len(list(vectors.iterdir())) == 3
    assert open_lake_table(uri, keep_seconds=3600).expire(orphan_seconds=0) == 0
    assert len(read_delta(uri, version=2)) == 20_000
    open_lake_table(uri, keep_seconds=0).expire(orphan_seconds=0)
    assert len(list(vectors.iterdir())) == 1
    assert (await publish_and_compare(client, name, uri)).mode == "unchanged"


@pytest.mark.soak
async def test_vectors_survive_checkpoints(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await create(client, name)
    for value in range(24):
        await publish_and_compare(client, name, uri)
        await table.upsert(rows_of(range(value * 500, value * 500 + 300, 3), value=value + 2))
    log = tmp_path / "published/_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    for version in range(int(checkpoint.name[:20]) + 1):
        (log / f"{version:020}.json").unlink()
    assert (await publish_and_compare(client, name, uri)).mode == "changes"


@pytest.mark.breadth
async def test_files_can_be_replaced_after_rows_were_masked(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(0, 20_000, 100), value=2))
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(5), value=3))
    report = await publish_and_compare(client, name, uri, PublishOptions(file_rows=5000))
    assert report.mode == "changes"
    await table.delete(where="id < 100", track_changes=False)
    assert (await publish_and_compare(client, name, uri)).mode == "changes"
