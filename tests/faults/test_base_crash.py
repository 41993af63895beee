"""A server that has damaged bases, or no disk space for bases, never returns a wrong row."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from aio_client import DataLoss, ScanKvError, connect
from tests.support.bases import (
    SOON,
    WHATEVER_IT_WRITES,
    await_bases,
    base_path,
    bases_on_disk,
    built_at,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Scan, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
NAME = "test.based"
OTHER = "test.other"
ROWS = 100_000
"""Four batches of a base."""
ONCE_FILLED = (*SOON, "--set", f"base_min_rows={ROWS}")
NEVER_ANEW = (*ONCE_FILLED, "--set", "base_changed_share=10")
ANEW_FOR_FEW = (*WHATEVER_IT_WRITES, "--set", "base_changed_share=0.01")


def rows_of(keys: range, factor: int = 3) -> pa.Table:
    numbers = np.arange(keys.start, keys.stop, keys.step)
    return pa.table({"k": numbers, "v": numbers * factor, "text": [f"text {key}" for key in keys]}, schema=SCHEMA)


async def filled(client: Client) -> Table:
    """Creates a table of one bucket, which gets a base when it has all rows."""
    table = await client.create_table(NAME, SCHEMA, primary_key=["k"], buckets=1, columnar_base="auto")
    await table.upsert(rows_of(range(ROWS)))
    await await_bases(table)
    return table


async def read_until_error(scan: Scan, expected: pa.Table) -> ScanKvError | None:
    """Reads to the end, or to an error, which is returned. The rows before it must be the first expected rows."""
    batches: list[pa.RecordBatch] = []
    ended = None
    stream = scan.stream()
    try:
        while (batch := await anext(stream, None)) is not None:
            batches.append(batch)
    except ScanKvError as error:
        ended = error
    rows = pa.Table.from_batches(batches, expected.schema)
    assert rows.equals(expected if ended is None else expected.slice(0, rows.num_rows))
    return ended


def flip_a_bit(path: Path, place: float = 0.6) -> None:
    """Changes one bit of a file in place, as a disk does, also for processes that have mapped the file."""
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * place))
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 16]))


def cut_short(path: Path) -> None:
    """Truncates a file to half of its size."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def put_into_the_wrong_table(manifest: Path) -> None:
    """Replaces a base by that of the other table."""
    base = manifest.parent
    other = base_path(base.parents[5], OTHER)
    shutil.rmtree(base)
    shutil.copytree(other, base.parent / other.name)


async def await_only_base(server: ServerProcess, buckets: int) -> None:
    """Waits until each bucket has one complete base and nothing else."""

    async def alone() -> bool:
        found = bases_on_disk(server.data_dir, NAME)
        return len(found) == buckets and all(
            len(names) == 1 and not names[0].endswith(".tmp") for names in found.values()
        )

    await await_until(alone, f"one base for each bucket: {bases_on_disk(server.data_dir, NAME)}")


@pytest.mark.parametrize("name", ["rows.arrow", "keys.arrow"])
@pytest.mark.represented_by("rows.arrow")
async def test_a_bit_that_flips_under_a_server_is_data_loss_before_any_row_of_its_batch(
    tmp_path: Path, name: str
) -> None:
    with ServerProcess(tmp_path / "data", *NEVER_ANEW) as server:
        async with connect(server.url) as client:
            table = await filled(client)
            scan, damaged = table.scan().with_chunk(rows=1000), built_at(server.data_dir, NAME)
            expected = await scan.read_path("rocksdb").to_arrow()
            flip_a_bit(base_path(server.data_dir, NAME) / name)
            error = await read_until_error(scan.read_path("columnar"), expected)
            assert isinstance(error, DataLoss)
            assert "no row is lost: scan again" in str(error)
            # The second batch is the damaged one.
            assert error.resume_token is not None
            rest = await scan.resume_from(error.resume_token).to_arrow()
            assert rest.equals(expected.slice(32_768))
            assert (await scan.to_arrow()).equals(expected)
            await await_bases(table)
            assert await read_until_error(scan.read_path("columnar"), expected) is None
            await await_only_base(server, buckets=1)
            assert built_at(server.data_dir, NAME) != damaged
            assert not (await client.stats()).damaged_buckets


async def test_a_count_over_a_damaged_base_is_data_loss_and_then_right(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *NEVER_ANEW) as server:
        async with connect(server.url) as client:
            table = await filled(client)
            flip_a_bit(base_path(server.data_dir, NAME) / "rows.arrow")
            with pytest.raises(DataLoss, match="no row is lost"):
                await table.count("v >= 0 AND text <> 'x'")
            assert await table.count("v >= 0 AND text <> 'x'") == ROWS


