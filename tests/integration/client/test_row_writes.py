"""Few rows written at once by many callers: each call ends as if it were alone, whatever it shares a request with."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    Client,
    ColumnLocked,
    ConnectionFailed,
    InvalidRequest,
    ScanSource,
    SchemaMismatch,
    StartFrom,
    StopAt,
    TableNotFound,
    agg,
    connect,
)
from aio_client.testing import Fault, FaultProxy
from tests.support.examples import FACTOR
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from aio_client import Table, WriteResult
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


keys = pytest.mark.parametrize("key", [["k"], []], ids=["upserts", "appends"])


async def put(table: Table, rows: list[dict[str, Any]]) -> WriteResult:
    """Upserts rows, or appends them to a table without a primary key."""
    return await (table.upsert(rows) if table.primary_key else table.append(rows))


async def history(table: Table) -> list[dict[str, Any]]:
    scan = table.scan().with_source(ScanSource.LOG).with_row_kind()
    return await scan.start_from(StartFrom.EARLIEST).stop_at(StopAt.LATEST).to_pylist()


async def contents(table: Table) -> list[dict[str, Any]]:
    return sorted(await table.scan().to_pylist(), key=lambda row: tuple(map(str, row.values())))


@keys
@pytest.mark.parametrize("bucket_key", [[], ["k"]])
async def test_offsets_are_those_of_the_buckets_that_the_call_has_written(
    client: Client, name: str, key: list[str], bucket_key: list[str]
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=key, bucket_key=bucket_key, buckets=5)
    results = await asyncio.gather(*(put(table, [{"k": number, "v": number}]) for number in range(40)))
    places = {row["k"]: (row["_bucket"], row["_log_offset"]) for row in await history(table)}
    for number, result in enumerate(results):
        (bucket, offset), *others = result.log_offsets.items()
        assert (result.rows, others) == (1, [])
        assert places[number][0] == bucket
        assert places[number][1] < offset


@pytest.mark.parametrize("bucket_key", [[], ["k"]])
async def test_concurrent_appends_share_requests_and_keep_the_order_of_the_calls(
    client: Client, name: str, bucket_key: list[str]
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=[], bucket_key=bucket_key, buckets=2)
    await asyncio.gather(*(table.append([{"k": number % 3, "v": number}]) for number in range(200)))
    changes = await history(table)
    assert sorted(change["v"] for change in changes) == list(range(200))
    for place in range(3) if bucket_key else range(2):
        column = "k" if bucket_key else "_bucket"
        order = [change["v"] for change in changes if change[column] == place]
        assert order == sorted(order)
    # The rows of one request in a bucket have one commit time.
    assert len({(change["_bucket"], change["_commit_timestamp"]) for change in changes}) <= 20


async def test_rows_of_older_shapes_are_written_whatever_was_added(client: Client, name: str) -> None:
    """The server writes no rows of this table one by one any more, and the caller does not know."""
    old = await client.create_table(name, SCHEMA, primary_key=["k"])
    await old.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 2}])
    await client.alter_table(name, add_columns=pa.schema([("late", pa.list_(pa.int8()))]))
    await asyncio.gather(old.upsert([{"k": 1, "v": 3}]), old.upsert([{"k": 3, "v": 3}]), old.delete(2))
    assert await contents(old) == [{"k": 1, "v": 3, "late": None}, {"k": 3, "v": 3, "late": None}]


async def test_callers_of_a_table_that_was_created_again_write_to_the_new_one(client: Client, name: str) -> None:
    old = await client.create_table(name, SCHEMA, primary_key=["k"])
    await old.upsert([{"k": 0, "v": 0}])
    await client.drop_table(name)
    await client.create_table(name, pa.schema([("k", pa.int64()), ("v", pa.float64())]), primary_key=["k"])
    await asyncio.gather(*(old.upsert([{"k": key, "v": 1}]) for key in range(3)), old.delete(9))
    assert await contents(old) == [{"k": key, "v": 1.0} for key in range(3)]


@pytest.mark.parametrize("act", ["gone", "locked"])
async def test_each_caller_has_an_error_of_its_own(client: Client, name: str, act: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    if act == "gone":
        await client.drop_table(name)
    else:
        await table.lock_columns(["v"], owner="other")
    calls = [table.upsert([{"k": key, "v": 1}, {"k": -key, "v": 1}]) for key in range(10)]
    results = await asyncio.gather(*calls, *(table.delete(key) for key in range(10)), return_exceptions=True)
    assert {type(result) for result in results} == {TableNotFound if act == "gone" else ColumnLocked}
    assert len(set(map(id, results))) == 20
    if act == "locked":
        assert await contents(table) == []


@pytest.mark.parametrize("given_up", [0, 1, 5])
async def test_a_caller_that_gives_up_takes_nothing_from_the_others(client: Client, name: str, given_up: int) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    for turns in range(8):
        tasks = [asyncio.create_task(table.upsert([{"k": key, "v": turns}])) for key in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        # On a slow machine, the call may have its answer already.
        was_given_up = tasks[given_up].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results.pop(given_up), asyncio.CancelledError) == was_given_up
        assert not [result for result in results if isinstance(result, BaseException)]
        rows = {row["k"]: row["v"] for row in await contents(table)}
        assert all(rows[key] == turns for key in range(10) if key != given_up)


@keys
@pytest.mark.parametrize("direction", ["to_client", "to_server"])
@pytest.mark.seeds
@pytest.mark.represented_by("to_client-upserts")
async def test_calls_are_applied_once_wherever_the_connection_breaks(
    shared_server: ServerProcess, client: Client, name: str, key: list[str], direction: Any
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=key, buckets=3, row_deduplicate=False)
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address) as cut:
        own = await cut.table(name)
        await put(own, [{"k": -1, "v": 0}])
        for turn in range(10 * FACTOR):
            proxy.apply(Fault("reset", after_bytes=25 * turn + 1, direction=direction))
            calls = [put(own, [{"k": number, "v": 10 * turn + number}]) for number in range(8)]
            bad = put(own, [{"k": 5, "v": "text"}])
            *results, refused = await asyncio.gather(*calls, bad, return_exceptions=True)
            assert isinstance(refused, SchemaMismatch)
            assert not [result for result in results if isinstance(result, BaseException)]
    found = [(row["k"], row["v"]) for row in await history(table) if row["_change_type"] != "-U"]
    assert sorted(found) == sorted([(-1, 0), *((k, 10 * turn + k) for k in range(8) for turn in range(10 * FACTOR))])


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.breadth
async def test_writes_of_many_tasks_are_merged_each_as_if_it_were_alone(
    client: Client, name: str, buckets: int
) -> None:
    schema = pa.schema([("k", pa.int64()), ("total", pa.int16()), ("rows", pa.int64()), ("mean", pa.float64())])
    table = await client.create_table(
        name,
        schema,
        primary_key=["k"],
        buckets=buckets,
        merge_engine="aggregate",
        aggregators={"total": agg.sum(), "rows": agg.count(), "mean": agg.avg()},
        indexes=["total"],
    )
    drawn = random.Random(buckets)
    written: list[tuple[int, int]] = []
    refused: list[str | None] = []
    unsure: set[int] = set()

    async def write(task: int) -> None:
        for _ in range(10):
            # A row of 30,000 fits only where no other is.
            rows = [(drawn.randrange(60), drawn.choice([1, -1, 2, 30_000])) for _ in range(drawn.choice((1, 1, 1, 3)))]
            try:
                await table.upsert([{"k": k, "total": value, "rows": 1, "mean": value} for k, value in rows])
            except InvalidRequest as error:
                refused.append(error.details.get("column"))
                # A call with several rows may have been written in part: see its docstring.
                if len(rows) > 1:
                    unsure.update(k for k, _ in rows)
            else:
                written.extend(rows)

    await asyncio.gather(*map(write, range(20)))
    assert set(refused) == {"total"}
    found = {row["k"]: row for row in await table.scan().to_pylist()}
    sure = found.keys() - unsure
    assert sure
    for key in sure:
        values = [value for k, value in written if k == key]
        assert (found[key]["total"], found[key]["rows"]) == (sum(values), len(values))
        assert found[key]["mean"] == sum(values) / len(values)
    assert all(bucket.is_consistent for bucket in await client.check_table(name))


async def test_each_of_the_writes_that_share_a_request_is_a_change(client: Client, name: str) -> None:
    table = await client.create_table(name, pa.schema([("k", pa.int64()), ("v", pa.int64())]), primary_key=["k"])
    await asyncio.gather(*(table.upsert([{"k": n % 3, "v": n}]) for n in range(30)))
    await asyncio.gather(*(table.delete(0) for _ in range(5)))
    changes = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_pylist()
    for key in range(3):
        after = [change["v"] for change in changes if change["k"] == key and change["_change_type"] in ("+I", "+U")]
        assert after == list(range(key, 30, 3))
    assert [change["v"] for change in changes if change["_change_type"] == "-D"] == [27]


@pytest.mark.one_process
async def test_a_write_without_an_answer_is_not_sent_in_another_form(
    shared_server: ServerProcess, client: Client, name: str
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], row_deduplicate=False)
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address) as cut:
        own = await cut.table(name)
        await own.upsert([{"k": 0, "v": 0}])
        proxy.apply(Fault("stall", direction="to_client"))
        write = asyncio.create_task(own.upsert([{"k": 1, "v": 1}]))
        await await_until(partial(has_row, table, 1), "the server has written the row")
        # From now on, the table takes no encoded rows.
        await client.alter_table(name, add_columns=pa.schema([("late", pa.list_(pa.int8()))]))
        proxy.apply(Fault("reset"))
        with pytest.raises(ConnectionFailed, match="may have been written"):
            await write
        await own.upsert([{"k": 2, "v": 2}])
    changes = [(row["_change_type"], row["k"]) for row in await history(await client.table(name))]
    assert sorted(changes) == [("+I", 0), ("+I", 1), ("+I", 2)]


async def has_row(table: Table, key: int) -> bool:
    return await table.get(key) is not None
