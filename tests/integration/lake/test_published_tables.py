"""Tables of every kind are published: types, changed columns, partitions, merge engines, expiry, without a key."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from aio_client import UsageError, agg
from scankv.lake.delta.delta_types import delta_schema
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import read_delta, read_with_polars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client import Client, Table
    from scankv.lake.publisher import PublishReport

pytestmark = pytest.mark.asyncio
SMALL = PublishOptions(file_rows=50)
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])


def comparable(value: Any) -> Any:
    """Returns a value in a form in which NaN equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    return [comparable(each) for each in value] if isinstance(value, list | tuple) else value


def sorted_by(rows: pa.Table, key: Sequence[str]) -> list[dict[str, Any]]:
    return [comparable(row) for row in sorted(rows.to_pylist(), key=lambda row: tuple(row[name] for name in key))]


async def publish_and_compare(
    client: Client, name: str, uri: str, options: PublishOptions = SMALL, polars: bool = True
) -> PublishReport:
    report = await publish(client, name, open_lake_table(uri), options)
    table = await client.table(name)
    live = await table.scan().to_arrow()
    expected = sorted_by(live.cast(delta_schema(live.schema)), table.primary_key)
    for found in [read_delta(uri), *([read_with_polars(uri)] if polars else [])]:
        assert sorted_by(found.select(live.schema.names), table.primary_key) == expected
        assert sorted(found.schema.names) == sorted(live.schema.names)
    return report


def ids(numbers: range, value: int = 1) -> pa.Table:
    return pa.table({"id": list(numbers), "value": [value] * len(numbers)}, SCHEMA)


UTC = dt.UTC
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "u8": (pa.uint8(), [0, 255]),
    "u16": (pa.uint16(), [0, 2**16 - 1]),
    "u32": (pa.uint32(), [0, 2**32 - 1]),
    "u64": (pa.uint64(), [0, 2**64 - 1]),
    "f16": (pa.float16(), [0.5, -2.0]),
    "f32": (pa.float32(), [0.5, math.nan, math.inf]),
    "f64": (pa.float64(), [-0.0, math.nan, -math.inf, 1e300]),
    "price": (pa.decimal128(10, 2), [Decimal("-99999999.99"), Decimal("0.01")]),
    "wide": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789")]),
    "text": (pa.string(), ["", "a\0b", "ä" * 300, "\U0001f600"]),
    "blob": (pa.binary(), [b"", b"\0\xff" * 100]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "s": (pa.timestamp("s"), [dt.datetime(1969, 12, 31, 23, 59, 59)]),
    "ms": (pa.timestamp("ms", "Europe/Berlin"), [dt.datetime(2026, 7, 1, 12, 0, 0, 123000, tzinfo=UTC)]),
    "us": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)]),
    "tags": (pa.list_(pa.string()), [[], ["a", None, ""]]),
    "point": (
        pa.struct([("x", pa.uint8()), ("y", pa.list_(pa.float32()))]),
        [{"x": 255, "y": [0.5]}, {"x": None, "y": None}],
    ),
    "by_day": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], []]),
    "deep": (pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.list_(pa.string())))])), [[{"m": [(1, ["x"])]}]]),
}


async def test_every_type_is_published(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), *((column, type_) for column, (type_, _) in VALUES.items())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    rows: list[dict[str, Any]] = [{"id": 0}]
    rows += [{"id": n} | {column: v[n % len(v)] for column, (_, v) in VALUES.items()} for n in range(1, 5)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri, polars=False)
    await table.delete([0])
    assert (await publish_and_compare(client, name, uri, polars=False)).mode == "changes"


@pytest.mark.parametrize("column", ["i32", "u64", "price", "text", "blob", "day", "us", "s"])
@pytest.mark.breadth
async def test_every_type_of_key_orders_the_files(client: Client, name: str, uri: str, column: str) -> None:
    type_, values = VALUES[column]
    schema = pa.schema([(column, type_), ("n", pa.int64())])
    table = await client.create_table(name, schema, primary_key=[column, "n"], buckets=2)
    rows = [{column: value, "n": number} for value in values for number in range(100)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri)
    await table.delete(pa.Table.from_pylist(rows[:1], schema.empty_table().schema))
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.files_removed) == ("changes", 1)


