"""A scan shows the table as it was when the scan was opened, however slowly it is read and whatever is written."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import LogOffsets, connect
from tests.model.model_table import ModelTable
from tests.model.offline_checks import stored_changes
from tests.support.bases import ALL_THE_TIME, await_bases, bases_on_disk
from tests.support.divided_tables import TABLETS
from tests.support.noted import noted
from tests.support.offline import offline_table
from tests.support.server_process import ServerProcess
from tests.support.tables import exact_rows
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, ScanStream, Table
    from tests.model.model_table import Row

SCHEMA = pa.schema([("group", pa.string()), ("number", pa.int64()), ("version", pa.int64()), ("payload", pa.binary())])
ADDED = pa.schema([("note", pa.string())])
KEY = ("group", "number")
GROUPS = ["", "\x00", "a", "b"]
NUMBERS = 100
PAYLOAD_BYTES = 2048
# Far less than the rows of a table, so that the server cannot send a complete scan ahead of its reader.
READ_AHEAD_BYTES = 64 * 1024


@dataclass
class OpenScan:
    """A running scan, its expected rows, and the rows read so far."""

    stream: ScanStream
    schema: pa.Schema
    expected: dict[Row, Row]
    found: dict[Row, Row] = field(default_factory=dict)
    ended: bool = False

    async def read(self, model: ModelTable, chunks: int) -> None:
        """Continues reading, and compares at the end."""
        for _ in range(chunks):
            batch = await anext(self.stream, None)
            if batch is None:
                assert self.stream.schema == self.schema
                assert self.found == self.expected
                self.ended = True
                return
            rows = model.by_key(batch)
            assert not rows.keys() & self.found.keys(), "a key is in two chunks"
            self.found |= rows


def random_rows(random: Random, rows: int, version: int) -> pa.RecordBatch:
    """Returns rows with unique payloads."""
    values: list[dict[str, Any]] = [
        {
            "group": random.choice(GROUPS),
            "number": random.randrange(NUMBERS),
            "version": version,
            "payload": random.randbytes(PAYLOAD_BYTES),
        }
        for _ in range(rows)
    ]
    return pa.RecordBatch.from_pylist(values, SCHEMA)


def random_keys(random: Random, keys: int) -> list[Row]:
    return [(random.choice(GROUPS), random.randrange(NUMBERS)) for _ in range(keys)]


async def write(table: Table, random: Random, version: int, model: ModelTable | None = None) -> None:
    """Makes one random upsert or delete, also in the model if one is given."""
    if random.random() < 0.6:
        rows = random_rows(random, random.choice([1, 5, 40]), version)
        await table.upsert(rows)
        if model is not None:
            model.upsert(rows)
    else:
        keys = random_keys(random, random.choice([1, 5, 60]))
        await table.delete(keys)
        if model is not None:
            model.delete(keys)


async def wait_until_held(client: Client, scans: int) -> None:
    """Waits until the server has iterators for exactly so many scans, each of which may have several tablets."""

    async def live() -> bool:
        return scans <= (await client.stats()).live_scans <= scans * TABLETS

    await await_until(live, f"{scans} live scans on the server")


def options_of(seed: int, columnar_base: str) -> dict[str, Any]:
    """Returns the options of the table: every second one is partitioned, and without bases, its rows expire."""
    partitioned: dict[str, Any] = {} if seed % 2 else {"partition_by": KEY[:1]}
    if partitioned and columnar_base == "off":
        partitioned["ttl_seconds"] = 2_000_000_000
    return partitioned | {"columnar_base": columnar_base}


@pytest.mark.asyncio
@pytest.mark.parametrize("columnar_base", ["off", pytest.param("eager", marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
async def test_many_open_scans_each_show_the_instant_of_their_opening(
    tmp_path: Path, seed: int, columnar_base: str
) -> None:
    random = Random(seed)
    scans, writes_before_each = 25, 3
    # With open iterators, the small write buffer is flushed, table files are compacted, and bases are replaced.
    settings = ("--set", "write_buffer_bytes=1048576", *ALL_THE_TIME)
    with noted(f"seed {seed}"), ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url, read_ahead_bytes=READ_AHEAD_BYTES) as client, AsyncExitStack() as stack:
            table = await client.create_table(
                "test.isolation", SCHEMA, primary_key=KEY, buckets=4, **options_of(seed, columnar_base)
            )
            model = ModelTable(table)
            await table.upsert(rows := random_rows(random, 600, 0))
            model.upsert(rows)
            opened: list[OpenScan] = []
            for number in range(scans):
                for _ in range(writes_before_each):
                    await write(table, random, number, model)
                if number == scans // 2:
                    await client.alter_table(table.name, add_columns=ADDED)
                    model.add_columns(ADDED)
                stream = await stack.enter_async_context(table.scan().with_chunk(rows=8).stream())
                opened.append(OpenScan(stream, model.schema, dict(model.rows)))
                await random.choice(opened).read(model, chunks=2)
            await wait_until_held(client, scans)
            if columnar_base == "eager":
                await await_bases(table)
                newest = bases_on_disk(server.data_dir, table.name)
                assert min(int(names[-1][:16], 16) for names in newest.values()) > 5, "bases were not replaced"
            while unread := [scan for scan in opened if not scan.ended]:
                await random.choice(unread).read(model, chunks=20)
                await write(table, random, scans, model)
            await wait_until_held(client, 0)


@pytest.mark.represented_by("1-10-eager")
@pytest.mark.asyncio
@pytest.mark.parametrize("columnar_base", ["off", "eager"])
@pytest.mark.parametrize(
    ("seed", "scans_each"), [(1, 10), *(pytest.param(seed, 20, marks=pytest.mark.soak) for seed in (1, 2, 3))]
)
async def test_a_scan_during_writes_equals_the_changelog_up_to_its_offsets(
    tmp_path: Path, seed: int, scans_each: int, columnar_base: str
) -> None:
    with noted(f"seed {seed}"), ServerProcess(tmp_path / "data", *ALL_THE_TIME) as server:
        async with connect(server.url, read_ahead_bytes=READ_AHEAD_BYTES) as client:
            table = await client.create_table(
                "test.isolation", SCHEMA, primary_key=KEY, buckets=3, **options_of(seed, columnar_base)
            )
            await table.upsert(random_rows(Random(seed), 300, 0))
            if columnar_base == "eager":
                await await_bases(table)
            done = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for number in range(5):
                    group.create_task(write_until(done, table, Random(100 * seed + number)))
                group.create_task(commit_until(done, client, table, Random(seed)))
                readers = [group.create_task(scans_of(table, scans_each)) for _ in range(3)]
                await asyncio.wait(readers)
                done.set()
            # When nothing is being written, both isolations show the same.
            (offsets, rows), (latest_offsets, latest) = await scans_of(table, 2)
            assert (latest_offsets, exact_rows(latest)) == (offsets, exact_rows(rows))
        assert server.stop() == 0
        scans = [scan for reader in readers for scan in reader.result()]
        assert len({tuple(log_offsets.values()) for log_offsets, _ in scans}) > 10, (
            "nothing was written while the scans ran"
        )
        check_scans(server.data_dir, ModelTable(table), scans)


async def write_until(done: asyncio.Event, table: Table, random: Random) -> None:
    """Makes random writes until an event is set."""
    version = 1
    while not done.is_set():
        await write(table, random, version)
        version += 1


async def commit_until(done: asyncio.Event, client: Client, table: Table, random: Random) -> None:
    """Commits transactions over several requests and all buckets until an event is set."""
    version = 1
    while not done.is_set():
        async with client.transaction() as transaction:
            for _ in range(3):
                await transaction.upsert(table, random_rows(random, 40, version))
            await transaction.delete(table, random_keys(random, 20))
        version += 1


async def scans_of(table: Table, scans: int) -> list[tuple[LogOffsets, pa.Table]]:
    """Scans several times with each isolation in turn. Returns the offsets and the rows of each scan.

    `read_latest` is never older than what `read_committed` has shown before.
    """
    found: list[tuple[LogOffsets, pa.Table]] = []
    for number in range(scans):
        latest = number % 2 == 1
        scan = table.scan().with_chunk(rows=16).isolation("read_latest" if latest else "read_committed")
        async with scan.stream() as stream:
            batches = [batch async for batch in stream]
            offsets = stream.log_offsets
            assert bool(stream.version) == (not latest)
        if latest:
            assert all(offsets[bucket] >= before for bucket, before in found[-1][0].items())
        found.append((offsets, pa.Table.from_batches(batches, stream.schema)))
    return found


def check_scans(data_dir: Path, model: ModelTable, scans: list[tuple[LogOffsets, pa.Table]]) -> None:
    """Checks that each scan equals the replay of the changes below its offsets, in every bucket."""
    with offline_table(data_dir, "test.isolation") as buckets:
        changes = [list(stored_changes(offline)) for offline in buckets]
    for log_offsets, rows in scans:
        state: dict[Row, Row] = {}
        for number, offset in log_offsets.items():
            for at, kind, row in changes[number]:
                if at >= offset:
                    break
                key = model.key_of(row, model.schema.names)
                if kind in ("+I", "+U"):
                    state[key] = row
                else:
                    del state[key]
        assert len(log_offsets) == model.buckets
        assert model.by_key(rows) == state
