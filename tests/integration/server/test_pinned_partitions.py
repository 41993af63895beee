"""Partitions of a pinned table, read in several processes during writes, are together the table at the pin, once."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import connect
from streaming_server.storage.changelog.records import RowKind
from tests.integration.server import partition_worker
from tests.integration.server.partition_worker import KEYS, SCHEMA, rows_of
from tests.support.forked import ForkedProcess, run_forked
from tests.support.offline import offline_table, replayed_to
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import Scan, ScanSpec, Table
    from tests.support.offline import OfflineBucket
    from tests.support.server_process import ServerProcess

BUCKETS = 4
PARTITIONS = 8
CHUNKS_BEFORE_THE_END = 4
WORKER = [sys.executable, "-m", partition_worker.__name__]


@contextmanager
def writing(url: str, table: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that writes during the block, unless it was ended before."""
    command = [*WORKER, "write", url, table]
    with ForkedProcess[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "started\n"
            yield process
        finally:
            process.kill()


def read_elsewhere(url: str, spec: ScanSpec, chunks: int = 0) -> tuple[list[pa.RecordBatch], bytes]:
    """Reads some or all chunks of a scan in another process; returns the batches, and the token after them."""
    done = run_forked(*WORKER, "read", url, str(chunks), stdin=pickle.dumps(spec))
    assert done.returncode == 0, done.stderr.decode()
    result: tuple[list[pa.RecordBatch], bytes] = pickle.loads(done.stdout)
    return result


async def read_here(url: str, part: Scan) -> list[pa.RecordBatch]:
    """Reads a scan with its own client."""
    async with connect(url) as client:
        return [batch async for batch in client.scan(part.spec).stream()]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_partitions_of_a_pinned_table_are_the_table_at_the_pin_and_the_changelog_leads_from_it_to_the_live_table(
    server: ServerProcess,
) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("test.pinned", SCHEMA, primary_key=["k"], buckets=BUCKETS)
        await table.upsert(rows_of(range(KEYS), 0))
        with writing(server.url, table.name) as writer:
            snapshot = await table.snapshot()
            parts = await table.scan().as_of(snapshot).with_chunk(rows=200).splits(PARTITIONS)
            read = await read_partitions(server, parts)
            written = int(await asyncio.to_thread(ended, writer))
        assert written >= KEYS // 100
        live = await table.scan().to_arrow()
        now = await log_offsets(table)
        assert all(now[bucket] > snapshot.log_offsets[bucket] for bucket in range(BUCKETS))
        assert [part.num_rows > 0 for part in read] == [True] * PARTITIONS
    assert server.stop() == 0
    pinned = exact_rows(pa.concat_tables(read))
    with offline_table(server.data_dir, table.name) as buckets:
        check_pinned(buckets, snapshot.log_offsets, pinned)
        check_replay(buckets, snapshot.log_offsets, pinned, exact_rows(live))
    assert snapshot.rows == len(pinned)


async def read_partitions(server: ServerProcess, parts: list[Scan]) -> list[pa.Table]:
    """Reads all partitions: two in other processes, one of which fails and is read again, and one with a kill -9."""
    url = server.url
    failed, cut = parts[-2].spec, parts[-1]
    lost, begun, *here = await asyncio.gather(
        asyncio.to_thread(read_elsewhere, url, failed, CHUNKS_BEFORE_THE_END),
        asyncio.to_thread(read_elsewhere, url, cut.spec, CHUNKS_BEFORE_THE_END),
        *(read_here(url, part) for part in parts[:-2]),
    )
    server.kill()
    await asyncio.to_thread(server.restart)
    (anew, _), (rest, _) = await asyncio.gather(
        asyncio.to_thread(read_elsewhere, url, failed),
        asyncio.to_thread(read_elsewhere, url, cut.resume_from(begun[1]).spec),
    )
    assert len(begun[0]) == CHUNKS_BEFORE_THE_END
    assert rest, "nothing was left to be read after the restart"
    again = pa.Table.from_batches(anew)
    first = pa.Table.from_batches(lost[0])
    assert again.slice(0, first.num_rows).equals(first), "the second try gives other rows"
    return [*map(pa.Table.from_batches, here), again, pa.Table.from_batches([*begun[0], *rest])]


def ended(writer: subprocess.Popen[str]) -> str:
    """Ends a writer in order; returns its output."""
    assert writer.poll() is None, "the writer did not write all the time"
    said, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0
    return said


async def log_offsets(table: Table) -> dict[int, int]:
    async with table.scan(limit=0).stream() as stream:
        return stream.log_offsets


def check_pinned(buckets: list[OfflineBucket], offsets: dict[int, int], rows: list[tuple[object, ...]]) -> None:
    """Checks that the changes up to the pin lead to exactly these rows, each once."""
    expected = [row for number, offline in enumerate(buckets) for row in replayed_to(offline, offsets[number])]
    assert len(set(rows)) == len(rows) == len(expected)
    assert set(rows) == set(expected)


def check_replay(
    buckets: list[OfflineBucket],
    offsets: dict[int, int],
    pinned: list[tuple[object, ...]],
    live: list[tuple[object, ...]],
) -> None:
    """Checks that the changes since the pin lead from the pinned rows to the live ones, each from the existing row."""
    state = {row[0]: row for row in pinned}
    for number, offline in enumerate(buckets):
        for stored in offline.log():
            # A segment may also contain changes from before the pin.
            record = stored.between(offsets[number], offline.bucket.state.log_offset)
            for kind, row in zip(record.changes.kinds, exact_rows(record.changes.rows), strict=True):
                if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
                    assert state.pop(row[0]) == row
                else:
                    assert row[0] not in state
                    state[row[0]] = row
    assert state == {row[0]: row for row in live}
    assert len(live) == len(state)
