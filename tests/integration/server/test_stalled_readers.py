"""A hundred readers that stop: their cost in memory, speed of others and disk, and that all of it ends."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ScanStalled, connect
from tests.support.bases import SOON, await_bases
from tests.support.offline import bucket_path
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aio_client import Client, ScanStream, Table

READERS = 100
TABLE = "stalled.rows"
BUCKETS = 2
ROWS = 30_000
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
VALUE_BYTES = 500
MEBIBYTE = 1 << 20
MOST_BYTES_A_READER = 16 * MEBIBYTE
MOST_GROWTH_BYTES = 64 * MEBIBYTE
"""Of all readers together, while they do nothing. A chunk more for each of them would be 100 MiB."""
LEAST_SHARE_OF_RATE = 0.7
TRIES = 4
STALL_WRITES_A_WRITE = 3
"""The readers stall for three times as long as the writes take, because the test also measures in the meantime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """How long the test takes.

    Attributes:
        stall_seconds: After which, at least, the server ends the scans of readers that stop.
        flat_seconds: How long, at least, the server's memory is watched before.
        pairs: How often the rates are compared.
        writes: How often, at least, all rows are written while the memory is watched.
    """

    stall_seconds: float
    flat_seconds: float
    pairs: int
    writes: int


@contextmanager
def serving(directory: Path, stall_seconds: float, *others: str) -> Iterator[ServerProcess]:
    settings = {
        "stall_timeout_seconds": stall_seconds,
        "max_live_scans": 2 * READERS,
        "max_live_scans_per_bucket": 2 * READERS,
        # Small, so that a writer's memory is soon at its maximum, and table files are written and compacted
        # continuously.
        "write_buffer_bytes": 8 * MEBIBYTE,
        "block_cache_bytes": 8 * MEBIBYTE,
    }
    flags = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
    directory.mkdir()
    with ServerProcess(directory / "data", *flags, *others) as server:
        yield server


class ChangingRows:
    """All rows of the table, with other values each time, so that writing them leaves nothing of the earlier files."""

    def __init__(self) -> None:
        self._text = random.Random(5).randbytes(2 * ROWS).hex()
        self._version = 0

    def next(self) -> pa.Table:
        self._version += 1
        start = self._version % 1000
        values = [self._text[start + key : start + key + VALUE_BYTES] for key in range(ROWS)]
        return pa.table({"k": pa.array(range(ROWS), pa.int64()), "v": values})


async def filled(client: Client, rows: ChangingRows, columnar_base: str = "off") -> Table:
    """Makes a table that has been written several times, so that a writer's memory is at its usual level."""
    table = await client.create_table(
        TABLE, SCHEMA, primary_key=["k"], buckets=BUCKETS, compression="none", columnar_base=columnar_base
    )
    for _ in range(3):
        await table.upsert(rows.next())
    return table


