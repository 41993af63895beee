"""A scan or a snapshot has one instant of all buckets, whatever is written in the meantime."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.integration.server import generation_writer
from tests.integration.server.generation_writer import SCHEMA, keys_of
from tests.support.bases import await_bases
from tests.support.forked import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

BUCKETS = 4
ROWS = 300
CHUNK_ROWS = 50
READERS = 4
WRITERS = ("first", "second")


@contextmanager
def writing(url: str, table: str, writer: str) -> Iterator[None]:
    """Runs a process that stamps generations during the block."""
    command = [sys.executable, "-m", generation_writer.__name__, url, table, writer]
    with ForkedProcess[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "started\n"
            yield
            assert process.poll() is None
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


def generations_of(rows: pa.Table, writer: str) -> list[int]:
    """Returns the generations of a writer's rows in bucket order, which is the order in which they were written."""
    found = dict(zip(rows.column("key").to_pylist(), rows.column("generation").to_pylist(), strict=True))
    return [found[key] for key in keys_of(writer, BUCKETS)]


def assert_one_instant(generations: list[int]) -> None:
    assert generations == sorted(generations, reverse=True), generations
    assert generations[0] - generations[-1] <= 1, generations


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("scans", "columnar_base"), [(50, "off"), (50, "eager"), pytest.param(1000, "off", marks=pytest.mark.soak)]
)
@pytest.mark.breadth
async def test_every_scan_sees_one_instant_of_all_buckets(
    client: Client, shared_server: ServerProcess, name: str, scans: int, columnar_base: str
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["key"], buckets=BUCKETS, columnar_base=columnar_base)
    # Rows of no writer, so that a scan has many chunks.
    await table.upsert(pa.table({"key": [f"none {i}" for i in range(ROWS)], "generation": [0] * ROWS}))
    if columnar_base == "eager":
        await await_bases(table)
    with ExitStack() as writers:
        for writer in WRITERS:
            writers.enter_context(writing(shared_server.url, name, writer))
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read(table, scans // READERS)) for _ in range(READERS)]
    seen = {writer: {g for reader in readers for g in reader.result()[writer]} for writer in WRITERS}
    for writer in WRITERS:
        assert len(seen[writer]) > scans // 50, "the writers did not write while the scans ran"


async def read(table: Table, scans: int) -> dict[str, set[int]]:
    """Scans several times, also snapshots; returns the generations of each writer that it saw."""
    seen: dict[str, set[int]] = {writer: set() for writer in WRITERS}
    latest = dict.fromkeys(WRITERS, 0)
    for number in range(scans):
        scan = table.scan().with_chunk(rows=CHUNK_ROWS)
        if number % 2:
            async with table.snapshot() as pinned:
                rows = await scan.as_of(pinned).to_arrow()
        else:
            rows = await scan.to_arrow()
        for writer in WRITERS:
            generations = generations_of(rows, writer)
            assert_one_instant(generations)
            assert generations[-1] >= latest[writer], "a later scan shows an earlier moment"
            latest[writer] = generations[-1]
            seen[writer].update(generations)
    return seen
