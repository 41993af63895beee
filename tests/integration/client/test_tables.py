"""Tables: created, described, altered, listed, dropped."""

from __future__ import annotations

import pyarrow as pa
import pytest

from aio_client import (
    Client,
    InvalidOption,
    InvalidRequest,
    SchemaMismatch,
    TableExists,
    TableNotFound,
)

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("day", pa.date32()), ("player", pa.large_string()), ("score", pa.int64())])


async def test_a_created_table_describes_itself(client: Client, name: str) -> None:
    created = await client.create_table(
        name, SCHEMA, primary_key=["player", "day"], bucket_key=["player"], buckets=3, compression="zstd"
    )
    for table in (created, await client.table(name)):
        assert table.name == name
        assert table.primary_key == ["player", "day"]
        assert table.bucket_key == ["player"]
        assert table.buckets == 3
        assert table.options == {"compression": "zstd"}
        assert table.schema == pa.schema(
            [
                pa.field("day", pa.date32(), nullable=False),
                pa.field("player", pa.string(), nullable=False),
                ("score", pa.int64()),
            ]
        )


async def test_a_table_has_defaults(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key="player")
    assert (table.primary_key, table.bucket_key, table.buckets, table.options) == (["player"], ["player"], 4, {})


async def test_an_option_may_be_given_as_a_python_value(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["player"], row_deduplicate=False)
    assert table.options == {"row_deduplicate": "false"}


async def test_tables_are_listed_by_name(client: Client, name: str) -> None:
    for suffix in ("_b", "_a"):
        await client.create_table(name + suffix, SCHEMA, primary_key=["player"])
    names = [table.name for table in await client.tables() if table.name.startswith(name)]
    assert names == [f"{name}_a", f"{name}_b"]


async def test_a_dropped_table_is_gone(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["player"])
    await client.drop_table(name)
    with pytest.raises(TableNotFound):
        await client.table(name)
    with pytest.raises(TableNotFound):
        await table.count()
    with pytest.raises(TableNotFound):
        await table.scan().to_arrow()


@pytest.mark.one_process
async def test_a_table_that_does_not_exist_is_named_with_the_near_ones(client: Client, name: str) -> None:
    await client.create_table(name, SCHEMA, primary_key=["player"])
    with pytest.raises(TableNotFound, match=f'did you mean "{name}"'):
        await client.table(name + "s")


async def test_a_name_that_is_taken_is_refused(client: Client, name: str) -> None:
    await client.create_table(name, SCHEMA, primary_key=["player"])
    with pytest.raises(TableExists, match=name):
        await client.create_table(name, SCHEMA, primary_key=["player"])


async def test_what_no_table_can_be_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidOption, match="did you mean"):
        await client.create_table(name, SCHEMA, primary_key=["player"], compresion="lz4")
    with pytest.raises(InvalidOption, match="compression"):
        await client.create_table(name, SCHEMA, primary_key=["player"], compression="gzip")
    with pytest.raises(SchemaMismatch, match="playr"):
        await client.create_table(name, SCHEMA, primary_key=["playr"])
    with pytest.raises(InvalidRequest, match="not a table name"):
        await client.create_table("scores", SCHEMA, primary_key=["player"])
    with pytest.raises(InvalidRequest, match="between 1 and 1,024 buckets, not 1,025"):
        await client.create_table(name, SCHEMA, primary_key=["player"], buckets=1025)
    with pytest.raises(SchemaMismatch, match="duration"):
        await client.create_table(name, pa.schema([("k", pa.int8()), ("d", pa.duration("s"))]), primary_key=["k"])
    assert name not in [table.name for table in await client.tables()]


async def test_a_table_learns_of_a_column_when_rows_have_it(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("k", pa.int64())]), primary_key=["k"])
    await client.alter_table(name, add_columns=pa.schema([("team", pa.string())]))
    assert table.schema.names == ["k"]
    await table.upsert([{"k": 1}])
    await table.upsert([{"k": 2, "team": "red"}])
    assert table.schema.names == ["k", "team"]
    assert await table.get(1) == {"k": 1, "team": None}
    assert await table.get(2) == {"k": 2, "team": "red"}


async def test_statistics_count_every_bucket(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("k", pa.int64())]), primary_key=["k"], buckets=3)
    written = await table.upsert(pa.table({"k": range(100)}))
    buckets = await table.stats()
    assert [bucket.bucket for bucket in buckets] == [0, 1, 2]
    assert sum(bucket.rows or 0 for bucket in buckets) == 100
    assert {bucket.bucket: bucket.log_offset for bucket in buckets} == written.log_offsets
    assert {(bucket.epoch, bucket.damage) for bucket in buckets} == {(0, None)}


async def test_the_server_counts_what_it_does(client: Client, name: str) -> None:
    before = await client.stats()
    table = await client.create_table(name, pa.schema([("k", pa.int64())]), primary_key=["k"])
    await table.upsert(pa.table({"k": range(100)}))
    await table.scan().to_arrow()
    after = await client.stats()
    assert after.incarnation == before.incarnation
    assert after.tables == before.tables + 1
    assert after.rows_written == before.rows_written + 100
    assert after.rows_scanned == before.rows_scanned + 100
    assert after.scans_started == before.scans_started + table.tablets
    assert after.log_syncs > before.log_syncs
    assert after.damaged_buckets == ()


async def test_a_server_that_serves_is_ready(client: Client) -> None:
    await client.wait_ready(10)
