"""Arguments of a wrong type raise an error that names the argument and the value, never a bare TypeError."""

from __future__ import annotations

import datetime as dt
import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import LogOffsets, ScanKvError, StartFrom, StopAt, UsageError, col, connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("league", pa.string()), ("n", pa.int64()), ("v", pa.int64())])
ROW = [{"league": "a", "n": 1, "v": 1}]
WRONG: list[Any] = [
    *(1, -1, None, 1.5, b"x", "nope", "", "\ud800", ["\ud800"], object(), [], {}, [1], {"a": 1}, (1, 2), True),
    *([None], {1: "x"}, float("nan"), dt.datetime.now(), [[]], [{}], {"league": 1}, range),
]

SCANS = (
    "select where limit key_range prefix with_buckets as_of read_path if_changed_since resume resume_from "
    "with_source start_from stop_at with_catch_up with_unmatched with_consumer_id"
).split()


def refined(method: str, *, changes: bool = False) -> Callable[[Client, Table, Any], object]:
    return lambda _, table, value: getattr(table.changes() if changes else table.scan(), method)(value)


def created(argument: str) -> Callable[[Client, Table, Any], object]:
    arguments: dict[str, Any] = {"name": "x.y", "schema": SCHEMA, "primary_key": ["z"]}
    return lambda client, _, value: client.create_table(**{**arguments, argument: value})


