"""The memory of the server for a scan: a few chunks, however large the rows or the table, or slow the reader."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from aio_client import sync
from tests.support.processes import forget_peak, peak_resident_bytes, resident_bytes
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEBIBYTE = 1 << 20
BOUND = 64 * MEBIBYTE
BIG = pa.schema([("k", pa.int64()), ("value", pa.binary())])


@pytest.mark.breadth
@pytest.mark.parametrize("rows", [150, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.timeout(180)  # 150 MiB, several times
def test_a_scan_of_rows_of_a_mebibyte_stays_within_its_bound(server: ServerProcess, rows: int) -> None:
    with sync.connect(server.url) as client:
        table = client.create_table("test.big", BIG, primary_key=["k"], buckets=3)
        table.upsert(pa.RecordBatchReader.from_batches(BIG, big_rows(rows)))
    server.stop()
    server.restart()
    with sync.connect(server.url) as client:
        table = client.table("test.big")
        assert table.count() == rows
        peak = peak_of_scan(server, table.scan(), rows)
    assert peak <= BOUND, f"{peak / MEBIBYTE:.1f} MiB above idle"


@pytest.mark.breadth
@pytest.mark.parametrize(("is_ordered", "most"), [(False, 18), (True, 32)])
def test_a_scan_of_rows_larger_than_a_chunk_takes_as_many_of_them_as_documented(
    tmp_path: Path, is_ordered: bool, most: int
) -> None:
    value, rows = random.Random(7).randbytes(5 * MEBIBYTE), 96
    # Without a cache, which keeps what was read.
    with ServerProcess(tmp_path / "data", "--set", "block_cache_bytes=1048576") as server:
        with sync.connect(server.url) as client:
            table = client.create_table("test.large", BIG, primary_key=["k"], buckets=4, changelog="none")
            for key in range(rows):
                table.upsert([{"k": key, "value": value}])
        server.stop()
        server.restart()
        with sync.connect(server.url) as client:
            scan = client.table("test.large").scan().read_path("rocksdb")
            peak = peak_of_scan(server, scan.ordered() if is_ordered else scan, rows)
    assert peak <= most * len(value), f"{peak / len(value):.1f} rows above idle"


def big_rows(rows: int) -> Iterator[pa.RecordBatch]:
    """Returns rows of 1 MiB; they are repetitive, so that the disk has less to do."""
    value = random.Random(7).randbytes(MEBIBYTE // 64) * 64
    for start in range(0, rows, 20):
        keys = range(start, min(start + 20, rows))
        values = [value[key % 1000 :] + value[: key % 1000] for key in keys]
        yield pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.binary())], schema=BIG)


def peak_of_scan(server: ServerProcess, scan: sync.Scan, expected: int) -> int:
    """Reads a scan to its end; returns how much more memory the server used in the meantime."""
    pid = server.process.pid
    idle = resident_bytes(pid)
    forget_peak(pid)
    assert sum(batch.num_rows for batch in scan) == expected
    return peak_resident_bytes(pid) - idle


def test_a_scan_that_nobody_reads_stays_within_its_bound(server: ServerProcess) -> None:
    rows = 400_000
    with sync.connect(server.url) as client:
        schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
        table = client.create_table("test.wide", schema, primary_key=["k"], buckets=3)
        value = random.Random(7).randbytes(rows + 200)
        for start in range(0, rows, 100_000):
            keys = np.arange(start, start + 100_000)
            table.upsert(pa.table({"k": keys, "v": pa.array([value[key : key + 150] for key in keys], pa.binary())}))
    server.stop()
    server.restart()
    with sync.connect(server.url) as client:
        table = client.table("test.wide")
        assert table.count() == rows
        pid = server.process.pid
        idle = resident_bytes(pid)
        forget_peak(pid)
        streams = [table.scan().stream() for _ in range(8)]
        for stream in streams:
            next(iter(stream))
        assert client.stats().live_scans == 8
        stalled = peak_resident_bytes(pid) - idle
        for stream in streams:
            stream.close()
        assert peak_of_scan(server, table.scan(), rows) <= BOUND
    assert stalled <= 2 * BOUND, (
        f"{stalled / MEBIBYTE:.1f} MiB above idle for {len(streams)} scans that no client reads"
    )


@pytest.mark.breadth
def test_many_scans_one_after_another_leave_nothing_behind(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = client.create_table("test.t", pa.schema([("k", pa.int64())]), primary_key=["k"], buckets=4)
        table.upsert(pa.table({"k": range(20_000)}))

        def scan_often(times: int) -> int:
            for number in itertools.islice(itertools.count(), times):
                limit = None if number % 2 else 10
                assert table.scan().limit(limit).to_arrow().num_rows == (limit or 20_000)
            return resident_bytes(server.process.pid)

        before = scan_often(40)
        assert scan_often(120) - before < 16 * MEBIBYTE
        assert client.stats().live_scans == 0
