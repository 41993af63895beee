"""The server dies while columns change: the table has the old columns and values or the new ones, completely."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, StartFrom, StopAt, connect
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("a", pa.int16()), ("b", pa.string()), ("c", pa.int16())]
)
OLD = {"k": pa.int64(), "a": pa.int16(), "b": pa.string(), "c": pa.int16()}

Row = dict[str, Any]

# By kind of change: the arguments of `alter_table`, the columns after it, what becomes of the row with the key 3, and
# what a new row of a key alone has.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, pa.DataType], Row, Row]] = {
    "add": (
        {"add_columns": pa.schema([("d", pa.int8())]), "column_defaults": {"d": 7}},
        {**OLD, "d": pa.int8()},
        {"k": 3, "a": 3, "b": "b3", "c": None, "d": 7},
        {"a": None, "b": None, "c": None, "d": 7},
    ),
    "swap": (
        {"rename_columns": {"a": "c", "c": "a"}},
        {"k": pa.int64(), "c": pa.int16(), "b": pa.string(), "a": pa.int16()},
        {"k": 3, "c": 3, "b": "b3", "a": None},
        {"c": None, "b": None, "a": None},
    ),
    "drop": (
        {"drop_columns": ["b"]},
        {"k": pa.int64(), "a": pa.int16(), "c": pa.int16()},
        {"k": 3, "a": 3, "c": None},
        {"a": None, "c": None},
    ),
    "drop and add again": (
        {"drop_columns": ["a"], "add_columns": pa.schema([("a", pa.int16())]), "column_defaults": {"a": 5}},
        {"k": pa.int64(), "b": pa.string(), "c": pa.int16(), "a": pa.int16()},
        {"k": 3, "b": "b3", "c": None, "a": 5},
        {"b": None, "c": None, "a": 5},
    ),
    "widen": (
        {"column_types": {"a": pa.int64()}},
        {**OLD, "a": pa.int64()},
        {"k": 3, "a": 3, "b": "b3", "c": None},
        {"a": None, "b": None, "c": None},
    ),
    "reorder": (
        {"column_order": ["c", "b", "a", "k"]},
        dict(reversed(OLD.items())),
        {"c": None, "b": "b3", "a": 3, "k": 3},
        {"c": None, "b": None, "a": None},
    ),
    "default and comment": (
        {"column_defaults": {"c": 9}, "column_comments": {"c": "the third"}},
        OLD,
        {"k": 3, "a": 3, "b": "b3", "c": None},
        {"a": None, "b": None, "c": 9},
    ),
}


async def check(table: Table, columns: dict[str, pa.DataType], third: Row, new: Row) -> None:
    """Writes a new row, and compares rows and changes."""
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == columns
    assert table.schema.names == list(columns)
    expected = {3: third, 10: {name: 10 if name == "k" else new[name] for name in columns}}
    await table.upsert([{"k": 10}])
    changes = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_pylist()
    for rows in (await table.scan().to_pylist(), changes):
        found = {row["k"]: {name: row[name] for name in columns} for row in rows}
        assert len(found) == 11
        assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.represented_by("add")
async def test_a_kill_during_a_change_of_columns_leaves_all_of_it_or_nothing(tmp_path: Path, kind: str) -> None:
    arguments, columns, third, new = CHANGES[kind]
    armed = tmp_path / "point"
    with ServerProcess(tmp_path / "data", wrapper=crashing(armed)) as server:
        for number, point in enumerate(("definition 1 before", "definition 1 after")):
            name = f"test.t{number}"
            async with connect(server.url, operation_timeout=2) as client:
                table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
                await table.upsert([{"k": key, "a": key, "b": f"b{key}"} for key in range(10)])
                armed.write_text(point)
                with pytest.raises(ConnectionFailed):
                    await client.alter_table(name, **arguments)
            await asyncio.to_thread(server.process.wait)
            assert not armed.exists(), f"the server did not reach {point}"
            server.restart()
            async with connect(server.url) as client:
                table = await client.table(name)
                if number == 0:
                    old = {"k": 3, "a": 3, "b": "b3", "c": None}
                    await check(table, OLD, old, {"a": None, "b": None, "c": None})
                    assert table.column_comments == {}
                    await table.delete([10])
                    table = await client.alter_table(name, **arguments)
                await check(table, columns, third, new)
                assert table.column_comments == arguments.get("column_comments", {})
                assert all(bucket.is_consistent for bucket in await client.check_table(name))
