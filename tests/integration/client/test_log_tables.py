"""Tables without a primary key: rows are appended, read by scans and as changes, and never found by a key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import (
    InvalidKey,
    InvalidOption,
    InvalidRequest,
    LogOffsets,
    NoPrimaryKey,
    PositionExpired,
    SchemaMismatch,
    StartFrom,
    StopAt,
    connect,
)
from aio_client.mirror import mirror
from scankv.model.errors import error_for_reason
from scankv.v1 import lookup_pb2, scan_pb2, table_pb2, transaction_pb2, transaction_pb2_grpc, write_pb2
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.waiting import await_until
from tests.support.wire import Wire, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string()), ("v", pa.float64())])
distributions = pytest.mark.parametrize("bucket_key", [[], ["who"]], ids=["by_turns", "by_bucket_key"])


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    whos = [None if number % 11 == 0 else f"user {number % 10}" for number in numbers]
    return pa.table({"id": numbers, "who": whos, "v": [number / 4 for number in numbers]}, schema=SCHEMA)


async def made(client: Client, name: str, **options: Any) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=[], **{"buckets": 3, **options})


def ids(found: pa.Table) -> list[int]:
    numbers: list[int] = found["id"].to_pylist()
    return numbers


@distributions
async def test_a_bucket_keeps_the_order_of_appends(client: Client, name: str, bucket_key: list[str]) -> None:
    table = await made(client, name, bucket_key=bucket_key)
    for first in range(0, 600, 50):
        await table.append(rows(first, 50))
    await table.append(rows(600, 30_000))
    for bucket in range(3):
        ascending = ids(await table.scan().with_buckets(bucket).to_arrow())
        assert ascending == sorted(ascending)
        assert len(ascending) > 5000
        newest = ids(await table.scan().with_buckets(bucket).reverse().limit(7).to_arrow())
        assert newest == ascending[:-8:-1]
    last = await table.changes(StartFrom.last(5), StopAt.LATEST).to_arrow()
    assert last.num_rows == 5


@pytest.mark.breadth
async def test_a_predicate_on_the_bucket_key_reads_one_bucket(client: Client, name: str) -> None:
    table = await made(client, name, bucket_key=["who"], buckets=8)
    await table.append(rows(0, 1000))
    complete = await table.scan().to_arrow()
    async with table.snapshot() as pinned:
        for where, expected in (("who = 'user 3'", "user 3"), ("who IS NULL", None)):
            wanted = [
                number
                for number, who in zip(ids(complete), complete["who"].to_pylist(), strict=True)
                if who == expected
            ]
            assert await table.count(where=where) == len(wanted) > 80
            for scan in (table.scan(where=where), table.scan(where=where).as_of(pinned)):
                explanation = await scan.explain()
                assert len(explanation.buckets) == 1
                assert explanation.order == "ascending by log offset within each bucket, one bucket after another"
                assert ids(await scan.to_arrow()) == wanted
                assert ids(await scan.reverse().to_arrow()) == wanted[::-1]
                async with scan.stream() as stream:
                    assert [batch async for batch in stream]
                    assert stream.stats().rows_scanned < 500
            splits = await table.scan(where=where).as_of(pinned).splits(3)
            assert sorted(ids(pa.concat_tables([await split.to_arrow() for split in splits]))) == wanted
    assert len((await table.scan(where="v > 3").explain()).buckets) == 8


@pytest.mark.breadth
async def test_a_view_keeps_rows_that_retention_removes(tmp_path: Path) -> None:
    settings = ("--set", "log_maintenance_seconds=0.05")
    with ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url) as client:
            table = await made(client, "test.log", buckets=1, log_retention_bytes=1_100_000)
            for first in range(0, 20_000, 2000):
                await table.append(rows(first, 2000))
            async with table.scan().with_chunk(rows=100).stream() as stream, table.snapshot() as pinned:
                first_rows = await anext(aiter(stream))
                kept = await table.scan().as_of(pinned).to_arrow()
                for first in range(20_000, 200_000, 20_000):
                    await table.append(rows(first, 20_000))

                async def is_trimmed() -> bool:
                    # The snapshot holds the changes after it.
                    return await table.count() == 180_000

                await await_until(is_trimmed, "the oldest rows are removed")
                found = [first_rows, *[batch async for batch in stream]]
                assert len(ids(pa.Table.from_batches(found))) >= kept.num_rows > 0
                assert (await table.scan().as_of(pinned).to_arrow()).equals(kept)

            async def is_short() -> bool:
                return await table.count() < 150_000

            await await_until(is_short, "more rows are removed")
            await client.alter_table("test.log", log_retention_bytes=0)
            left = ids(await table.scan().to_arrow())
            assert left == list(range(left[0], 200_000))
            assert left[0] > 0
            assert await table.count() == len(left)
            assert ids(await table.changes(StartFrom.FULL, StopAt.LATEST).to_arrow()) == left
            with pytest.raises(PositionExpired):
                await table.changes(StartFrom.offsets(LogOffsets({0: 0})), StopAt.LATEST).to_arrow()
            server.kill()
            await asyncio.to_thread(server.restart)
            assert ids(await table.scan().to_arrow()) == left
            assert await table.count() == len(left)
            assert all(bucket.is_consistent for bucket in await client.check_table("test.log"))


@pytest.mark.breadth
async def test_retention_changes_the_version_of_a_result(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "log_maintenance_seconds=0.05") as server:
        async with connect(server.url) as client:
            table = await made(client, "test.log", buckets=1)
            await table.append(rows(0, 50))
            counted = await table.count_if_changed(None)
            assert counted is not None
            assert await table.count_if_changed(counted.version) is None
            top = await table.top_n(3, order_by="v", descending=False)
            assert ids(top) == [0, 1, 2]
            await client.alter_table("test.log", log_retention_seconds=1)

            async def is_empty() -> bool:
                return await table.count() == 0

            await await_until(is_empty, "all rows are removed")
            assert (await table.top_n(3, order_by="v", descending=False)).num_rows == 0
            assert (await table.scan().to_arrow()).num_rows == 0
            recounted = await table.count_if_changed(counted.version)
            assert recounted is not None
            assert recounted.value == 0
            await table.append(rows(50, 10))
            assert await table.count() == 10


async def test_a_transaction_appends_all_or_nothing(client: Client, name: str) -> None:
    table = await made(client, name)
    keyed = await client.create_table(f"{name}k", SCHEMA, primary_key=["id"])
    async with client.transaction(conflict="abort") as transaction:
        assert await transaction.append(table, rows(0, 10)) == 10
        await transaction.append(table, rows(10, 10_000))
        await transaction.append(table, rows(0, 10))
        await transaction.upsert(keyed, rows(0, 5))
        await table.append(rows(50_000, 10))
        assert await table.count() == 10
    found = ids(await table.scan().to_arrow())
    assert sorted(found) == sorted([*range(10), *range(10_010), *range(50_000, 50_010)])
    assert await keyed.count() == 5
    aborted = await client.transaction()
    await aborted.append(table, rows(0, 10))
    await aborted.abort()
    async with client.transaction(lock="keys") as locking:
        await locking.append(table, rows(60_000, 1))
    assert await table.count() == 10_031


async def test_columns_change_while_records_stay(client: Client, name: str) -> None:
    table = await made(client, name, buckets=1, bucket_key=["who"])
    await table.append(rows(0, 5))
    altered = await client.alter_table(
        name, add_columns=pa.schema([("team", pa.string())]), column_defaults={"team": "red"}, drop_columns=["v"]
    )
    await table.append(rows(5, 5))
    await altered.append([{"id": 10, "who": "x", "team": "blue"}])
    found = (await altered.scan(where="team IN ('red', 'blue')").to_arrow()).to_pylist()
    assert [(row["id"], row["team"]) for row in found] == [*((number, "red") for number in range(10)), (10, "blue")]
    renamed = await client.alter_table(name, rename_columns={"who": "name"})
    assert renamed.bucket_key == ["name"]
    await renamed.append([{"id": 11, "name": None}])
    assert [row["name"] for row in await renamed.scan().to_pylist()][-2:] == ["x", None]
    with pytest.raises(SchemaMismatch, match="bucket key"):
        await client.alter_table(name, drop_columns=["name"])


async def test_invalid_rows_append_nothing(client: Client, name: str) -> None:
    table = await made(client, name, bucket_key=["who"])
    refused: list[tuple[Any, type[InvalidRequest], str]] = [
        ([{"id": 1}, {"id": None}], SchemaMismatch, "id"),
        ([{"id": 1, "wo": "x"}], SchemaMismatch, '"wo"'),
        ([{"id": 1, "who": "x" * 20_000}], InvalidKey, "16,384|16 KiB"),
        (rows(0, 2).append_column("_change_type", pa.array(["+I", "-D"])), NoPrimaryKey, r"row 1 must have \+I"),
    ]
    for data, error, message in refused:
        with pytest.raises(error, match=message):
            await table.append(data)
    assert await table.count() == 0
    await table.append(rows(0, 2).append_column("_change_type", pa.array(["+I", "+I"])))
    assert await table.count() == 2


CLIENT_CALLS: dict[str, Callable[[Client, Table], Any]] = {
    "upsert": lambda client, table: table.upsert(rows(0, 1)),
    "upsert of one row": lambda client, table: table.upsert([{"id": 1}]),
    "retract": lambda client, table: table.retract(rows(0, 1)),
    "delete": lambda client, table: table.delete([1]),
    "get": lambda client, table: table.get(1),
    "lookup": lambda client, table: table.lookup([1]),
    "watch_top_n": lambda client, table: table.watch_top_n(3, order_by="v"),
    "ordered": lambda client, table: table.scan().ordered(),
    "key_range": lambda client, table: table.scan().key_range(start=1),
    "prefix": lambda client, table: table.scan().prefix(1),
    "mirror": lambda client, table: mirror(table),
    "undo": lambda client, table: table.undo("w", LogOffsets({0: 0}), any_incarnation=True),
    "net changes": lambda client, table: table.changes(stop=StopAt.LATEST).with_catch_up("net").to_arrow(),
    "index": lambda client, table: client.alter_table(table.name, add_indexes=["v"]),
}


async def _made_call(call: Callable[[Client, Table], Any], client: Client, table: Table) -> None:
    result = call(client, table)
    if hasattr(result, "__await__"):
        await result


@pytest.mark.parametrize("call", CLIENT_CALLS)
async def test_what_needs_a_key_is_refused(client: Client, name: str, call: str) -> None:
    table = await made(client, name)
    with pytest.raises(NoPrimaryKey, match=f"table {name} has no primary key: "):
        await _made_call(CLIENT_CALLS[call], client, table)
    assert await table.count() == 0


@pytest.mark.parametrize("call", ["upsert", "delete", "retract", "get", "lookup", "get_for_update", "delete_all"])
async def test_what_needs_a_key_is_refused_in_a_transaction(client: Client, name: str, call: str) -> None:
    table = await made(client, name)
    transaction = await client.transaction()
    arguments = {"upsert": [[{"id": 1}]], "retract": [rows(0, 1)], "delete_all": []}.get(call, [1])
    with pytest.raises(NoPrimaryKey, match=f"table {name} has no primary key: "):
        await getattr(transaction, call)(table, *arguments)
    await transaction.abort()


async def test_rows_are_not_appended_to_a_table_with_a_key(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    with pytest.raises(InvalidRequest, match=r"has the primary key \(id\), so rows are not appended: use upsert"):
        await table.append(rows(0, 1))
    async with table.writer() as writer:
        with pytest.raises(InvalidRequest, match="use upsert"):
            await writer.append(rows(0, 1))


def _wire_calls(wire: Wire, name: str) -> dict[str, Callable[[], object]]:
    data = ipc_stream(SCHEMA, *rows(0, 1).to_batches())
    keys = ipc_stream(pa.schema([]), pa.RecordBatch.from_pylist([], pa.schema([])))
    transactions = transaction_pb2_grpc.TransactionServiceStub(wire.channel)
    token = transactions.BeginTransaction(transaction_pb2.BeginTransactionRequest(attempt="a" * 32)).token
    part = transaction_pb2.StageDeleteAllRequest(token=token, part="p", table=name)
    upsert, scan = write_pb2.UpsertRequest, scan_pb2.ScanKvRequest
    return {
        "columns": lambda: wire.writes.Upsert(upsert(table=name, rows=data, columns=["id"])),
        "overwrite": lambda: wire.writes.Upsert(upsert(table=name, rows=data, mode=write_pb2.WRITE_MODE_OVERWRITE)),
        "untracked": lambda: wire.writes.Upsert(upsert(table=name, rows=data, untracked=True)),
        "condition": lambda: wire.writes.Upsert(
            upsert(table=name, rows=data, unchanged_since=scan_pb2.LogOffsets(by_bucket={0: 0}))
        ),
        "delete": lambda: wire.writes.Delete(write_pb2.DeleteRequest(table=name, keys=keys)),
        "lookup": lambda: wire.lookups.Lookup(lookup_pb2.LookupRequest(table=name, keys=keys)),
        "encoded lookup": lambda: wire.lookups.Lookup(lookup_pb2.LookupRequest(table=name, encoded_keys=[b"x"])),
        "ordered": lambda: list(wire.scans.ScanKv(scan(table=name, ordered=True))),
        "net changes": lambda: list(wire.scans.ScanKv(_net_changes(name))),
        "delete all": lambda: transactions.StageDeleteAll(part),
        "lookup staged": lambda: transactions.LookupStaged(
            transaction_pb2.LookupStagedRequest(token=token, part="p", table=name, keys=keys)
        ),
        "get for update": lambda: transactions.GetForUpdate(
            transaction_pb2.GetForUpdateRequest(token=token, part="p", table=name, keys=keys)
        ),
        "undo": lambda: wire.writes.Undo(
            write_pb2.UndoRequest(table=name, writer="w", any_incarnation=True, log_offsets=scan_pb2.LogOffsets())
        ),
        "index": lambda: wire.tables.AlterTable(
            table_pb2.AlterTableRequest(name=name, add_indexes=[table_pb2.IndexColumns(columns=["v"])])
        ),
    }


def _net_changes(name: str) -> scan_pb2.ScanKvRequest:
    request = scan_pb2.ScanKvRequest(table=name)
    request.log.net_changes = True
    return request


async def test_the_server_refuses_what_needs_a_key(shared_server: ServerProcess, client: Client, name: str) -> None:
    await made(client, name)
    with Wire(shared_server.url) as wire:
        for what, call in _wire_calls(wire, name).items():
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.to_thread(call)
            refusal = refusal_of(caught.value)
            assert error_for_reason(refusal.reason) is NoPrimaryKey, what
            assert refusal.message.startswith(f"table {name} has no primary key: "), what


async def test_options_of_merged_rows_are_refused(client: Client, name: str) -> None:
    for option, value in (
        ("merge_engine", "first_row"),
        ("changelog", "upsert"),
        ("columnar_base", "auto"),
        ("delete_behavior", "ignore"),
    ):
        with pytest.raises(InvalidOption, match=f'"{option}" must be .* in a table without a primary key'):
            await made(client, name, **{option: value})
    await made(client, name)
    with pytest.raises(InvalidOption, match='"changelog" must be "full"'):
        await client.alter_table(name, changelog="none")