async def test_a_base_found_damaged_during_a_rebuild_is_rebuilt_from_rocksdb(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data", *ONCE_FILLED, *ANEW_FOR_FEW) as server:
        async with connect(server.url) as client:
            table = await filled(client)
            await await_only_base(server, buckets=1)
            damaged = built_at(server.data_dir, NAME)
            flip_a_bit(base_path(server.data_dir, NAME) / "rows.arrow")
            await table.upsert(rows_of(range(0, ROWS, 7), factor=4))
            expected = await table.scan().read_path("rocksdb").to_arrow()
            async with table.scan().limit(2000).stream() as stream:
                # Scans make the server build a newer base. They stop before the damaged batch, which is not the first.
                await anext(stream)
            wait_until(lambda: "is no longer read, and is built again" in server.log, "the damage found")
            assert (await table.scan().to_arrow()).equals(expected)
            await await_bases(table)
            await await_only_base(server, buckets=1)
            assert built_at(server.data_dir, NAME) != damaged
            assert (await table.scan().read_path("columnar").to_arrow()).equals(expected)
            assert not (await client.stats()).damaged_buckets


@pytest.mark.parametrize("name", ["rows.arrow", "keys.arrow"])
@pytest.mark.represented_by("rows.arrow")
async def test_a_base_truncated_under_a_server_is_data_loss_and_rebuilt(tmp_path: Path, name: str) -> None:
    with ServerProcess(tmp_path / "data", *NEVER_ANEW) as server:
        async with connect(server.url) as client:
            table = await filled(client)
            expected = await table.scan().read_path("rocksdb").to_arrow()
            # This makes the server map the file and verify its checksum.
            assert await read_until_error(table.scan().read_path("columnar").with_chunk(rows=1000), expected) is None
            await await_only_base(server, buckets=1)
            damaged = built_at(server.data_dir, NAME)
            cut_short(base_path(server.data_dir, NAME) / name)
            # Reading a mapping beyond the end of its file would kill the process.
            error = await read_until_error(table.scan().read_path("columnar").with_chunk(rows=1000), expected)
            assert isinstance(error, DataLoss)
            assert "no row is lost: scan again" in str(error)
            assert (await table.scan().to_arrow()).equals(expected)
            await await_bases(table)
            assert (await table.scan().read_path("columnar").to_arrow()).equals(expected)
            await await_only_base(server, buckets=1)
            assert built_at(server.data_dir, NAME) != damaged


@pytest.mark.breadth
async def test_a_base_damaged_while_no_server_runs_never_gives_a_wrong_row(tmp_path: Path) -> None:
    damages: list[tuple[str, Callable[[Path], None]]] = [
        ("rows.arrow", flip_a_bit),
        ("rows.arrow", cut_short),
        ("rows.arrow", Path.unlink),
        ("keys.arrow", flip_a_bit),
        ("zones.arrow", flip_a_bit),
        ("manifest.json", cut_short),
        ("manifest.json", put_into_the_wrong_table),
    ]
    with ServerProcess(tmp_path / "data", *NEVER_ANEW) as server:
        async with connect(server.url) as client:
            table = await filled(client)
            expected = await table.scan().read_path("rocksdb").to_arrow()
            other = await client.create_table(OTHER, SCHEMA, primary_key=["k"], buckets=1, columnar_base="auto")
            await other.upsert(rows_of(range(ROWS), factor=7))
            await await_bases(other)
        for name, damage in damages:
            await await_only_base(server, buckets=1)
            server.kill()
            damaged = built_at(server.data_dir, NAME)
            damage(base_path(server.data_dir, NAME) / name)
            server.restart()
            async with connect(server.url) as client:
                table = await client.table(NAME)
                await await_bases(table)
                scan = table.scan().with_chunk(rows=1000)
                error = await read_until_error(scan.read_path("columnar"), expected)
                # Files with a checksum in the manifest are verified when they are read.
                assert isinstance(error, DataLoss) == (damage is flip_a_bit and name in ("rows.arrow", "keys.arrow")), (
                    name
                )
                assert (await scan.to_arrow()).equals(expected)
                await await_bases(table)
                await await_only_base(server, buckets=1)
                assert built_at(server.data_dir, NAME) != damaged
                assert (await scan.read_path("columnar").to_arrow()).equals(expected)


async def test_a_full_disk_leaves_the_old_base_in_use(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *ONCE_FILLED, *WHATEVER_IT_WRITES, "--set", "base_changed_share=0") as server:
        async with connect(server.url) as client:
            await filled(client)
            await await_only_base(server, buckets=1)
        # This starts a new write-ahead log.
        assert server.stop() == 0
        server.restart()
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        async with connect(server.url) as client:
            table = await client.table(NAME)
            await await_bases(table)
            old = base_path(server.data_dir, NAME)
            await table.upsert([{"k": -1, "v": 1}])
            await table.delete(list(range(0, 1000, 2)))
            wait_until(lambda: "File too large" in server.log, "a build that found no room")
            assert base_path(server.data_dir, NAME) == old
            await table.upsert([{"k": -2, "v": 2}])
            rows = await table.scan().read_path("columnar").to_arrow()
            assert rows.equals(await table.scan().read_path("rocksdb").to_arrow())
            assert rows.num_rows == ROWS + 2 - 500
        assert server.stop() == 0
        server.restart()
        async with connect(server.url) as client:
            table = await client.table(NAME)
            assert (await table.scan().to_arrow()).equals(rows)
            await await_until(lambda: _newer(server, old), "a newer base, once there is room")
            await await_bases(table)
            assert (await table.scan().read_path("columnar").to_arrow()).equals(rows)


async def _newer(server: ServerProcess, old: Path) -> bool:
    return bases_on_disk(server.data_dir, NAME)[0] > [old.name]
