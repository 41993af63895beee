"""Conditional writes are refused, without writing anything, if one of their keys has changed since it was read."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    InvalidRequest,
    PositionExpired,
    PositionOutOfRange,
    Table,
    UsageError,
    WriteConflict,
    connect,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aio_client import Client

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


async def made(client: Client, name: str, **options: Any) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3, **options)
    await table.upsert(rows(range(30), 0))
    return table


def rows(keys: range | list[int], value: int) -> list[dict[str, Any]]:
    return [{"k": key, "v": value} for key in keys]


async def content(table: Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in await table.scan().to_pylist()}


async def version(table: Table, keys: list[int]) -> Mapping[int, int]:
    return (await table.lookup(keys, with_version=True)).log_offsets


async def test_a_write_of_what_was_read_is_refused_when_it_has_changed_and_nothing_is_written(
    client: Client, name: str
) -> None:
    table = await made(client, name)
    keys = list(range(12))
    read = await table.lookup(keys, with_version=True)
    assert read.rows.num_rows == 12
    assert sorted(read.log_offsets) == [0, 1, 2]
    written = await table.upsert(rows([3], 7))
    before = await content(table)
    with pytest.raises(WriteConflict, match=r"1 of \d+ keys? changed") as caught:
        await table.upsert(rows(keys, 1), if_version=read.log_offsets)
    assert caught.value.details["bucket"] == str(next(iter(written.log_offsets)))
    assert caught.value.details["keys"] == "1"
    with pytest.raises(WriteConflict):
        await table.delete(keys, if_version=read.log_offsets)
    assert await content(table) == before
    # After reading again, the write succeeds.
    again = await table.upsert(rows(keys, 1), if_version=await version(table, keys))
    assert await content(table) == before | dict.fromkeys(keys, 1)
    # The answer to a write is a version as well.
    await table.delete(keys, if_version=again.log_offsets)
    assert await content(table) == dict.fromkeys(range(12, 30), 0)


async def test_changes_of_other_keys_and_rewrites_without_a_change_are_no_conflict(client: Client, name: str) -> None:
    table = await made(client, name)
    read = await version(table, [1, 2])
    await table.upsert(rows(range(10, 30), 5))
    await table.upsert(rows([1, 2], 0))
    await table.upsert(rows([1, 2], 9), if_version=read)
    assert await table.get(1) == {"k": 1, "v": 9}


async def test_a_row_is_inserted_only_if_nobody_else_has(client: Client, name: str) -> None:
    table = await made(client, name)
    absent = await version(table, [100])
    assert len(absent) == 1
    await table.upsert(rows([100], 1), if_version=absent)
    with pytest.raises(WriteConflict):
        await table.upsert(rows([100], 2), if_version=absent)
    # Deleting and inserting the same row again is a change.
    present = await version(table, [100])
    await table.delete([100])
    await table.upsert(rows([100], 1))
    with pytest.raises(WriteConflict):
        await table.delete([100], if_version=present)


async def test_the_offsets_of_a_scan_are_a_version(client: Client, name: str) -> None:
    table = await made(client, name)
    async with table.scan().stream() as stream:
        async for _ in stream:
            pass
        read = stream.log_offsets
    await table.upsert(rows(range(30), 1), if_version=read)
    with pytest.raises(WriteConflict):
        await table.upsert(rows(range(30), 2), if_version=read)


async def test_a_conflict_is_found_in_many_changes_of_an_upsert_changelog(client: Client, name: str) -> None:
    table = await made(client, name, changelog="upsert")
    read = await version(table, [1, 2, 3])
    for value in range(5):
        await table.upsert(rows(range(100, 5000), value))
    await table.upsert(rows([1], 1), if_version=read)
    await table.delete([2])
    with pytest.raises(WriteConflict):
        await table.upsert(rows([2, 3], 1), if_version=read)


async def test_what_cannot_be_checked_is_refused_with_the_reason(client: Client, name: str) -> None:
    table = await made(client, name)
    read = dict(await version(table, list(range(30))))
    with pytest.raises(InvalidRequest, match="no version of it"):
        await table.upsert(rows(range(30), 1), if_version={0: read[0]})
    with pytest.raises(PositionOutOfRange):
        await table.upsert(rows(range(30), 1), if_version=read | {0: read[0] + 1000})
    unlogged = await made(client, name + "n", changelog="none")
    with pytest.raises(InvalidRequest, match="no changelog"):
        await unlogged.upsert(rows([1], 1), if_version=await version(unlogged, [1]))
    for bad in ({}, {0: "1"}, {"0": 1}, {0: None}):
        with pytest.raises(UsageError, match="if_version"):
            await table.upsert(rows([1], 1), if_version=bad)  # type: ignore[arg-type]
    others: list[Any] = [[], pa.table({"k": range(200_000), "v": range(200_000)})]
    for data in others:
        with pytest.raises(UsageError, match="one request"):
            await table.upsert(data, if_version=read)
    assert set((await content(table)).values()) == {0}


async def test_a_version_that_the_changelog_has_forgotten_is_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "log_maintenance_seconds=0.05") as server:
        async with connect(server.url) as client:
            options: dict[str, Any] = {"primary_key": ["k"], "buckets": 1, "log_retention_bytes": 1000}
            table = await client.create_table("test.t", SCHEMA, **options)
            await table.upsert(rows([1], 0))
            read = await version(table, [1])
            values = itertools.count()

            async def is_forgotten() -> bool:
                await table.upsert(rows(range(100, 3000), next(values)))
                try:
                    # Writing the same row is not a change.
                    await table.upsert(rows([1], 0), if_version=read)
                except PositionExpired:
                    return True
                return False

            await await_until(is_forgotten, "the old changes were removed", timeout=60)
