"""Single rows by key: as `lookup` has them, whatever else is asked for at the same time."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from aio_client import Client, InvalidKey, Table, TableNotFound

pytestmark = pytest.mark.asyncio

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 0, 127]),
    "int64": (pa.int64(), [-(1 << 63), -1, (1 << 63) - 1]),
    "uint64": (pa.uint64(), [0, (1 << 64) - 1]),
    "float64": (pa.float64(), [0.0, -1.5, float("inf")]),
    "bool": (pa.bool_(), [False, True]),
    "string": (pa.string(), ["", "\0", "a\0\0b", "\U0010ffff", "x" * 5000]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff\0\xff"]),
    "date32": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp[us]": (pa.timestamp("us"), [dt.datetime(1900, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)]),
    "timestamp[us, tz]": (pa.timestamp("us", "Asia/Tokyo"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    "timestamp[ns]": (pa.timestamp("ns"), [dt.datetime(2020, 1, 1)]),
    "time64[us]": (pa.time64("us"), [dt.time(1, 2, 3)]),
    "decimal": (pa.decimal128(10, 2), [Decimal("-1.25"), Decimal(0)]),
}


async def looked_up(table: Table, key: object) -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = (await table.lookup(key)).to_pylist()
    return rows[0] if rows else None


@pytest.mark.parametrize("type_", KEYS)
@pytest.mark.represented_by("int8", "decimal")
async def test_keys_of_every_type_find_their_rows(client: Client, name: str, type_: str) -> None:
    arrow, keys = KEYS[type_]
    schema = pa.schema([("before", pa.string()), pa.field("key", arrow, nullable=False), ("n", pa.int32())])
    table = await client.create_table(name, schema, primary_key=["key"], buckets=3)
    for key in keys:
        assert await table.get(key) is None
    await table.upsert([{"key": key, "n": n} for n, key in enumerate(keys)])
    for n, key in enumerate(keys):
        assert await table.get(key) == {"before": None, "key": key, "n": n}
        assert await table.get({"key": key}) == await table.get((key,)) == await looked_up(table, key)


async def test_keys_of_several_columns_find_their_rows_in_the_buckets_of_one(client: Client, name: str) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.binary())])
    table = await client.create_table(name, schema, primary_key=["a", "b"], bucket_key=["b"], buckets=5)
    rows = [{"a": f"a{n % 3}", "b": n, "v": bytes([n])} for n in range(40)]
    await table.upsert(rows)
    assert await asyncio.gather(*(table.get((row["a"], row["b"])) for row in rows)) == rows
    assert await table.get({"b": 7, "a": "a1"}) == rows[7]
    assert await table.get(("a0", 7)) is None


async def test_values_of_every_type_are_those_of_arrow(client: Client, name: str) -> None:
    values = {f"c{number}": (type_, values) for number, (type_, values) in enumerate(KEYS.values())}
    schema = pa.schema([("key", pa.int64()), *((column, type_) for column, (type_, _) in values.items())])
    table = await client.create_table(name, schema, primary_key=["key"], buckets=2)
    rows = [
        {"key": n, **{column: None if n % 3 == 0 else each[n % len(each)] for column, (_, each) in values.items()}}
        for n in range(12)
    ]
    await table.upsert(rows)
    for row in rows:
        got, expected = await table.get(row["key"]), await looked_up(table, row["key"])
        assert got == expected
        assert got is not None
        assert list(map(type, got.values())) == list(map(type, (expected or {}).values()))


@pytest.mark.parametrize(
    "key", [None, "x", 1.5, True, 1 << 63, (1, 2), {"other": 1}, {"key": 1, "other": 2}, np.float64(1.5)], ids=repr
)
async def test_a_key_that_is_none_is_refused_as_by_lookup(client: Client, name: str, key: object) -> None:
    table = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    with pytest.raises(InvalidKey) as refused:
        await table.get(key)
    with pytest.raises(InvalidKey) as by_lookup:
        await table.lookup([key])
    assert refused.value.message == by_lookup.value.message


async def test_numbers_of_other_kinds_are_keys(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    await table.upsert([{"key": 7}])
    assert await table.get(np.int8(7)) == await table.get(7.0) == await table.get(pa.scalar(7)) == {"key": 7}


async def test_nested_columns_are_read(client: Client, name: str) -> None:
    schema = pa.schema([("key", pa.int64()), ("tags", pa.list_(pa.string()))])
    table = await client.create_table(name, schema, primary_key=["key"])
    await table.upsert([{"key": 1, "tags": ["a", None]}])
    assert await table.get(1) == {"key": 1, "tags": ["a", None]}


async def test_each_of_many_callers_gets_its_row(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("key", pa.int64()), ("n", pa.int64())]), primary_key=["key"])
    await table.upsert(pa.table({"key": range(1000), "n": [n * n for n in range(1000)]}))
    found = await asyncio.gather(*(table.get(n) for n in range(-500, 1500)))
    assert found == [{"key": n, "n": n * n} if 0 <= n < 1000 else None for n in range(-500, 1500)]


@pytest.mark.parametrize("given_up", [0, 1, 5])
async def test_a_caller_that_gives_up_takes_nothing_from_the_others(client: Client, name: str, given_up: int) -> None:
    table = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    await table.upsert(pa.table({"key": range(10)}))
    for turns in range(6):
        tasks = [asyncio.create_task(table.get(key)) for key in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[given_up].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results.pop(given_up), asyncio.CancelledError)
        assert results == [{"key": key} for key in range(10) if key != given_up]


async def test_all_callers_learn_that_the_table_is_gone(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    await client.drop_table(name)
    results = await asyncio.gather(*(table.get(key) for key in range(10)), return_exceptions=True)
    assert {type(result) for result in results} == {TableNotFound}
    assert len(set(map(id, results))) == 10


async def test_rows_of_a_table_that_was_created_again_are_not_read_with_the_columns_of_the_first(
    client: Client, name: str
) -> None:
    """Both tables have the same schema id, and rows of the same length."""
    first = await client.create_table(name, pa.schema([("key", pa.int64()), ("v", pa.int64())]), primary_key=["key"])
    await first.upsert([{"key": 1, "v": 5}])
    assert await first.get(1) == {"key": 1, "v": 5}
    await client.drop_table(name)
    second = await client.create_table(name, pa.schema([("key", pa.int64()), ("w", pa.float64())]), primary_key=["key"])
    await second.upsert([{"key": 1, "w": 0.5}])
    assert await first.get(1) == {"key": 1, "w": 0.5}