async def test_readers_skip_no_file_with_a_row_that_they_want(client: Client, name: str, uri: str) -> None:
    columns = {name: VALUES[name] for name in ("i32", "f64", "price", "text", "day", "us", "s")}
    schema = pa.schema([("id", pa.int64()), *((column, type_) for column, (type_, _) in columns.items())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    rows = [{"id": n} | {column: v[n % len(v)] for column, (_, v) in columns.items()} for n in range(20)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri, PublishOptions(file_rows=1))
    published = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(uri))
    for condition, count in [
        ("i32 > 0", 10),
        ("f64 > 1e299", 10),  # NaN is greater
        ("price < 0", 10),
        ("text >= 'ä'", 10),
        ("\"day\" > date '2000-01-01'", 10),
        ("us >= timestamp '2026-07-01T12:00:00.123456Z'", 20),
        ("s < timestamp '1970-01-01T00:00:00'", 20),
    ]:
        found = pa.table(published.execute(f"select count(*) as n from t where {condition}")).to_pylist()
        assert found == [{"n": count}], condition


async def test_a_column_that_cannot_be_published_is_refused_before_anything_is_written(
    client: Client, name: str, uri: str
) -> None:
    await client.create_table(name, pa.schema([("id", pa.int64()), ("at", pa.timestamp("ns"))]), primary_key=["id"])
    with pytest.raises(UsageError, match="nanoseconds"):
        await publish(client, name, open_lake_table(uri))
    assert open_lake_table(uri).load() is None


@pytest.mark.breadth
async def test_added_and_dropped_columns_keep_the_files(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(ids(range(500)))
    await publish_and_compare(client, name, uri)
    table = await client.alter_table(name, add_columns=pa.schema([("note", pa.string())]))
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.files_added) == ("changes", 0)
    await table.upsert([{"id": 3, "value": 3, "note": "new"}])
    assert (await publish_and_compare(client, name, uri)).files_kept > 5
    await client.alter_table(name, drop_columns=["value"])
    assert (await publish_and_compare(client, name, uri)).files_added == 0
    await client.alter_table(name, add_columns=pa.schema([("value", pa.int64())]))
    report = await publish_and_compare(client, name, uri)
    assert report.reason == 'column "value" replaces a column with the same name'


@pytest.mark.breadth
async def test_other_changes_of_columns_write_all_rows(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.int32())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    await table.upsert(pa.table({"id": list(range(300)), "value": [1] * 300}, schema))
    await publish_and_compare(client, name, uri)
    await client.alter_table(name, rename_columns={"value": "points"})
    report = await publish_and_compare(client, name, uri)
    assert report.reason == 'column "value" was renamed to "points"'
    await client.alter_table(name, column_types={"points": pa.int64()})
    report = await publish_and_compare(client, name, uri)
    assert report.reason == 'column "points" was changed from int32 to int64'
    await client.alter_table(name, rename_columns={"points": "value"})
    assert (await publish_and_compare(client, name, uri)).mode == "full"


async def test_a_column_added_with_a_default_has_it_in_earlier_rows(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(ids(range(300)))
    await publish_and_compare(client, name, uri)
    await client.alter_table(name, add_columns=pa.schema([("league", pa.string())]), column_defaults={"league": "a"})
    report = await publish_and_compare(client, name, uri)
    assert report.reason == 'column "league" was added with a default'


@pytest.mark.breadth
async def test_partitions_carry_over(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("day", pa.date32()), ("region", pa.string()), ("id", pa.int64()), ("value", pa.int64())])
    table = await client.create_table(
        name, schema, primary_key=["day", "region", "id"], partition_by=["day", "region"], buckets=2
    )
    days = [dt.date(2026, 11, 1 + number) for number in range(3)]

    def rows_of(days: list[dt.date], value: int) -> pa.Table:
        rows = [{"day": d, "region": r, "id": n, "value": value} for d in days for r in "é/=" for n in range(60)]
        return pa.Table.from_pylist(rows, schema)

    await table.upsert(rows_of(days[:2], 1))
    await publish_and_compare(client, name, uri)
    published = deltalake.DeltaTable(uri)
    assert published.metadata().partition_columns == ["day", "region"]
    assert len(published.partitions()) == 6
    await table.upsert(rows_of(days[2:], 2))
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "changes"
    assert report.files_removed <= 2
    await table.drop_partition({"day": days[0]})
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.files_added) == ("changes", 0)
    assert len(deltalake.DeltaTable(uri).partitions()) == 6
    report = await publish_and_compare(client, name, uri, PublishOptions(file_rows=50, partitioned=False))
    assert report.reason == "the partition columns are others"
    assert deltalake.DeltaTable(uri).metadata().partition_columns == []


@pytest.mark.parametrize("column", ["flag", "i64", "u64", "price", "day", "s", "us", "text"])
@pytest.mark.represented_by("flag", "text")
async def test_partition_columns_of_every_type_carry_over(client: Client, name: str, uri: str, column: str) -> None:
    type_, values = VALUES[column]
    schema = pa.schema([(column, type_), ("id", pa.int64())])
    table = await client.create_table(name, schema, primary_key=[column, "id"], partition_by=[column], buckets=2)
    rows = [{column: value, "id": number} for value in values if value != "" for number in range(9)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri)


