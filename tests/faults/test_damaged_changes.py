"""A stream over a damaged changelog returns all changes before the damage, then DATA_LOSS; it never skips changes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aio_client import Client, DataLoss, ScanSource, StartFrom, StopAt, connect
from scankv.model.errors import DataLoss as StoredDataLoss
from scankv.model.errors import ScanKvError
from scankv.model.tables.schema import TableDefinition
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.data_directory import DataDirectory
from tests.support.offline import EVERYTHING, bucket_path, opened
from tests.support.prepared import SCHEMA, flip, value_of
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_client import Scan, Table

CHANGES = 3000
"""The number of changes in each bucket. The keys of a bucket are the numbers of its changes."""
COMMIT = 20
PLACES = {"first": 0, "middle": CHANGES // 2, "last": CHANGES - 1}
FAR = 800
"""Far more changes than fit into a block."""


def definition_of(name: str, buckets: int) -> TableDefinition:
    options = {"compression": "none"}
    return TableDefinition.create(
        name, SCHEMA, ["k"], buckets=buckets, options=options, incarnation=name.replace(".", "-"), created_millis=0
    )


def logged_table(data: Path, name: str) -> None:
    """Creates a table of two buckets whose changelog is in table files, in many records."""
    directory = DataDirectory(data)
    try:
        Catalog(directory).create(definition_of(name, 2))
    finally:
        directory.close()
    for bucket in range(2):
        # The changelog does not depend on the bucket that a key belongs to.
        filled_bucket(bucket_path(data, name, bucket), definition_of(name, 1))


def filled_bucket(path: Path, definition: TableDefinition) -> None:
    with opened(path, definition) as offline:
        for start in range(0, CHANGES, COMMIT):
            offline.upsert(*({"k": key, "v": value_of(key)} for key in range(start, start + COMMIT)))
        offline.bucket.flush()


def log_file(path: Path) -> Path:
    """Returns the table file of a bucket that contains changes."""
    (file,) = (file for file in path.glob("*.sst") if b"namelog" in file.read_bytes())
    return file


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server with several tables; in each, another change of bucket 1 and its block are damaged."""
    data = tmp_path_factory.mktemp("damaged_changes") / "data"
    for place, key in PLACES.items():
        logged_table(data, f"test.{place}")
        file = log_file(bucket_path(data, f"test.{place}", 1))
        flip(file, file.read_bytes().find(value_of(key).encode()) + 3)
    with ServerProcess(data) as server:
        yield server


@pytest_asyncio.fixture
async def client(harmed: ServerProcess) -> AsyncIterator[Client]:
    async with connect(harmed.url) as client:
        yield client


def log_of(table: Table, start: StartFrom, stop: StopAt = StopAt.LATEST) -> Scan:
    return table.scan().with_source(ScanSource.LOG).with_row_kind().start_from(start).stop_at(stop)


async def outcome(scan: Scan) -> tuple[dict[int, list[int]], ScanKvError | None]:
    """Reads a stream. Returns the numbers of the changes of each bucket, and the error that ended the stream."""
    changes: dict[int, list[int]] = {0: [], 1: []}
    try:
        async for rows in scan.stream():
            keys = rows.column("k").to_pylist()
            assert rows.column("v").to_pylist() == [value_of(key) for key in keys]
            assert rows.column("_log_offset").to_pylist() == keys
            (bucket,) = set(rows.column("_bucket").to_pylist())
            changes[bucket] += keys
    except DataLoss as error:
        return changes, error
    return changes, None


@pytest.mark.asyncio
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [1, 7, 700])
@pytest.mark.represented_by("1-first", "700-last")
async def test_a_stream_that_meets_damage_returns_the_changes_before_it_and_then_data_loss(
    client: Client, place: str, size: int
) -> None:
    table, lost = await client.table(f"test.{place}"), PLACES[place]
    start = max(0, lost - 300) if size == 1 else 0
    scan = log_of(table, StartFrom.offsets({0: start, 1: start})).with_chunk(rows=size)
    for limit in (None, 10 * CHANGES):
        found, error = await outcome(scan.limit(limit))
        assert error is not None, f"{len(found[1])} changes in success"
        assert error.details["bucket"] == "1"
        assert found[1] == list(range(start, start + len(found[1])))
        assert lost not in found[1]
        assert found[0] == list(range(start, start + len(found[0])))


@pytest.mark.asyncio
@pytest.mark.parametrize("place", PLACES)
async def test_a_stream_that_avoids_the_damage_is_complete(client: Client, place: str) -> None:
    table, lost = await client.table(f"test.{place}"), PLACES[place]
    everything = list(range(CHANGES))
    assert await outcome(log_of(table, StartFrom.EARLIEST).with_buckets(0)) == ({0: everything, 1: []}, None)
    if lost + FAR < CHANGES:
        found = await outcome(log_of(table, StartFrom.offsets({0: 0, 1: lost + FAR})))
        assert found == ({0: everything, 1: everything[lost + FAR :]}, None)
        assert (await outcome(log_of(table, StartFrom.last(10))))[1] is None
    if lost > FAR:
        found = await outcome(log_of(table, StartFrom.EARLIEST, StopAt.offsets({0: CHANGES, 1: lost - FAR})))
        assert found == ({0: everything, 1: everything[: lost - FAR]}, None)


@pytest.mark.asyncio
async def test_a_start_whose_position_lies_in_the_damage_is_data_loss(client: Client) -> None:
    table = await client.table("test.last")
    assert (await outcome(log_of(table, StartFrom.last(10))))[1] is not None


@pytest.mark.asyncio
async def test_a_full_start_needs_no_older_changes(client: Client) -> None:
    table = await client.table("test.middle")
    async with log_of(table, StartFrom.FULL).stop_at(None).stream() as stream:
        rows = 0
        while rows < 2 * CHANGES:
            rows += (await anext(stream)).num_rows
        await table.upsert([{"k": -1, "v": "new"}])
        assert (await anext(stream)).column("k").to_pylist() == [-1]


@pytest.mark.parametrize("step", [6007, pytest.param(97, marks=pytest.mark.soak)])
def test_a_flipped_byte_at_any_place_of_the_file_hides_no_change(tmp_path: Path, step: int) -> None:
    definition = definition_of("test.flipped", 1)
    filled_bucket(tmp_path / "0000", definition)
    file = log_file(tmp_path / "0000")
    whole = file.read_bytes()
    refused = 0
    for number, position in enumerate(range(0, len(whole), step)):
        bits = (0x01, 0x80, 0xFF)[number % 3]
        file.write_bytes(whole)
        flip(file, position, bits)
        copy = tmp_path / "copy" / "0000"
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(tmp_path / "0000", copy)
        shutil.copy(tmp_path / "0000.durable", copy.parent)
        try:
            with opened(copy, definition) as offline:
                place = 0
                while place < CHANGES:
                    log = offline.bucket.log
                    records = log.read(place, CHANGES, definition, max_changes=700, max_bytes=EVERYTHING)
                    assert records, f"byte {position} flipped by {bits:#x}: no change, and no error"
                    for record in records:
                        keys = record.changes.rows.column("k").to_pylist()
                        assert keys == list(range(place, place + len(keys))), f"byte {position} flipped by {bits:#x}"
                        place += len(keys)
        except StoredDataLoss:
            refused += 1
    assert refused > 0.8 * (number + 1)
