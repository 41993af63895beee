"""Options of a table that change: at once, for running work too, durably, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidOption, StartFrom, StopAt, UsageError, connect, sync
from tests.support.bases import SOON, await_bases, bases_on_disk, is_of_bases
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import Client

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
FIXED = {
    "delete_behavior": ("default", "disable"),
    "compression": ("lz4", "zstd"),
    "merge_engine": ("last_row", "first_row"),
}


@pytest.fixture
def maintained(tmp_path: Path) -> Iterator[ServerProcess]:
    """Runs a server with continuous maintenance of changelogs and bases."""
    with ServerProcess(tmp_path / "data", *SOON, "--set", "log_maintenance_seconds=0.05") as server:
        yield server


def rows(keys: range, value: str = "v") -> pa.Table:
    return pa.table({"k": keys, "v": [value] * len(keys)}, schema=SCHEMA)


def earliest(table: sync.Table) -> int | None:
    """Returns the offset of the oldest change in a table of one bucket. None if it has no change."""
    found = table.changes(StartFrom.EARLIEST, StopAt.LATEST).limit(1).to_arrow()["_log_offset"].to_pylist()
    return found[0] if found else None


@pytest.mark.breadth
def test_a_shorter_retention_removes_changes_without_a_restart(maintained: ServerProcess) -> None:
    with sync.connect(maintained.url) as client:
        table = client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=1)
        table.upsert(rows(range(1000)))
        assert earliest(table) == 0
        altered = client.alter_table("test.t", log_retention_seconds=1)
        assert altered.options == {"log_retention_seconds": "1"}
        wait_until(lambda: earliest(table) is None, "the changes removed", timeout=60)
        altered = client.alter_table("test.t", log_retention_seconds=None)
        assert altered.options == {}
        table.upsert(rows(range(1000), "later"))
        assert table.count() == 1000
    maintained.stop()
    maintained.restart()
    with sync.connect(maintained.url) as client:
        table = client.table("test.t")
        assert table.options == {}
        assert earliest(table) is not None


@pytest.mark.breadth
def test_the_ages_of_changes_are_known_as_precisely_as_a_shorter_retention_needs(maintained: ServerProcess) -> None:
    with sync.connect(maintained.url) as client:
        table = client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=1)
        table.upsert(rows(range(10)))
        client.alter_table("test.t", log_retention_seconds=3)
        writes = iter(range(10**9))

        def is_trimmed_while_written() -> bool:
            # New changes all the time: without marks between them, the server would have to keep all of them.
            table.upsert(rows(range(10), f"v{next(writes)}"))
            return (earliest(table) or 0) > 10

        wait_until(is_trimmed_while_written, "old changes removed beside new ones", timeout=60)


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_columnar_base_comes_and_goes_with_its_option(maintained: ServerProcess) -> None:
    async with connect(maintained.url) as client:
        table = await client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=2)
        await table.upsert(rows(range(20_000)))
        expected = (await table.scan().ordered().to_arrow()).to_pydict()
        for _ in range(2):
            await client.alter_table("test.t", columnar_base="eager")
            await await_bases(table)
            assert (await table.scan().ordered().to_arrow()).to_pydict() == expected
            async with table.scan().with_chunk(rows=100).stream() as running:
                first = await anext(running)
                await client.alter_table("test.t", columnar_base="off")
                assert not is_of_bases(await table.scan().explain())
                rest = [batch async for batch in running]
            assert sum(map(len, (first, *rest))) == 20_000

            async def is_gone() -> bool:
                return not any(bases_on_disk(maintained.data_dir, "test.t").values())

            await await_until(is_gone, "the bases removed from disk")
            assert (await table.scan().ordered().to_arrow()).to_pydict() == expected


@pytest.mark.asyncio
async def test_a_base_from_before_a_change_and_a_kill_is_never_read_with_its_old_rows(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *SOON) as server:
        async with connect(server.url) as client:
            table = await client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=1, columnar_base="eager")
            await table.upsert(rows(range(20_000), "old"))
            await await_bases(table)
            await client.alter_table("test.t", columnar_base="off")
        server.kill()
        server.restart()
        async with connect(server.url) as client:
            table = await client.table("test.t")
            await table.upsert(rows(range(20_000), "new"))
            await client.alter_table("test.t", columnar_base="eager")
            await await_bases(table)
            assert set((await table.scan().to_arrow())["v"].to_pylist()) == {"new"}


@pytest.mark.asyncio
async def test_writes_that_change_nothing_are_changes_once_row_deduplicate_is_off(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)
    first = await table.upsert(rows(range(10)))
    assert (await table.upsert(rows(range(10)))).log_offsets == first.log_offsets
    await client.alter_table(name, row_deduplicate=False)
    for write in (rows(range(10)), rows(range(1))):
        before = await table.log_offsets()
        after = (await table.upsert(write)).log_offsets
        assert after[0] > before[0]
    await client.alter_table(name, row_deduplicate=True)
    before = await table.log_offsets()
    assert (await table.upsert(rows(range(10)))).log_offsets == before


@pytest.mark.asyncio
async def test_options_that_cannot_change_are_refused_and_nothing_else_of_the_request_is_done(
    client: Client, name: str
) -> None:
    await client.create_table(name, SCHEMA, primary_key=["k"])
    for option, (_, other) in FIXED.items():
        options: dict[str, Any] = {"columnar_base": "off", option: other}
        with pytest.raises(InvalidOption, match=f'"{option}" cannot change .* copy the rows') as caught:
            await client.alter_table(name, add_columns=pa.schema([("w", pa.int8())]), **options)
        assert caught.value.details == {"option": option}
    with pytest.raises(InvalidOption, match="did you mean"):
        await client.alter_table(name, columnar_bas="auto")
    with pytest.raises(UsageError, match="nothing to alter"):
        await client.alter_table(name)
    table = await client.table(name)
    assert (table.options, table.schema.names) == ({}, ["k", "v"])


@pytest.mark.asyncio
async def test_options_columns_and_indexes_change_together(client: Client, name: str) -> None:
    await client.create_table(name, SCHEMA, primary_key=["k"])
    altered = await client.alter_table(
        name, add_columns=pa.schema([("w", pa.int8())]), add_indexes=["w"], log_retention_bytes=1 << 30
    )
    assert altered.schema.names == ["k", "v", "w"]
    assert altered.indexes == (("w",),)
    assert altered.options == {"log_retention_bytes": str(1 << 30)}
