"""Rows by key: written, replaced, deleted and looked up; bad requests are refused completely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import Client, InvalidKey, RequestTooLarge, SchemaMismatch, Table, UsageError
from aio_client._input.requests import REQUEST_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("player", pa.string()), ("score", pa.int64())])


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["player"], buckets=3)


async def contents(table: Table) -> dict[str, int | None]:
    return {row["player"]: row["score"] for row in await table.scan().to_pylist()}


@pytest.mark.parametrize(
    "data",
    [
        [{"player": "ann", "score": 1}, {"player": "bob"}],
        pa.table({"score": [1, None], "player": ["ann", "bob"]}),
        pa.record_batch({"player": ["ann", "bob"], "score": pa.array([1, None], pa.int8())}),
        pa.table({"player": ["ann", "bob"], "score": [1, None]}).to_reader(),
        pd.DataFrame({"player": ["ann", "bob"], "score": [1, np.nan]}),
        pl.DataFrame({"player": ["ann", "bob"], "score": [1, None]}),
    ],
    ids=lambda data: type(data).__name__,
)
async def test_every_form_of_data_is_written(table: Table, data: Any) -> None:
    result = await table.upsert(data)
    assert result.rows == 2
    assert await contents(table) == {"ann": 1, "bob": None}


async def test_a_row_is_replaced_by_its_key_and_the_last_one_counts(table: Table) -> None:
    await table.upsert([{"player": "ann", "score": 1}, {"player": "ann", "score": 2}])
    assert await contents(table) == {"ann": 2}
    await table.upsert([{"player": "ann", "score": 3}])
    assert await contents(table) == {"ann": 3}


@pytest.mark.breadth
async def test_log_offsets_join_those_of_all_requests(table: Table) -> None:
    rows = pa.table({"player": [f"p{i}" for i in range(2 * REQUEST_ROWS + 10)]})
    rows = rows.append_column("score", pa.array(range(rows.num_rows)))
    result = await table.upsert(rows)
    assert result.rows == rows.num_rows
    async with table.scan().stream() as stream:
        assert stream.log_offsets == result.log_offsets
    assert await table.count() == rows.num_rows


async def test_rows_of_one_key_in_many_requests_are_applied_in_order(table: Table) -> None:
    rows = 3 * REQUEST_ROWS
    await table.upsert(pa.table({"player": ["same"] * rows, "score": range(rows)}))
    assert await contents(table) == {"same": rows - 1}


async def test_nothing_is_written_for_no_rows(table: Table) -> None:
    result = await table.upsert([])
    assert (result.rows, result.log_offsets) == (0, {})
    result = await table.delete([])
    assert (result.rows, result.log_offsets) == (0, {})


@pytest.mark.parametrize(
    ("bad", "error", "details"),
    [
        (lambda: {"player": "x", "score": "many"}, SchemaMismatch, {"column": "score", "row": "250000"}),
        (lambda: {"player": None, "score": 1}, SchemaMismatch, {"column": "player", "row": "250000"}),
        (lambda: {"player": "x" * 17_000, "score": 1}, InvalidKey, {"row": "250000"}),
        (lambda: {"player": "x" * (17 << 20), "score": 1}, InvalidKey, {"row": "250000"}),
        (lambda: {"player": "x", "scor": 1}, SchemaMismatch, {"column": "scor", "row": "250000"}),
    ],
)
@pytest.mark.breadth
async def test_one_bad_row_behind_many_good_ones_writes_nothing(
    table: Table, bad: Callable[[], dict[str, Any]], error: type[Exception], details: dict[str, str]
) -> None:
    good = [{"player": f"p{i}", "score": i} for i in range(250_000)]
    with pytest.raises(error) as caught:
        await table.upsert([*good, bad()])
    assert caught.value.details == details  # type: ignore[attr-defined]
    assert await table.count() == 0


async def test_a_row_over_the_limit_is_refused_by_its_index(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("k", pa.int64()), ("v", pa.binary())]), primary_key=["k"])
    with pytest.raises(RequestTooLarge, match="row 1 ") as caught:
        await table.upsert([{"k": 1, "v": b"x"}, {"k": 2, "v": b"x" * (17 << 20)}])
    assert caught.value.details["row"] == "1"
    assert await table.count() == 0


@pytest.mark.breadth
async def test_rows_as_large_as_allowed_are_written_and_read(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("k", pa.int64()), ("v", pa.binary())]), primary_key=["k"])
    large = b"x" * ((16 << 20) - 1024)
    await table.upsert([{"k": k, "v": large} for k in range(3)])
    sizes = [len(row["v"]) for row in await table.scan().to_pylist()]
    assert sizes == [len(large)] * 3
    # Larger than one answer may be, so the keys are requested in parts.
    assert (await table.lookup(range(3))).num_rows == 3


async def test_requests_before_a_bad_batch_of_a_reader_are_written(table: Table) -> None:
    floats = pa.schema([("player", pa.string()), ("score", pa.float64())])
    good = pa.record_batch({"player": [f"p{i}" for i in range(REQUEST_ROWS)], "score": [1.0] * REQUEST_ROWS})
    bad = pa.record_batch({"player": ["x", "y"], "score": [2.0, 2.5]})
    with pytest.raises(SchemaMismatch, match='column "score", row 200001'):
        await table.upsert(pa.RecordBatchReader.from_batches(floats, [good, good, bad]))
    assert await table.count() == REQUEST_ROWS


async def test_an_unknown_column_is_refused_after_asking_the_server(table: Table) -> None:
    with pytest.raises(SchemaMismatch, match='no column "scores"; did you mean "score"'):
        await table.upsert(pa.table({"player": ["ann"], "scores": [1]}))
    with pytest.raises(UsageError, match="put a single row into a list"):
        await table.upsert({"player": "ann"})  # type: ignore[arg-type]


async def test_keys_are_deleted_and_those_without_a_row_passed_over(table: Table) -> None:
    await table.upsert([{"player": name, "score": 1} for name in ("ann", "bob", "cem", "dan")])
    assert (await table.delete("ann")).rows == 1
    assert (await table.delete(["bob", "nobody"])).rows == 2
    assert (await table.delete(pa.table({"player": ["cem"], "score": [5]}))).rows == 1
    assert await contents(table) == {"dan": 1}
    with pytest.raises(InvalidKey, match="row 1"):
        await table.delete(["dan", None])
    with pytest.raises(InvalidKey, match="row 1: the key has"):
        await table.delete(["dan", "x" * 17_000])
    assert await contents(table) == {"dan": 1}


@pytest.mark.breadth
async def test_many_keys_are_deleted_in_many_requests(table: Table) -> None:
    names = [f"p{i}" for i in range(REQUEST_ROWS + 10)]
    await table.upsert(pa.table({"player": names, "score": [1] * len(names)}))
    assert (await table.delete(pa.array(names[5:]))).rows == len(names) - 5
    assert await table.count() == 5


async def test_a_row_is_got_by_every_form_of_its_key(table: Table) -> None:
    await table.upsert([{"player": "ann", "score": 1}])
    for key in ("ann", ("ann",), {"player": "ann"}):
        assert await table.get(key) == {"player": "ann", "score": 1}
    assert await table.get("nobody") is None
    for many in (["ann"], {"ann"}, pa.table({"player": ["ann"]}), np.array(["ann"])):
        with pytest.raises(InvalidKey, match="get takes one key"):
            await table.get(many)


async def test_rows_are_looked_up_in_the_order_asked(table: Table) -> None:
    await table.upsert(pa.table({"player": [f"p{i}" for i in range(100)], "score": range(100)}))
    keys = ["p7", "nobody", "p99", "p7", "p0"]
    assert (await table.lookup(keys)).column("score").to_pylist() == [7, 99, 7, 0]
    filled = await table.lookup(keys, missing="null")
    assert filled.column("player").to_pylist() == keys
    assert filled.column("score").to_pylist() == [7, None, 99, 7, 0]
    assert (await table.lookup([])).schema == table.schema
    with pytest.raises(UsageError, match="missing must be"):
        await table.lookup(keys, missing="skip")  # type: ignore[call-overload]


async def test_many_keys_are_looked_up_in_many_requests(table: Table) -> None:
    await table.upsert(pa.table({"player": [f"p{i}" for i in range(25_000)], "score": range(25_000)}))
    order = np.random.default_rng(7).permutation(30_000)
    found = await table.lookup([f"p{i}" for i in order])
    assert found.column("score").to_pylist() == [i for i in order if i < 25_000]
    filled = await table.lookup([f"p{i}" for i in order], missing="null")
    assert filled.column("score").to_pylist() == [i if i < 25_000 else None for i in order]


async def test_keys_of_many_columns_are_looked_up_and_deleted(client: Client, name: str) -> None:
    schema = pa.schema([("value", pa.string()), ("at", pa.timestamp("us", "UTC")), ("sensor", pa.int32())])
    table = await client.create_table(name, schema, primary_key=["sensor", "at"])
    noon = pd.Timestamp("2020-01-01T12:00Z").to_pydatetime()
    await table.upsert([{"sensor": 1, "at": noon, "value": "a"}, {"sensor": 2, "at": noon, "value": "b"}])
    assert (await table.get((2, noon)) or {})["value"] == "b"
    assert (await table.get({"at": noon, "sensor": 1}) or {})["value"] == "a"
    with pytest.raises(InvalidKey, match=r"\(sensor, at\)"):
        await table.get(1)
    await table.delete([(1, noon)])
    assert await table.count() == 1
