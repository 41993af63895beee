"""DataFrames of pandas and Polars: what a table returns is stored again unchanged, by every way to write."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from aio_client import Client, InvalidKey, SchemaMismatch, StartFrom, StopAt, UsageError, sync

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aio_client import Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

VALUES: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "i8": (pa.int8(), [-128, 127]),
    "i64": (pa.int64(), [2**53 + 1, -(2**63)]),
    "u64": (pa.uint64(), [2**64 - 1, 0]),
    "f16": (pa.float16(), [0.5, -0.0]),
    "f32": (pa.float32(), [0.25, float("inf")]),
    "f64": (pa.float64(), [0.1, -0.0]),
    "flag": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["", "\U00020bb7\n"]),
    "raw": (pa.binary(), [b"", b"\xff\0"]),
    "money": (pa.decimal128(38, 2), [Decimal("-123456789012345678901234567890123456.78"), Decimal("0.00")]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)]),
    "seconds": (pa.time32("s"), [dt.time(0), dt.time(23, 59, 59)]),
    "at": (pa.timestamp("us"), [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)] * 2),
    "ns": (pa.timestamp("ns"), [pd.Timestamp(1, unit="ns"), pd.Timestamp(2**62, unit="ns")]),
    "list": (pa.list_(pa.int64()), [[2**53 + 1, None], []]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 2**53 + 1, "b": None}, {"a": None, "b": ""}]),
    "map": (pa.map_(pa.string(), pa.uint64()), [[("k", 2**64 - 1), ("l", None)], []]),
}
KEY: Final = pa.field("k", pa.int64(), nullable=False)
SCHEMA: Final = pa.schema([KEY, *((name, type_) for name, (type_, _) in VALUES.items())])
ROWS: Final = pa.table(
    {"k": [2**53 + 1, 2**53, 1], **{n: pa.array([*values, None], type_) for n, (type_, values) in VALUES.items()}},
    schema=SCHEMA,
)
TEXTS: Final = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string()), ("l", pa.list_(pa.string()))])


def unique_name() -> str:
    return f"frames.t{uuid.uuid4().hex}"


async def new_table(client: Client, schema: pa.Schema = SCHEMA) -> Table:
    return await client.create_table(unique_name(), schema, primary_key=["k"], buckets=1)


async def by_upsert(client: Client, table: Table, rows: Any) -> Table:
    await table.upsert(rows)
    return table


async def by_writer(client: Client, table: Table, rows: Any) -> Table:
    async with table.writer() as writer:
        await writer.upsert(rows)
    return table


async def by_replace(client: Client, table: Table, rows: Any) -> Table:
    await table.replace(rows)
    return table


async def by_transaction(client: Client, table: Table, rows: Any) -> Table:
    async with client.transaction() as transaction:
        await transaction.upsert(table, rows)
    return table


async def by_bootstrap(client: Client, table: Table, rows: Any) -> Table:
    return await client.bootstrap(unique_name(), rows, schema=table.schema, primary_key=["k"], buckets=1)


WAYS: Final[list[Callable[[Client, Table, Any], Awaitable[Table]]]] = [
    by_upsert,
    by_writer,
    by_replace,
    by_transaction,
    by_bootstrap,
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_pandas_frame_of_a_table_is_stored_again_unchanged(
    client: Client, way: Callable[[Client, Table, Any], Awaitable[Table]]
) -> None:
    table = await new_table(client)
    await table.upsert(ROWS)
    stored = await table.scan().to_arrow()
    assert stored.equals(ROWS.sort_by("k"))
    frame = await table.scan().to_pandas()
    assert [dtype.pyarrow_dtype for dtype in frame.dtypes] == SCHEMA.types
    again = await way(client, await new_table(client), frame)
    assert (await again.scan().to_arrow()).equals(stored)


async def test_the_dtypes_of_a_pandas_frame_follow_from_the_schema(client: Client) -> None:
    table = await new_table(client)
    empty = await table.scan().to_pandas()
    await table.upsert(ROWS)
    some = await table.scan(where="i64 IS NOT NULL").to_pandas()
    nulls = await table.scan(where="i64 IS NULL").to_pandas()
    changes = await table.changes(StartFrom.FULL, StopAt.LATEST, columns=["i64", "k"]).to_pandas()
    assert (len(empty), len(some), len(nulls)) == (0, 2, 1)
    assert list(empty.dtypes) == list(some.dtypes) == list(nulls.dtypes)
    assert changes["i64"].dtype == some["i64"].dtype
    assert changes["i64"].sum() == 2**53 + 1 - 2**63


async def test_results_that_are_arrow_tables_become_frames_without_loss(client: Client) -> None:
    table = await new_table(client)
    await table.upsert(ROWS)
    top = await table.top_n(3, order_by="u64")
    sums = await table.aggregate({"i64": "max"}, group_by=["flag"])
    found = await table.lookup([2**53 + 1, 1])
    for rows, name in ((top, "i64"), (sums, "i64_max"), (found, "i64")):
        frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
        assert 2**53 + 1 in frame[name].tolist()


async def test_numpy_types_are_chosen_with_the_dtype_backend(client: Client, shared_server: ServerProcess) -> None:
    table = await new_table(client)
    await table.upsert(ROWS)
    frame = await table.scan(["k", "i64", "i8"]).to_pandas(dtype_backend="numpy")
    assert [str(dtype) for dtype in frame.dtypes] == ["int64", "float64", "float64"]
    with sync.connect(shared_server.url) as blocking:
        assert blocking.table(table.name).scan(["i8"]).to_pandas(dtype_backend="numpy").equals(frame[["i8"]])
    with pytest.raises(UsageError, match='dtype_backend must be "pyarrow" or "numpy", not \'numpy_nullable\''):
        await table.scan().to_pandas(dtype_backend="numpy_nullable")  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatch, match=r'column "i64", row 1: .* floats round integers'):
        await table.upsert(frame[["k", "i64"]], columns=["k", "i64"])
    assert (await table.get(2**53 + 1) or {})["i64"] == 2**53 + 1
    await table.upsert(frame[["k", "i8"]], columns=["k", "i8"])
    assert (await table.scan(["k", "i8"]).to_arrow()).equals(ROWS.select(["k", "i8"]).sort_by("k"))


@pytest.mark.parametrize("dtype", [pl.Categorical(), pl.Enum(["a", "b", "c"])], ids=["categorical", "enum"])
@pytest.mark.parametrize("way", WAYS)
async def test_categories_of_polars_are_stored_as_their_texts(
    client: Client, way: Callable[[Client, Table, Any], Awaitable[Table]], dtype: pl.DataType
) -> None:
    rows = {"k": ["b", "a"], "v": [None, "c"], "l": [["a", None], None]}
    frame = pl.DataFrame(rows, schema={"k": dtype, "v": dtype, "l": pl.List(dtype)})
    table = await way(client, await new_table(client, TEXTS), frame)
    assert await table.scan().to_pylist() == [{"k": "a", "v": "c", "l": None}, {"k": "b", "v": None, "l": ["a", None]}]


async def test_a_frame_of_categories_names_keys(client: Client) -> None:
    table = await new_table(client, TEXTS)
    await table.upsert([{"k": key, "v": key} for key in "abc"])
    keys = pl.DataFrame({"k": ["c", "a"], "other": [object(), None]}, schema={"k": pl.Categorical, "other": pl.Object})
    assert (await table.lookup(keys))["v"].to_pylist() == ["c", "a"]
    assert (await table.lookup(pd.DataFrame({"k": pd.Categorical(["b"])})))["v"].to_pylist() == ["b"]
    assert await table.count("k = 'a' AND v IN ('a')") == 1
    await table.delete(keys)
    assert [row["k"] for row in await table.scan().to_pylist()] == ["b"]
    with pytest.raises(InvalidKey, match='column "k" is Int128 in Polars'):
        await table.lookup(pl.DataFrame({"k": [1]}, schema={"k": pl.Int128}))


@pytest.mark.parametrize("way", WAYS)
async def test_a_polars_column_that_no_table_can_have_is_refused_by_every_way_to_write(
    client: Client, way: Callable[[Client, Table, Any], Awaitable[Table]]
) -> None:
    table = await new_table(client, pa.schema([KEY, ("v", pa.binary())]))
    frame = pl.DataFrame({"k": [1], "v": [object()]}, schema={"k": pl.Int64, "v": pl.Object})
    with pytest.raises(SchemaMismatch, match='column "v" is Object in Polars'):
        await way(client, table, frame)