@asynccontextmanager
async def stalled_readers(url: str) -> AsyncIterator[list[ScanStream]]:
    """Connects readers, each with its own connection, that read one chunk and stop."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(url)) for _ in range(READERS)]
        tables = await asyncio.gather(*(client.table(TABLE) for client in clients))
        streams = [await stack.enter_async_context(table.scan().stream()) for table in tables]
        for stream in streams:
            assert (await anext(stream)).num_rows < ROWS
        yield streams


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.timeout(180)  # a hundred clients and two servers
async def test_a_hundred_readers_of_bases_that_stop_cost_less_than_a_mebibyte_each(tmp_path: Path) -> None:
    with serving(tmp_path / "based", 300, *SOON) as server:
        async with connect(server.url) as client:
            table = await filled(client, ChangingRows(), "eager")
            await await_bases(table)
            # The writer's memory must not be attributed to the readers.
            assert server.stop() == 0
            server.restart()
            await client.wait_ready()
            await await_bases(table)
            for _ in range(2):
                # So that the files of the bases are in memory.
                assert sum([batch.num_rows async for batch in table.scan().read_path("columnar").stream()]) == ROWS
            idle = await resident(client)
            async with stalled_readers(server.url) as streams:
                # Some of them have read enough to get large chunks.
                for stream in streams[::5]:
                    read = 0
                    while read < 5 * MEBIBYTE:
                        read += (await anext(stream)).nbytes

                async def all_wait() -> bool:
                    return all(scan.idle > 1 for scan in await client.live_scans())

                await await_until(all_wait, "every scan waits for its reader", timeout=30)
                taken = await resident(client) - idle
                assert (await client.stats()).open_cursors == 0
        sys.stdout.write(f"{taken / MEBIBYTE:.0f} MiB\n")
        assert taken < READERS * MEBIBYTE


async def seconds_of_a_scan(table: Table) -> float:
    started = time.monotonic()
    rows = 0
    async for batch in table.scan().stream():
        rows += batch.num_rows
    assert rows == ROWS
    return time.monotonic() - started


async def relative_rate(table: Table, other: Table, pairs: int) -> float:
    """Returns the rate of a fast reader of a table, divided by that of a reader of another, unused server.

    Pair by pair, so that both have the same machine, whatever else it does.
    """
    rates = []
    for number in range(pairs):
        if number % 2:
            seconds, elsewhere = await seconds_of_a_scan(table), await seconds_of_a_scan(other)
        else:
            elsewhere, seconds = await seconds_of_a_scan(other), await seconds_of_a_scan(table)
        rates.append(elsewhere / seconds)
    return statistics.median(rates)


def row_files(data_dir: Path) -> set[Path]:
    """Returns the table files that contain rows rather than changes."""
    files = [file for bucket in range(BUCKETS) for file in bucket_path(data_dir, TABLE, bucket).glob("*.sst")]
    found = set()
    for file in files:
        try:
            # The name of the column family in a table file's properties.
            if b"namerows" in file.read_bytes()[-16_384:]:
                found.add(file)
        except FileNotFoundError:  # Removed by compaction in the meantime.
            continue
    return found


def deleted_files(pid: int) -> list[str]:
    """Returns the deleted table files that a process still has open."""
    names = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [name for name in names if name.endswith(".sst (deleted)")]


async def resident(client: Client) -> int:
    return (await client.stats()).resident_bytes


@pytest.mark.breadth
@pytest.mark.parametrize(
    "phases",
    [
        pytest.param(Phases(stall_seconds=10, flat_seconds=1, pairs=3, writes=10), id="short"),
        pytest.param(Phases(stall_seconds=90, flat_seconds=60, pairs=31, writes=16), id="long", marks=pytest.mark.soak),
    ],
)
@pytest.mark.asyncio
@pytest.mark.timeout(300)  # waits until readers have stalled
async def test_readers_that_stop_cost_little_memory_and_nobody_elses_rate_and_are_gone_with_all_they_held(
    tmp_path: Path, phases: Phases
) -> None:
    rows = ChangingRows()
    with serving(tmp_path / "alone", phases.stall_seconds) as other:
        async with connect(other.url) as other_client:
            alone = await filled(other_client, rows)
            writes = STALL_WRITES_A_WRITE * phases.writes * await seconds_of_a_write(alone, rows)
            scans = 2 * phases.pairs * await seconds_of_a_scan(alone)
            stall_seconds = max(phases.stall_seconds, writes + scans)
            with serving(tmp_path / "beside", stall_seconds) as server:
                await check_stalled_readers(server, alone, rows, phases, stall_seconds)


async def seconds_of_a_write(table: Table, rows: ChangingRows) -> float:
    started = time.monotonic()
    await table.upsert(rows.next())
    return time.monotonic() - started


async def check_stalled_readers(
    server: ServerProcess, alone: Table, rows: ChangingRows, phases: Phases, stall_seconds: float
) -> None:
    async with connect(server.url) as client:
        table = await filled(client, rows)
        # The servers are equal, so a difference between them is chance.
        rate_before = min(await relative_rate(table, alone, phases.pairs), 1.0)
        idle = await resident(client)
        async with stalled_readers(server.url) as streams:
            started = time.monotonic()
            each = (await resident(client) - idle) / READERS
            assert each < MOST_BYTES_A_READER, f"{each / MEBIBYTE:.1f} MiB a reader"
            shares = [await relative_rate(table, alone, phases.pairs) / rate_before]
            # Readers are not the only possible obstacle for a scan.
            while max(shares) < LEAST_SHARE_OF_RATE and len(shares) < TRIES:
                shares.append(await relative_rate(table, alone, phases.pairs) / rate_before)
            assert (await client.stats()).live_scans == READERS, "the readers were not there all the time"
            # Some of these files may be newer than the readers.
            files = row_files(server.data_dir)
            await table.upsert(rows.next())
            await table.upsert(rows.next())
            held = files & row_files(server.data_dir)
            buckets = {file.parent for file in held}
            assert len(buckets) == BUCKETS, "the readers do not hold the files that they read"
            growth, watched = await growth_while_written(client, table, rows, phases)
            assert watched >= phases.flat_seconds
            await check_all_is_freed(server, client, held)
            assert time.monotonic() - started >= phases.stall_seconds - 1
            for stream in streams:
                await check_stalled(stream)
    sys.stdout.write(
        f"{each / MEBIBYTE:.2f} MiB a reader, {growth / MEBIBYTE:+.1f} MiB in {watched:.0f} of {stall_seconds:.0f} s, "
        f"{shares} of the rate before\n"
    )
    assert growth < MOST_GROWTH_BYTES, f"{growth / MEBIBYTE:.1f} MiB more while no client read"
    assert max(shares) >= LEAST_SHARE_OF_RATE, f"{shares} of the rate before them"


async def growth_while_written(client: Client, table: Table, rows: ChangingRows, phases: Phases) -> tuple[int, float]:
    """Writes all rows repeatedly, for at least some seconds, until the first readers are gone.

    Returns growth of the memory, and seconds watched.
    """
    started, watched = time.monotonic(), 0.0
    seen = []
    while True:
        await table.upsert(rows.next())
        stats = await client.stats()
        if stats.live_scans < READERS:
            break
        seen.append(stats.resident_bytes)
        watched = time.monotonic() - started
        if len(seen) >= phases.writes and watched >= phases.flat_seconds:
            await await_until(partial(some_are_gone, client), "the first readers are gone", timeout=600)
            break
    assert len(seen) >= 4, f"too few writes in {watched:.1f} s to tell"
    half = len(seen) // 2
    # Compares halves, because a writer's memory varies by tens of MiB.
    return round(statistics.median(seen[half:]) - statistics.median(seen[:half])), watched


async def some_are_gone(client: Client) -> bool:
    return (await client.stats()).live_scans < READERS


async def check_all_is_freed(server: ServerProcess, client: Client, held: set[Path]) -> None:
    """Checks that no scan, cursor or file of the readers is left, although all rows have been written again since."""

    async def nothing_is_live() -> bool:
        stats = await client.stats()
        return stats.live_scans == stats.open_cursors == 0

    async def files_are_gone() -> bool:
        return not deleted_files(server.process.pid) and not held & row_files(server.data_dir)

    await await_until(nothing_is_live, "all scans ended")
    assert held
    await await_until(files_are_gone, "the files of the readers deleted")


async def check_stalled(stream: ScanStream) -> None:
    with pytest.raises(ScanStalled) as caught:
        async for _ in stream:
            pass
    assert caught.value.resume_token is not None