CALLS: dict[str, Callable[[Client, Table, Any], object]] = {
    **{f"scan.{name}": refined(name) for name in SCANS},
    **{f"changes.{name}": refined(name, changes=True) for name in SCANS},
    "scan.with_shard(i)": lambda _, table, value: table.scan().with_shard(value, 2),
    "scan.with_shard(n)": lambda _, table, value: table.scan().with_shard(0, value),
    "scan.with_chunk(rows)": lambda _, table, value: table.scan().with_chunk(rows=value),
    "scan.with_chunk(bytes)": lambda _, table, value: table.scan().with_chunk(bytes=value),
    "scan.key_range(end)": lambda _, table, value: table.scan().key_range(None, value),
    "scan.key_range(inclusive)": lambda _, table, value: table.scan().key_range(inclusive=value),
    "scan(columns)": lambda _, table, value: table.scan(value),
    "scan(where)": lambda _, table, value: table.scan(where=value),
    "scan(limit)": lambda _, table, value: table.scan(limit=value),
    "changes(start)": lambda _, table, value: table.changes(value),
    "changes(stop)": lambda _, table, value: table.changes(stop=value),
    "changes(shard)": lambda _, table, value: table.changes(shard=value),
    "changes(consumer_id)": lambda _, table, value: table.changes(consumer_id=value),
    "get": lambda _, table, value: table.get(value),
    "lookup": lambda _, table, value: table.lookup(value),
    "lookup(missing)": lambda _, table, value: table.lookup([("a", 1)], missing=value),
    "delete": lambda _, table, value: table.delete(value),
    "delete(columns)": lambda _, table, value: table.delete([("a", 1)], columns=value),
    "upsert": lambda _, table, value: table.upsert(value),
    "upsert(columns)": lambda _, table, value: table.upsert(ROW, columns=value),
    "upsert(mode)": lambda _, table, value: table.upsert(ROW, mode=value),
    "upsert(if_version)": lambda _, table, value: table.upsert(ROW, if_version=value),
    "upsert(locks)": lambda _, table, value: table.upsert(ROW, locks=value),
    "count": lambda _, table, value: table.count(value),
    "top_n": lambda _, table, value: table.top_n(value, order_by="v"),
    "top_n(order_by)": lambda _, table, value: table.top_n(1, order_by=value),
    "top_n(columns)": lambda _, table, value: table.top_n(1, order_by="v", columns=value),
    "watch_top_n(every)": lambda _, table, value: table.watch_top_n(1, order_by="v", every=value),
    "watch_top_n(columns)": lambda _, table, value: table.watch_top_n(1, order_by="v", columns=value),
    "aggregate": lambda _, table, value: table.aggregate(value),
    "aggregate(functions)": lambda _, table, value: table.aggregate({"v": value}),
    "aggregate(group_by)": lambda _, table, value: table.aggregate({"v": "sum"}, group_by=value),
    "snapshot(ttl)": lambda _, table, value: table.snapshot(value),
    "snapshot(same_view_as)": lambda _, table, value: table.snapshot(same_view_as=value),
    "snapshot(id)": lambda _, table, value: table.snapshot(id=value),
    "writer(id)": lambda _, table, value: table.writer(value),
    "writer(columns)": lambda _, table, value: table.writer(columns=value),
    "undo(writer_id)": lambda _, table, value: table.undo(value, LogOffsets.of({0: 0}, "x")),
    "undo(to_offsets)": lambda _, table, value: table.undo("w", value, any_incarnation=True),
    "undo(locks)": lambda _, table, value: table.undo("w", {0: 0}, any_incarnation=True, locks=value),
    "lock_columns": lambda _, table, value: table.lock_columns(value, owner="x"),
    "lock_columns(owner)": lambda _, table, value: table.lock_columns(["v"], owner=value),
    "lock_columns(ttl)": lambda _, table, value: table.lock_columns(["v"], owner="x", ttl=value),
    "lock_columns(take_over)": lambda _, table, value: table.lock_columns(["v"], owner="x", take_over=value),
    "reset_consumer": lambda _, table, value: table.reset_consumer(value, StartFrom.FULL),
    "reset_consumer(start)": lambda _, table, value: table.reset_consumer("c", value),
    "delete_consumer": lambda _, table, value: table.delete_consumer(value),
    "StartFrom.offsets": lambda _, table, value: StartFrom.offsets(value),
    "StopAt.offsets": lambda _, table, value: StopAt.offsets(value),
    "StartFrom.last": lambda _, table, value: StartFrom.last(value),
    "StartFrom.timestamp": lambda _, table, value: StartFrom.timestamp(value),
    "LogOffsets.from_json": lambda _, table, value: LogOffsets.from_json(value),
    "client.table": lambda client, _, value: client.table(value),
    "client.drop_table": lambda client, _, value: client.drop_table(value),
    **{f"create_table({name})": created(name) for name in ("name", "schema", "primary_key", "buckets", "bucket_key")},
    "create_table(indexes)": created("indexes"),
    "create_table(aggregators)": lambda client, _, value: client.create_table(
        "x.y", SCHEMA, primary_key=["z"], merge_engine="aggregate", aggregators=value
    ),
    "alter_table": lambda client, _, value: client.alter_table(value, add_indexes=["v"]),
    "alter_table(add_columns)": lambda client, _, value: client.alter_table("x.y", add_columns=value),
    "alter_table(drop_indexes)": lambda client, _, value: client.alter_table("x.y", drop_indexes=value),
    "check_table": lambda client, _, value: client.check_table(value),
    "transaction(id)": lambda client, _, value: client.transaction(value),
    "transaction(conflict)": lambda client, _, value: client.transaction(conflict=value),
    "transaction(writer)": lambda client, _, value: client.transaction(writer=value),
    "transaction_part": lambda client, _, value: client.transaction_part(value, "p"),
    "abort_transaction": lambda client, _, value: client.abort_transaction(value),
    "cancel_scan": lambda client, _, value: client.cancel_scan(value),
    "adopt_snapshot": lambda client, _, value: client.adopt_snapshot(value),
    "release_column_lock": lambda client, _, value: client.release_column_lock(value),
    "snapshots": lambda client, _, value: client.snapshots(value),
    "column_locks": lambda client, _, value: client.column_locks(value),
    "client.scan": lambda client, _, value: client.scan(value),
    "wait_ready": lambda client, _, value: client.wait_ready(value),
    "to_polars": lambda _, table, value: table.scan().to_polars(lazy=value),
    "connect": lambda _, table, value: connect(value),
    "connect(operation_timeout)": lambda _, table, value: connect(operation_timeout=value),
}


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["league", "n"])


