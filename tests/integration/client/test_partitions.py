"""Partitions as a client creates, lists and drops them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest

from aio_client import (
    ColumnLocked,
    InvalidKey,
    InvalidRequest,
    RangeNotTracked,
    SchemaMismatch,
    StartFrom,
    StopAt,
    TransactionConflict,
    col,
    connect,
)
from tests.support.bases import SOON, await_bases, is_of_bases
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, PartitionInfo, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("region", pa.string()),
        ("id", pa.int64()),
        ("value", pa.int64()),
        ("share", pa.float64()),
    ]
)
KEY = ["day", "region", "id"]
FIRST = dt.date(2026, 1, 1)


def day(number: int) -> dt.date:
    return FIRST + dt.timedelta(days=number)


def rows_of(days: range, ids: range = range(10), region: str = "north", value: int = 1) -> pa.Table:
    """Returns a row for each of these days and ids."""
    pairs = [(day(number), each) for number in days for each in ids]
    return pa.table(
        {
            "day": pa.array([each for each, _ in pairs], pa.date32()),
            "region": [region] * len(pairs),
            "id": [each for _, each in pairs],
            "value": [value] * len(pairs),
            "share": [0.5] * len(pairs),
        },
        SCHEMA,
    )


async def create(client: Client, name: str, **arguments: Any) -> Table:
    arguments = {"primary_key": KEY, "partition_by": ["day"]} | arguments
    return await client.create_table(name, SCHEMA, **arguments)


def counts(partitions: list[PartitionInfo]) -> list[tuple[Any, ...]]:
    """Returns the values and the number of rows of each partition."""
    return [(*each.values.values(), each.rows) for each in partitions]


async def test_a_partition_is_created_by_its_first_write_and_counts_its_rows(client: Client) -> None:
    table = await create(client, "partitions.counts")
    assert table.partition_by == ["day"]
    assert await table.partitions() == []
    await table.upsert(rows_of(range(3)))
    await table.upsert(rows_of(range(2, 4), range(5, 15), value=2))
    await table.delete([(day(0), "north", each) for each in (1, 2, 99)])
    found = await table.partitions()
    assert counts(found) == [(day(0), 8), (day(1), 10), (day(2), 15), (day(3), 10)]
    assert all(each.last_write_at is not None and each.created_at <= each.last_write_at for each in found)
    assert counts(await table.partitions({"day": day(2)})) == [(day(2), 15)]


async def test_rows_that_are_written_one_by_one_count_as_well(client: Client) -> None:
    table = await create(client, "partitions.single", partition_by=["day", "region"])
    for region in ("a\0b", "", "a"):
        await table.upsert([{"day": FIRST, "region": region, "id": 1, "value": 1}])
    await table.upsert([{"day": FIRST, "region": "a", "id": 1, "value": 2}])
    await table.upsert([{"day": FIRST, "region": "a", "id": 2, "value": 2}])
    await table.delete((FIRST, "", 1))
    assert counts(await table.partitions()) == [(FIRST, "", 0), (FIRST, "a", 2), (FIRST, "a\0b", 1)]
    assert counts(await table.partitions({"day": FIRST})) == counts(await table.partitions())
    assert counts(await table.partitions({"region": "a", "day": FIRST})) == [(FIRST, "a", 2)]


async def test_rows_are_not_counted_where_writes_do_not_read_the_old_ones(client: Client) -> None:
    table = await create(client, "partitions.unread", changelog="upsert")
    await table.upsert(rows_of(range(2)))
    found = await table.partitions()
    assert counts(found) == [(day(0), None), (day(1), None)]
    assert [each.disk_bytes for each in found] == [None, None]


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"partition_by": ["value"]}, InvalidRequest, r"primary_key=\['value', 'day', 'region', 'id'\]"),
        ({"partition_by": ["region"]}, InvalidRequest, r"primary_key=\['region', 'day', 'id'\]"),
        ({"partition_by": ["region", "day"]}, InvalidRequest, r"primary_key=\['region', 'day', 'id'\]"),
        ({"partition_by": ["day", "day"]}, InvalidRequest, "twice"),
        ({"partition_by": KEY}, InvalidRequest, "leave out its last column"),
        ({"partition_by": ["dya"]}, SchemaMismatch, "day"),
        ({"primary_key": []}, InvalidRequest, "without a primary key has no partitions.*log_retention_seconds"),
        ({"partition_by": ["share"], "primary_key": ["share", "id"]}, SchemaMismatch, "partitioned by double"),
    ],
)
async def test_other_columns_to_partition_by_are_refused(
    client: Client, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await create(client, "partitions.refused", **arguments)
    assert "partitions.refused" not in [table.name for table in await client.tables()]


async def test_too_many_columns_to_partition_by_are_refused(client: Client) -> None:
    names = list("abcdef")
    with pytest.raises(InvalidRequest, match="at most 4 columns, not 5"):
        await client.create_table(
            "partitions.many",
            pa.schema([(name, pa.int8()) for name in names]),
            primary_key=names,
            partition_by=names[:5],
        )


async def test_values_that_name_no_partition_are_refused(client: Client) -> None:
    table = await create(client, "partitions.values", partition_by=["day", "region"])
    plain = await client.create_table("partitions.plain", SCHEMA, primary_key=KEY)
    values: list[dict[str, Any]] = [{"region": "a"}, {"id": 1}, {"day": "soon"}, {"day": None}]
    for each in values:
        with pytest.raises(InvalidKey):
            await table.partitions(each)
        with pytest.raises(InvalidKey):
            await table.drop_partition(each)
    with pytest.raises(InvalidKey):
        await table.drop_partition({})
    with pytest.raises(InvalidKey, match=r"\(day, region\)"):
        await table.create_partition({"day": FIRST})
    for call in (plain.partitions, plain.create_partition, plain.drop_partition):
        with pytest.raises(InvalidRequest, match="not partitioned"):
            await call({"day": FIRST})


async def test_a_drop_removes_the_rows_of_its_partitions_and_no_others(client: Client) -> None:
    table = await create(client, "partitions.dropped", partition_by=["day", "region"])
    for region in ("a", "ab", "b"):
        await table.upsert(rows_of(range(3), region=region))
    assert counts(await table.drop_partition({"day": day(1), "region": "a"})) == [(day(1), "a", 10)]
    assert await table.count() == 80
    assert counts(await table.drop_partition({"day": day(1)})) == [(day(1), "ab", 10), (day(1), "b", 10)]
    assert await table.drop_partition({"day": day(1)}) == []
    assert counts(await table.partitions()) == [
        (day(number), region, 10) for number in (0, 2) for region in ("a", "ab", "b")
    ]
    found = (await table.scan().to_arrow()).sort_by([("day", "ascending"), ("region", "ascending")])
    assert found.num_rows == 60 == await table.count()
    assert set(found["day"].to_pylist()) == {day(0), day(2)}
    assert await table.get((day(1), "a", 3)) is None
    await table.upsert(rows_of(range(1, 2), range(3), region="a"))
    assert counts(await table.partitions({"day": day(1)})) == [(day(1), "a", 3)]
    assert all(check.is_consistent for check in await client.check_table(table.name))


async def test_a_partition_without_rows_is_dropped_without_a_marker(client: Client) -> None:
    table = await create(client, "partitions.empty")
    await table.create_partition({"day": day(0)})
    await table.upsert(rows_of(range(1, 2)))
    await table.delete([(day(1), "north", each) for each in range(10)])
    before = [bucket.log_offset for bucket in await table.stats()]
    assert counts(await table.drop_partition({"day": day(0)})) == [(day(0), 0)]
    assert counts(await table.drop_partition({"day": day(1)})) == [(day(1), 0)]
    assert [bucket.log_offset for bucket in await table.stats()] == before
    assert await table.partitions() == []


async def test_an_index_serves_reads_of_a_partition_and_loses_the_dropped_entries(
    client: Client,
) -> None:
    table = await create(client, "partitions.indexed", indexes=["value", ("share", "value")])
    for number in range(20):
        await table.upsert(rows_of(range(4), range(number * 10, number * 10 + 10), value=number))
    found = table.scan(where=(col("day") == day(2)) & (col("value") == 7))
    explanation = await found.explain()
    assert explanation.index == ("value",)
    assert (explanation.partitions_read, explanation.partitions) == (1, 4)
    assert "1 of 4" in str(explanation)
    assert sorted((await found.to_arrow())["id"].to_pylist()) == list(range(70, 80))
    listed = table.scan(where=col("day").is_in([day(1), day(3)]) & (col("value") > 17))
    assert (await listed.explain()).index == ("value",)
    assert (await listed.to_arrow()).num_rows == 40
    for where in (col("value") == 7, col("day") >= day(1), (col("day") >= day(1)) & (col("value") == 7)):
        assert (await table.scan(where=where).explain()).index == ()
    top = await table.top_n(3, "value", col("day") == day(1))
    assert top["value"].to_pylist() == [19, 19, 19]
    await table.drop_partition({"day": day(2)})
    assert (await found.to_arrow()).num_rows == 0
    checks = await client.check_table(table.name)
    assert all(check.is_consistent for check in checks)
    assert [sum(check.indexes[number].entries for check in checks) for number in (0, 1)] == [600, 600]


async def test_views_that_were_opened_before_keep_the_dropped_rows(client: Client) -> None:
    table = await create(client, "partitions.pinned")
    await table.upsert(rows_of(range(3), range(2000)))
    stream = table.scan().with_chunk(rows=100).stream()
    first = await anext(stream)
    async with await table.snapshot() as snapshot:
        assert len(await table.drop_partition({"day": day(1)})) == 1
        assert await table.count() == 4000
        kept = await table.scan(where=col("day") == day(1)).as_of(snapshot).to_arrow()
        assert kept.num_rows == 2000
        explanation = await table.scan(where=col("day") == day(1)).as_of(snapshot).explain()
        assert (explanation.partitions_read, explanation.partitions) == (1, 3)
    rest = [chunk async for chunk in stream]
    assert sum(chunk.num_rows for chunk in (first, *rest)) == 6000


async def test_predicates_read_only_the_partitions_that_they_allow(client: Client) -> None:
    table = await create(client, "partitions.pruned", partition_by=["day", "region"])
    for region in ("a", "b"):
        await table.upsert(rows_of(range(60), range(2), region=region))
    asked = {
        (col("day") == day(7)): 2,
        ((col("day") == day(7)) & (col("region") == "b")): 1,
        (col("day") >= day(58)): 4,
        ((col("day") > day(10)) & (col("day") <= day(13))): 6,
        (col("day").is_in([day(1), day(40), day(99)])): 4,
        ((col("day") == day(1)) | (col("day") == day(2)) & (col("region") == "a")): 3,
        (col("region") == "a"): 120,
        (col("day") == day(99)): 0,
    }
    for where, partitions in asked.items():
        explanation = await table.scan(where=where).explain()
        assert (explanation.partitions_read, explanation.partitions) == (partitions, 120), where
    assert (await table.scan().explain()).partitions_read == 120
    plain = await client.create_table("partitions.unpartitioned", SCHEMA, primary_key=KEY)
    assert (await plain.scan().explain()).partitions is None


@pytest.mark.breadth
@pytest.mark.parametrize("read_path", ["rocksdb", "columnar"])
async def test_a_scan_of_one_partition_touches_no_rows_of_others(
    tmp_path: Path, read_path: Literal["rocksdb", "columnar"]
) -> None:
    with ServerProcess(tmp_path / "data", *SOON) as server:
        async with connect(server.url) as client:
            table = await create(client, "partitions.based", buckets=2, columnar_base="eager")
            await table.upsert(rows_of(range(20), range(1000)))
            await await_bases(table)
            stream = table.scan(where=col("day") == day(7)).read_path(read_path).stream()
            assert sum([batch.num_rows async for batch in stream]) == 1000
            assert stream.stats().rows_scanned == 1000


@pytest.mark.represented_by("range")
@pytest.mark.parametrize("how", ["drop", "range"])
async def test_the_other_partitions_are_still_read_from_the_base_after_one_is_gone(tmp_path: Path, how: str) -> None:
    lasting = ("--set", "base_changed_share=10", "--set", "base_max_age_seconds=100000")
    with ServerProcess(tmp_path / "data", *SOON, *lasting) as server:
        async with connect(server.url) as client:
            table = await create(client, "partitions.kept", buckets=2, columnar_base="eager")
            await table.upsert(rows_of(range(5), range(1000)))
            await await_bases(table)
            built = [bucket.base.log_offset for bucket in await table.stats() if bucket.base]
            # Some rows of the partition are in the delta, and a scan has begun.
            await table.upsert(rows_of(range(2, 4), range(10), value=2))
            stream = table.scan().with_chunk(rows=100).read_path("columnar").stream()
            begun = (await anext(stream)).num_rows
            if how == "drop":
                await table.drop_partition({"day": day(2)})
            else:
                await table.delete(where=col("day") == day(2), track_changes=False)
            assert begun + sum([batch.num_rows async for batch in stream]) == 5000
            pinned = await table.snapshot()

            async def check(later: int) -> None:
                assert is_of_bases(await table.scan().explain())
                found = await table.scan().read_path("columnar").to_arrow()
                assert found.sort_by([(name, "ascending") for name in KEY]) == (
                    await table.scan().read_path("rocksdb").to_arrow()
                ).sort_by([(name, "ascending") for name in KEY])
                assert found.num_rows == 4000 + later
                assert await table.count(where=col("day") == day(2)) == later
                assert await table.count(where="value = 2") == 10 + later
                bases = [bucket.base for bucket in await table.stats()]
                assert [base.log_offset for base in bases if base] == built, "the bases were built again"
                assert sum(base.rows for base in bases if base) == 4000

            await check(0)
            await table.upsert(rows_of(range(2, 3), range(7), value=2))
            await check(7)
            assert (await table.scan().as_of(pinned).to_arrow()).num_rows == 4000
            server.kill()
            server.restart()
            await client.wait_ready()
            await check(7)


async def test_a_stream_of_changes_gets_new_partitions_and_the_marker_of_a_dropped_one(
    client: Client,
) -> None:
    table = await create(client, "partitions.followed", buckets=1)
    await table.upsert(rows_of(range(2), range(3)))
    offset = (await table.stats())[0].log_offset
    await table.upsert(rows_of(range(2, 3), range(3)))
    await table.drop_partition({"day": day(1)})
    await table.upsert(rows_of(range(1, 2), range(7, 8)))
    assert (await table.stats())[0].log_offset == offset + 5
    changes = table.changes(start=StartFrom.EARLIEST, stop=StopAt.LATEST)
    with pytest.raises(RangeNotTracked):
        await changes.to_arrow()


async def test_a_drop_is_refused_while_a_column_is_locked(client: Client) -> None:
    table = await create(client, "partitions.locked")
    await table.upsert(rows_of(range(2)))
    async with table.lock_columns(["value"], owner="job"):
        with pytest.raises(ColumnLocked):
            await table.drop_partition({"day": day(0)})
    assert len(await table.drop_partition({"day": day(0)})) == 1


async def test_a_transaction_that_has_staged_rows_creates_the_partition_again(client: Client) -> None:
    table = await create(client, "partitions.staged")
    await table.upsert(rows_of(range(2)))
    async with client.transaction() as transaction:
        await transaction.upsert(table, rows_of(range(1), range(5, 12), value=2))
        assert counts(await table.drop_partition({"day": day(0)})) == [(day(0), 10)]
    assert counts(await table.partitions()) == [(day(0), 7), (day(1), 10)]
    transaction = await client.transaction(conflict="abort")
    await transaction.upsert(table, rows_of(range(1), range(5, 12), value=3))
    await table.drop_partition({"day": day(0)})
    with pytest.raises(TransactionConflict):
        await transaction.commit()
    assert counts(await table.partitions()) == [(day(1), 10)]