async def test_an_empty_text_is_no_partition(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("region", pa.string()), ("id", pa.int64())])
    table = await client.create_table(name, schema, primary_key=["region", "id"], partition_by=["region"])
    await table.upsert([{"region": "", "id": 1}, {"region": "a", "id": 1}])
    with pytest.raises(UsageError, match="empty text"):
        await publish(client, name, open_lake_table(uri))
    assert open_lake_table(uri).load() is None
    await publish_and_compare(client, name, uri, PublishOptions(partitioned=False))


@pytest.mark.parametrize("engine", ["first_row", "versioned", "aggregate", "partial_update"])
@pytest.mark.represented_by("first_row")
async def test_merged_rows_are_published(client: Client, name: str, uri: str, engine: str) -> None:
    of_engine: dict[str, dict[str, Any]] = {
        "first_row": {},
        "versioned": {"version_column": "value"},
        "aggregate": {"aggregators": {"value": agg.sum()}},
        "partial_update": {},
    }
    arguments = of_engine[engine]
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2, merge_engine=engine, **arguments)
    await table.upsert(ids(range(500)))
    await publish_and_compare(client, name, uri)
    await table.upsert(ids(range(20), value=0))
    await table.upsert(ids(range(10, 30), value=7))
    await publish_and_compare(client, name, uri)


@pytest.mark.breadth
async def test_rows_that_expire_are_published_until_they_are_removed(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("seen", pa.timestamp("us", "UTC"))])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2, ttl_seconds=3600, ttl_column="seen")
    now = dt.datetime.now(UTC)
    await table.upsert([{"id": number, "seen": now} for number in range(100)])
    await publish_and_compare(client, name, uri)
    await table.upsert([{"id": 5, "seen": now + dt.timedelta(hours=1)}])
    assert (await publish_and_compare(client, name, uri)).mode == "changes"
    await client.alter_table(name, ttl_seconds=7200)
    report = await publish_and_compare(client, name, uri)
    assert report.reason == "the options by which rows expire were changed"
    await client.alter_table(name, ttl_changes="none")
    await table.upsert([{"id": 6, "seen": now - dt.timedelta(hours=3)}])
    report = await publish_and_compare(client, name, uri)
    assert report.reason == 'rows expire without a change (ttl_changes="none")'


@pytest.mark.soak
async def test_small_files_of_appended_rows_are_joined(client: Client, name: str, uri: str) -> None:
    table = await create_log(client, name)
    options = PublishOptions(file_rows=100)
    for number in range(40):
        await table.append(ids(range(number, number + 3)))
        await publish(client, name, open_lake_table(uri), options)
        if number == 20:
            await client.alter_table(name, add_columns=pa.schema([("note", pa.string())]))
    assert len(deltalake.DeltaTable(uri).file_uris()) <= 20
    expected = sorted((row["id"], row["value"]) for row in await table.scan().to_pylist())
    assert sorted((row["id"], row["value"]) for row in read_delta(uri).to_pylist()) == expected


async def test_rows_appended_before_and_after_a_change_of_columns_are_published(
    client: Client, name: str, uri: str
) -> None:
    table = await create_log(client, name)
    await table.append(ids(range(5)))
    await publish(client, name, open_lake_table(uri), SMALL)
    await table.append(ids(range(5, 9)))
    added = pa.schema([("note", pa.string()), ("n", pa.int32())])
    table = await client.alter_table(name, add_columns=added)
    await table.append([{"id": 10, "value": 1, "note": "x", "n": 7}])
    table = await client.alter_table(name, rename_columns={"n": "m"}, column_types={"n": pa.int64()})
    await table.append([{"id": 11, "value": 1, "note": "y", "m": 8}])
    report = await publish(client, name, open_lake_table(uri), SMALL)
    assert (report.mode, report.rows) == ("changes", 6)
    expected = sorted_by(await table.scan().to_arrow(), ["id"])
    assert sorted_by(read_delta(uri).select(table.schema.names), ["id"]) == expected


async def create_log(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=[], buckets=2)


async def test_rows_without_a_key_are_appended(client: Client, name: str, uri: str) -> None:
    table = await create_log(client, name)
    await table.append(ids(range(200)))
    await table.append(ids(range(200)))
    lake = open_lake_table(uri)
    assert (await publish(client, name, lake, SMALL)).rows == 400
    await table.append(ids(range(150, 250), value=2))
    report = await publish(client, name, lake, SMALL)
    assert (report.mode, report.rows, report.files_removed) == ("changes", 100, 0)
    expected = sorted((row["id"], row["value"]) for row in await table.scan().to_pylist())
    assert sorted((row["id"], row["value"]) for row in read_delta(uri).to_pylist()) == expected
    assert (await publish(client, name, lake, SMALL)).mode == "unchanged"
