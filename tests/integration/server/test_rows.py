"""Rows through the complete server: keys that are almost equal, large values, many columns, and offsets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.tables import bits_of, exact_rows

if TYPE_CHECKING:
    from aio_client import Client

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


ZEROS_AND_NANS = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.0, -1.0, 5e-324]


async def test_minus_zero_in_a_key_becomes_zero_and_nan_is_one_key(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.float64()), ("v", pa.float64())])
    table = await client.create_table(name, schema, primary_key=["k"], buckets=3)
    for value in ZEROS_AND_NANS:
        await table.upsert(pa.table({"k": pa.array([value]), "v": pa.array([value])}))
    found = await table.scan().to_arrow()
    keys = sorted(bits_of(key) for key in found.column("k").to_pylist())
    assert keys == sorted(bits_of(key) for key in [0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 5e-324])
    values = {bits_of(k): bits_of(v) for k, v in zip(*found.to_pydict().values(), strict=True)}
    assert values[bits_of(0.0)] == bits_of(-0.0), "a value column keeps the sign"
    assert math.isnan((await table.get(math.nan) or {})["v"])
    for zero in (0.0, -0.0):
        row = await table.get(zero)
        assert row is not None
        assert bits_of(row["k"]) == bits_of(0.0)
    await table.delete([-0.0, -math.nan])
    assert await table.count() == 5


async def test_long_values_and_bytes_that_are_no_text_come_back(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.binary()), ("s", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.string()))])
    table = await client.create_table(name, schema, primary_key=["k"], buckets=2)
    rows: list[dict[str, Any]] = [
        {"k": b"", "s": "", "b": b"", "l": []},
        {"k": b"\x00", "s": None, "b": None, "l": None},
        {"k": b"\x00\x00\xff", "s": "x" * 2**20, "b": b"\xff\xfe" * 2**19, "l": ["y" * 2**20, None, ""]},
        {"k": b"\xff" * 8000, "s": "\x00", "b": bytes(range(256)), "l": [None]},
    ]
    await table.upsert(rows)
    found = {row["k"]: row for row in await table.scan().to_pylist()}
    assert found == {row["k"]: row for row in rows}
    for row in rows:
        assert await table.get(row["k"]) == row


@pytest.mark.breadth
async def test_a_thousand_columns_come_back(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), *((f"c{i}", pa.string() if i % 2 else pa.float64()) for i in range(999))])
    table = await client.create_table(name, schema, primary_key=["k"])
    columns = [
        pa.array(range(100)),
        *([pa.array(np.arange(100.0)), pa.array([str(i) for i in range(100)])] * 500)[:999],
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=table.schema)
    await table.upsert(batch)
    scanned = (await table.scan().to_arrow()).sort_by("k")
    assert exact_rows(scanned.combine_chunks()) == exact_rows(batch)


async def test_the_changelog_offsets_of_one_key(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)
    assert (await table.upsert([{"k": 1, "v": "a"}])).log_offsets == {0: 1}
    assert (await table.upsert([{"k": 1, "v": "b"}])).log_offsets == {0: 3}
    assert (await table.upsert([{"k": 1, "v": "b"}])).log_offsets == {0: 3}
    assert (await table.delete([1])).log_offsets == {0: 4}
    assert (await table.delete([1])).log_offsets == {0: 4}
    async with table.scan().stream() as stream:
        assert stream.log_offsets == {0: 4}
