"""What a transaction decides can be applied: all types and options, and tables that are altered before the commit."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, RequestTooLarge, SchemaMismatch, agg
from scankv.model.types.types import is_key_type
from tests.support.examples import FACTOR
from tests.support.type_samples import decimals, samples

if TYPE_CHECKING:
    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SAMPLES: Final = samples()
_MANY: Final = 300
"""So many rows are written as columns."""


def groups() -> list[list[pa.DataType]]:
    """Returns the types of the columns of each table: a table with one that needs columns has no few rows."""
    few = [type_ for type_ in SAMPLES if not _is_seldom(type_) and not pa.types.is_decimal(type_)]
    seldom = [type_ for type_ in SAMPLES if _is_seldom(type_)]
    return [few, seldom, *([type_] for type_ in SAMPLES if pa.types.is_decimal(type_))]


def _is_seldom(type_: pa.DataType) -> bool:
    times = pa.types.is_time(type_) or (pa.types.is_timestamp(type_) and type_.unit != "us")
    return bool(times or pa.types.is_nested(type_))


def options_of(columns: dict[str, pa.DataType]) -> list[dict[str, Any]]:
    """Returns ways to create a table with these columns besides `p`, `k` and `n`."""
    ordered = [name for name, type_ in columns.items() if is_key_type(type_)]
    return [
        {},
        {"merge_engine": "aggregate", "aggregators": {name: agg.last_value() for name in columns}},
        {"merge_engine": "versioned", "version_column": ordered[-1]},
        {"changelog": "upsert", "indexes": [[name] for name in ordered[:8]]},
        {"merge_engine": "first_row"},
        {"sequence_column": ordered[0], "indexes": [[name, "n"] for name in ordered[-8:]]},
        {"merge_engine": "partial_update", "ttl_seconds": 3600},
        {"changelog": "none", "ttl_seconds": 3600},
        {"merge_engine": "partial_update", "sequence_groups": {name: [f"g_{name}"] for name in ordered}},
        {"partition_by": ["p"], "row_deduplicate": False},
    ]


def batches(columns: dict[str, pa.DataType], options: dict[str, Any]) -> list[pa.Table]:
    """Returns requests of few and many rows, with each value over another one, and over null."""
    requests = []
    for number, count in enumerate((16, 16, _MANY)):
        data = {"p": pa.array(["p"] * count), "k": pa.array(range(count)), "n": pa.array([number] * count)}
        for name, type_ in columns.items():
            values = pa.concat_arrays([pa.nulls(1, type_), SAMPLES[type_]])
            data[name] = values.take(pa.array([(row * (number + 1) + number) % len(values) for row in range(count)]))
        for name in options.get("sequence_groups", {}):
            data[f"g_{name}"] = data["n"]
        requests.append(pa.table(data))
    return requests


async def write_both(client: Client, name: str, columns: dict[str, pa.DataType], options: dict[str, Any]) -> None:
    """Writes to a table directly, and to its twin in transactions; compares them."""
    rows = batches(columns, options)
    direct, decided = [
        await client.create_table(f"{name}_{way}", rows[0].schema, primary_key=["p", "k"], buckets=1, **options)
        for way in ("direct", "decided")
    ]
    for number, each in enumerate(rows):
        await direct.upsert(each)
        async with client.transaction() as transaction:
            await transaction.upsert(decided, each.slice(0, 2))
            await transaction.upsert(decided, each)
            if number == 1 and not options.get("merge_engine") and "sequence_column" not in options:
                await transaction.delete(decided, [("p", 0)])
                await direct.delete([("p", 0)])
    expected, found = [await table.scan().ordered().to_arrow() for table in (direct, decided)]
    for one, other in zip(expected.columns, found.columns, strict=True):
        # NaN does not equal itself, and Python does not have all times.
        assert one.equals(other) or str(one.to_pylist()) == str(other.to_pylist())


@pytest.mark.seeds
@pytest.mark.soak
async def test_a_transaction_writes_every_type_to_every_kind_of_table(client: Client, name: str) -> None:
    for number, types in enumerate(groups()):
        columns = {f"v{place}": type_ for place, type_ in enumerate(types)}
        ways = options_of(columns)
        # A few for each table, others for the next one.
        step = 1 if FACTOR > 1 else 2 if number < 2 else 5
        for way, options in islice(enumerate(ways), number % step, None, step):
            try:
                await write_both(client, f"{name}_{number}_{way}", columns, options)
            except Exception as error:
                error.add_note(f"{types}: {options}")
                raise
    assert not [each for each in await client.transactions() if each.stuck]


async def test_a_commit_is_refused_if_a_column_became_a_type_without_its_value(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("day", pa.date32())])
    table = await client.create_table(name, schema, primary_key=["k"], buckets=1)
    days = pa.array([2**31 - 1], pa.int32()).view(pa.date32())
    # The message ends without Arrow's error, which shows the value.
    refusal = r'column "day": a value is out of the range of timestamp\[us\], .*the column: write another value$'
    with pytest.raises(SchemaMismatch, match=refusal):
        await commit_after(client, table, pa.table({"k": [1], "day": days}), column_types={"day": pa.timestamp("us")})
    await _is_served(client, name)


@pytest.mark.breadth
async def test_a_commit_is_refused_if_a_default_makes_its_row_too_large(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
    table = await client.create_table(name, schema, primary_key=["k"], buckets=1)
    rows, added = pa.table({"k": [1], "v": [bytes(16 * 1024 * 1024 - 60)]}), pa.schema([("more", pa.string())])
    with pytest.raises(RequestTooLarge, match="the limit of a row is"):
        await commit_after(client, table, rows, add_columns=added, column_defaults={"more": "x" * 1000})
    await _is_served(client, name)


async def test_a_commit_is_refused_if_a_sum_does_not_fit(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("d", pa.decimal128(3, 5))])
    table = await client.create_table(
        name, schema, primary_key=["k"], merge_engine="aggregate", aggregators={"v": agg.sum(), "d": agg.sum()}
    )
    small = decimals(pa.decimal128(3, 5), [999, 999])
    for rows in (pa.table({"k": [1, 1], "v": [2**63 - 1, 1]}), pa.table({"k": [1, 1], "d": small})):
        with pytest.raises(InvalidRequest, match="the sum does not fit"):
            await commit_after(client, table, rows)
    await _is_served(client, name)


async def commit_after(client: Client, table: Table, rows: pa.Table, **changes: Any) -> None:
    """Writes rows in a transaction, one request each, and commits it after the table has been altered."""
    async with client.transaction() as transaction:
        for number in range(rows.num_rows):
            row = rows.slice(number, 1)
            columns = None if row.num_columns == len(table.schema) else row.column_names
            await transaction.upsert(table, row, columns=columns)
        if changes:
            await client.alter_table(table.name, **changes)


async def _is_served(client: Client, name: str) -> None:
    """Asserts that a table has no row, is read and written, and that no transaction of it is stuck."""
    table: Table = await client.table(name)
    assert not [each for each in await client.transactions() if name in each.tables]
    assert await table.count() == 0
    await table.upsert(pa.table({"k": [2]}), columns=["k"])
    async with client.transaction() as transaction:
        await transaction.upsert(table, pa.table({"k": [3]}), columns=["k"])
    assert await table.count() == 2