@pytest.mark.parametrize("call", CALLS)
async def test_arguments_of_a_wrong_type_are_refused_by_name(client: Client, table: Table, call: str) -> None:
    for value in WRONG:
        with suppress(ScanKvError):
            result = CALLS[call](client, table, value)
            if inspect.iscoroutine(result):
                await result


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda table: table.scan().select(1), "select must be names of columns, not 1"),
        (lambda table: table.scan().select("v", [2]), r"select must be names of columns as valid text, not \[2\]"),
        (lambda table: table.scan(5), "columns must be names of columns, not 5"),
        (lambda table: table.scan().with_buckets(None), "with_buckets must be bucket numbers, not None"),
        (lambda table: table.lock_columns(["v"], owner=5), "owner must be text, not 5"),
    ],
)
async def test_the_message_says_what_is_wrong(table: Table, call: Callable[[Table], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(table)


async def test_a_lock_alone_is_no_list_of_locks(table: Table) -> None:
    async with table.lock_columns(["v"], owner="me") as lock:
        for single in (lock, lock.id):
            with pytest.raises(UsageError, match="locks must be a list of column locks or their ids"):
                await table.upsert(ROW, locks=single)  # type: ignore[arg-type]
        await table.upsert(ROW, locks=[lock])


async def test_what_was_not_awaited_says_so(client: Client, table: Table) -> None:
    with pytest.raises(UsageError, match=r"is not open yet: write `snapshot = await table\.snapshot\(\)"):
        table.scan().as_of(table.snapshot())  # type: ignore[arg-type]
    for unopened, attribute, text in (
        (connect("localhost:1"), "table", r"client = await connect\(\.\.\.\)"),
        (table.snapshot(), "id", r"snapshot = await table\.snapshot\(\)"),
        (table.lock_columns(["v"], owner="me"), "renew", r"lock = await table\.lock_columns"),
        (client.transaction(), "upsert", r"tx = await client\.transaction"),
    ):
        thing: Any = unopened
        with pytest.raises(UsageError, match=f"is not open yet: write `{text}.*before .{attribute}"):
            getattr(thing, attribute)
        with pytest.raises(UsageError, match=f"is not open yet: write `{text}.*sync is for code that blocks"), thing:
            pass
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            getattr(thing, "nonsense")  # noqa: B009  # no statement otherwise
        assert not hasattr(thing, attribute)
        assert not hasattr(thing, "_private")


async def test_keys_may_be_mappings_wherever_they_are_keys(client: Client, table: Table) -> None:
    await table.upsert([{"league": league, "n": n, "v": n} for league in ("blue", "red") for n in range(4)])
    key = {"league": "blue", "n": 2}

    async def found(scan: Any) -> list[tuple[str, int]]:
        return [(row["league"], row["n"]) for row in await scan.ordered().to_pylist()]

    assert await found(table.scan().prefix({"league": "blue"})) == [("blue", n) for n in range(4)]
    assert await found(table.scan().prefix({"n": 2, "league": "blue"})) == [("blue", 2)]
    between = table.scan().key_range(key, {"league": "red", "n": 1})
    assert await found(between) == [("blue", 2), ("blue", 3), ("red", 0), ("red", 1)]
    assert await found(table.scan().key_range({"league": "red"})) == [("red", n) for n in range(4)]
    assert (await table.lookup(key)).num_rows == 1
    async with client.transaction() as tx:
        assert await tx.get(table, key) == {**key, "v": 2}
        assert (await tx.get_for_update(table, key)).num_rows == 1
    for wrong, message in (
        ({"n": 2}, "values of n were given: give values of leading columns of the key"),
        ({}, "values of no column"),
        ({"leage": "blue"}, '"leage" is not a key column; did you mean "league"'),
        ({"league": None}, "null"),
        ({"league": 7}, "league"),
    ):
        with pytest.raises(ScanKvError, match=message):
            table.scan().prefix(wrong)
        with pytest.raises(ScanKvError, match=message):
            table.scan().key_range(wrong)
    assert await table.delete(key)
    assert await table.get(key) is None


async def test_expressions_of_nothing_are_refused() -> None:
    for value in WRONG:
        for make in (col, col("v").is_in, col("v").__gt__):
            with suppress(ScanKvError):
                make(value)
