"""Columns that are renamed, dropped, widened, added with defaults and reordered, under all that reads or writes."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    ColumnLocked,
    SchemaMismatch,
    StartFrom,
    StopAt,
    UsageError,
    col,
    connect,
    sync,
)
from scankv.v1 import write_pb2
from tests.support.bases import SOON, is_of_bases
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal

if TYPE_CHECKING:
    from pathlib import Path

FIRST = pa.schema(
    [
        ("k", pa.int64()),
        ("n", pa.int32()),
        ("text", pa.string()),
        ("price", pa.decimal128(6, 2)),
        ("day", pa.date32()),
    ]
)
CHANGES: dict[str, Any] = {
    "rename_columns": {"n": "text", "text": "n"},
    "column_types": {"n": pa.int64(), "price": pa.decimal128(12, 2), "day": pa.timestamp("us")},
    "add_columns": pa.schema([("more", pa.string())]),
    "column_defaults": {"more": "old"},
    "column_order": ["more", "k", "day", "price", "text", "n"],
}
"""The names of two columns are swapped, so that reading by name or by place would be wrong."""


def first(k: int) -> dict[str, Any]:
    price = Decimal(k) / 4 if k % 3 else None
    return {"k": k, "n": 10 * k, "text": f"t{k}", "price": price, "day": dt.date(2020, 1, 1) + dt.timedelta(k)}


def changed(row: dict[str, Any], more: str | None = "old") -> dict[str, Any]:
    """Returns a row of the first schema as a row after `CHANGES`."""
    day = dt.datetime.combine(row["day"], dt.time())
    return {"more": more, "k": row["k"], "day": day, "price": row["price"], "text": row["n"], "n": row["text"]}


def rows_of(table: sync.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().to_arrow().sort_by("k").to_pylist()
    return rows


def create(client: sync.Client, name: str, rows: int = 9, **arguments: Any) -> sync.Table:
    table = client.create_table(name, FIRST, primary_key=["k"], **{"buckets": 2, **arguments})
    table.upsert([first(k) for k in range(rows)])
    return table


def test_rows_of_every_version_are_read_in_every_way(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        create(client, "test.t", indexes=[["text"]])
        table = client.alter_table("test.t", **CHANGES)
        assert table.schema.names == CHANGES["column_order"]
        assert table.indexes == (("n",),)
        newer = {**changed(first(9)), "text": 2**40, "price": Decimal("9999999999.99")}
        table.upsert([newer])
        expected = [*(changed(first(k)) for k in range(9)), newer]
        for _ in range(2):
            assert rows_of(table) == expected
            assert [table.get(k) for k in range(10)] == expected
            assert table.lookup([3, 9]).to_pylist() == [expected[3], expected[9]]
            assert table.scan(where=col("text") >= 50).to_arrow().sort_by("k").to_pylist() == expected[5:]
            assert table.scan(["n", "k"], where=col("n") == "t4").to_arrow().to_pylist() == [{"n": "t4", "k": 4}]
            assert table.count(where=col("more") == "old") == 10
            top = table.top_n(3, "text").to_pylist()
            assert [row["k"] for row in top] == [9, 8, 7]
            assert all(bucket.is_consistent for bucket in client.check_table("test.t"))
            server.kill()
            server.restart()
            table = client.table("test.t")


def test_columns_whose_names_meant_others_are_not_deleted_by_clients_that_do_not_say_when(
    server: ServerProcess,
) -> None:
    with sync.connect(server.url) as client, Wire(server.url) as wire:
        old = create(client, "test.t", rows=3)
        new = client.alter_table("test.t", rename_columns={"n": "text", "text": "n"}, column_order=[*FIRST.names])
        rows = rows_of(new)
        key = pa.record_batch({"k": [1]}, schema=pa.schema([new.schema.field("k")]))
        for schema_id, said in ((0, '"n" cannot be deleted by name'), (9, "has no schema version 9")):
            request = write_pb2.DeleteRequest(
                table="test.t", keys=ipc_stream(key.schema, key), columns=["n"], schema_id=schema_id
            )
            assert said in refusal(wire.writes.Delete, request).message
        assert rows_of(new) == rows
        old.delete([0], columns=["n"])
        new.delete([1], columns=["n"])
        assert rows_of(new) == [{**rows[0], "text": None}, {**rows[1], "n": None}, rows[2]]


def test_nested_columns_gain_and_lose_fields(server: ServerProcess) -> None:
    first_type = pa.struct([("x", pa.int32()), ("name", pa.string())])
    second_type = pa.struct([("x", pa.int64()), ("more", pa.list_(pa.string()))])
    with sync.connect(server.url) as client:
        schema = pa.schema([("k", pa.int64()), ("s", first_type), ("l", pa.list_(first_type))])
        table = client.create_table("test.t", schema, primary_key=["k"], buckets=1)
        old = {"x": 1, "name": "a"}
        table.upsert([{"k": 1, "s": old, "l": [old, None]}, {"k": 2, "s": None, "l": None}])
        altered = client.alter_table("test.t", column_types={"s": second_type, "l": pa.list_(second_type)})
        table.upsert([{"k": 3, "s": old, "l": []}])
        altered.upsert([{"k": 4, "s": {"x": 2**40, "more": ["m"]}, "l": None}])
        new = {"x": 1, "more": None}
        expected = [
            {"k": 1, "s": new, "l": [new, None]},
            {"k": 2, "s": None, "l": None},
            {"k": 3, "s": new, "l": []},
            {"k": 4, "s": {"x": 2**40, "more": ["m"]}, "l": None},
        ]
        assert rows_of(altered) == expected
        assert [altered.get(k) for k in range(1, 5)] == expected
        changes = altered.changes(StartFrom.EARLIEST, StopAt.LATEST).to_arrow().select(["k", "s", "l"])
        assert changes.sort_by("k").to_pylist() == expected
        with pytest.raises(SchemaMismatch, match='"s" cannot have the field "name" again'):
            client.alter_table("test.t", column_types={"s": pa.struct([*second_type, ("name", pa.string())])})


def test_a_client_that_opened_the_table_before_deletes_the_columns_that_it_means(server: ServerProcess) -> None:
    with sync.connect(server.url) as client, sync.connect(server.url) as other:
        old = create(client, "test.t", rows=4)
        with client.transaction() as transaction:
            transaction.delete(old, [0], columns=["text"])
            new = other.alter_table("test.t", **CHANGES)
            transaction.delete(old, [1], columns=["text"])
        old.delete([2], columns=["text"])
        with old.writer() as writer:
            writer.delete([3], columns=["k", "text"])
        expected = [{**changed(first(k)), "n": None} for k in range(4)]
        assert rows_of(new) == expected
        # What is dropped need not be deleted, and the rows stay.
        with client.transaction() as transaction:
            transaction.delete(old, [0], columns=["n"])
            other.alter_table("test.t", drop_columns=["text"])
            transaction.delete(old, [1], columns=["k", "n"])
        old.delete([2], columns=["n"])
        assert rows_of(new) == [{name: value for name, value in row.items() if name != "text"} for row in expected]


def test_a_transaction_does_not_write_a_column_that_was_renamed_and_locked_meanwhile(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = create(client, "test.t", rows=1)

        def write(locks: ExitStack) -> None:
            with client.transaction() as transaction:
                transaction.upsert(table, [{"k": 0, "text": "staged"}], columns=["k", "text"])
                altered = client.alter_table("test.t", rename_columns={"text": "name"})
                locks.enter_context(altered.lock_columns(["name"], owner="writer-1"))

        with ExitStack() as locks, pytest.raises(ColumnLocked):
            write(locks)
        assert rows_of(client.table("test.t"))[0]["name"] == "t0"


def test_complete_rows_without_a_column_get_its_default(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        create(client, "test.t", rows=1)
        table = client.alter_table("test.t", column_defaults={"text": "none", "price": Decimal("1.50")})
        assert rows_of(table) == [first(0)]
        table.upsert([{"k": 1}, {"k": 2, "text": None}])
        table.upsert(pa.table({"k": pa.array([3]), "n": pa.array([3], pa.int32()), "day": pa.nulls(1, pa.date32())}))
        assert [(row["text"], row["price"]) for row in rows_of(table)[1:]] == [
            ("none", Decimal("1.50")),
            (None, Decimal("1.50")),
            ("none", Decimal("1.50")),
        ]
        table = client.alter_table("test.t", column_defaults={"text": None})
        table.upsert([{"k": 4}])
        assert rows_of(table)[4]["text"] is None


def test_defaults_of_unsigned_columns_may_be_greater_than_signed_ones(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        create(client, "test.t", rows=1)
        added = pa.schema([("bits", pa.uint64())])
        table = client.alter_table("test.t", add_columns=added, column_defaults={"bits": 2**64 - 1})
        assert rows_of(table) == [first(0) | {"bits": 2**64 - 1}]


def test_a_default_that_python_does_not_have_is_an_arrow_scalar(server: ServerProcess) -> None:
    defaults = {
        "far": pa.scalar(2_932_897, pa.date32()),
        "nanos": pa.scalar(1, pa.time64("ns")),
        "days": pa.scalar([2_932_897], pa.list_(pa.date32())),
        "near": pa.scalar(0, pa.date32()),
    }
    with sync.connect(server.url) as client:
        create(client, "test.t", rows=1)
        added = pa.schema([(name, default.type) for name, default in defaults.items()])
        table = client.alter_table("test.t", add_columns=added, column_defaults=defaults)
        assert table.column_defaults == defaults | {"near": dt.date(1970, 1, 1)}
        assert (
            client.alter_table("test.t", column_defaults=table.column_defaults).column_defaults["far"].value
            == 2_932_897
        )


@pytest.mark.asyncio
async def test_a_running_stream_of_changes_goes_on_with_the_new_columns(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        await client.create_table("test.t", FIRST, primary_key=["k"], buckets=1)
        table = await client.table("test.t")
        await table.upsert([first(0)])
        async with table.changes(StartFrom.EARLIEST).stream() as stream:
            rows = await anext(stream)
            assert rows.schema.names[4:] == FIRST.names
            assert list(stream.column_ids) == [1, 2, 3, 4, 5]
            await client.alter_table("test.t", **CHANGES)
            await table.upsert([first(1)])
            rows = await anext(stream)
            assert rows.to_pylist()[0].items() >= changed(first(1)).items()
            assert list(stream.column_ids) == [6, 1, 5, 4, 2, 3]
            assert stream.initial_defaults == {"more": pa.scalar("old")}


@pytest.mark.asyncio
@pytest.mark.parametrize("named", [{"columns": ["k", "text"]}, {"where": "text = 't1' or text = 't2'"}])
async def test_a_stream_that_names_a_column_ends_when_the_column_is_renamed(
    server: ServerProcess, named: dict[str, Any]
) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("test.t", FIRST, primary_key=["k"], buckets=1)
        await table.upsert([first(1)])
        changes = table.changes(StartFrom.EARLIEST, columns=named.get("columns"), where=named.get("where"))
        async with changes.stream() as stream:
            assert (await anext(stream)).num_rows == 1
            await client.alter_table("test.t", rename_columns={"text": "name"})
            await table.upsert([first(2)])
            with pytest.raises(SchemaMismatch, match='"text" was renamed to "name" while the stream was running'):
                await anext(stream)


def test_snapshots_keep_the_columns_that_they_were_taken_with(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = create(client, "test.t")
        with table.snapshot() as snapshot:
            altered = client.alter_table("test.t", **CHANGES)
            client.alter_table("test.t", drop_columns=["price"])
            assert altered.scan().as_of(snapshot).to_arrow().sort_by("k").to_pylist() == [first(k) for k in range(9)]


@pytest.mark.breadth
def test_columnar_bases_of_older_columns_are_read_by_id(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *SOON) as server, sync.connect(server.url) as client:
        table = create(client, "test.t", rows=20, columnar_base="eager")
        wait_until(lambda: is_of_bases(table.scan().explain()), "the bases are read", timeout=60)
        table = client.alter_table("test.t", **CHANGES)
        expected = [changed(first(k)) for k in range(20)]
        day = dt.datetime(2020, 1, 11)
        for _ in range(2):
            assert is_of_bases(table.scan().explain())
            assert rows_of(table) == expected
            assert table.count(where=col("text") >= 150) == 5
            assert table.count(where=col("text") == 2**40) == 0
            assert table.count(where=col("day") < day) == 10
            assert table.count(where=col("day") == day) == 1
            assert table.count(where=col("price") > Decimal("4.00")) == len([k for k in range(17, 20) if k % 3])
            assert table.count(where=col("more") == "old") == 20
            assert table.count(where=col("more").is_null()) == 0
            assert table.count(where=col("n").is_in(["t3", "t30"])) == 1
            written = {**changed(first(3)), "text": 2**40, "more": None}
            table.upsert([written])
            expected[3] = written
            assert rows_of(table) == expected
            assert table.count(where=col("text") == 2**40) == 1
            table.upsert([changed(first(3))])
            expected[3] = changed(first(3))
            server.kill()
            server.restart()
            wait_until(lambda: is_of_bases(table.scan().explain()), "the bases are read", timeout=60)
        client.alter_table("test.t", drop_columns=["more"])
        table = client.alter_table("test.t", add_columns=pa.schema([("more", pa.string())]))
        assert {row["more"] for row in rows_of(table)} == {None}


def test_a_locked_column_is_neither_renamed_nor_dropped(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = create(client, "test.t")
        with table.lock_columns(["text"], owner="writer-1"):
            for changes in ({"drop_columns": ["text"]}, {"rename_columns": {"text": "name"}}):
                with pytest.raises(ColumnLocked):
                    client.alter_table("test.t", **changes)
            client.alter_table("test.t", rename_columns={"n": "number"})
        client.alter_table("test.t", drop_columns=["text"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rename_columns": ["n"]}, "rename_columns must be a mapping by column name"),
        ({"rename_columns": {"n": 1}}, 'rename_columns must have text for column "n"'),
        ({"column_types": {"n": "int64"}}, "column_types must have a pyarrow type"),
        ({"column_defaults": {"n": object()}}, "is no value of an Arrow type"),
        ({"drop_columns": 5}, "drop_columns must be names of columns"),
        ({}, "there is nothing to alter"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(shared_server: ServerProcess, changes: Any, message: str) -> None:
    with sync.connect(shared_server.url) as client, pytest.raises(UsageError, match=message):
        client.alter_table("test.t", **changes)
