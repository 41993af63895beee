"""How disk, open buckets and memory grow: with removed changes, with tables used in turn, and with large rows."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, progress
from benchmarks.proc import peak_bytes, reset_peak, resident_bytes
from benchmarks.server import BenchmarkServer
from streaming_server.storage.files.file_limit import file_limit, raise_file_limit

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client.sync import Client, Scan
    from benchmarks.bench import Bench

BUCKETS: Final = 4
_MEBIBYTE: Final = 1 << 20
_RETENTION_BYTES: Final = _MEBIBYTE
_WITHIN_SECONDS: Final = 30.0
_UPDATES: Final = 4
_REQUEST_ROWS: Final = 50_000
_SCALE: Final = 1000
_ROUNDS: Final = 3
_STOP_SECONDS: Final = 600.0
_FILES_OF_TABLE: Final = 15
"""The descriptors of a table of one bucket with a few SST files."""
_SCHEMA: Final = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.binary())])
_LARGE_ROWS: Final = 60
_ROWS_IN_MEMORY, _ROWS_OF_BUCKET = 18, 8


def retention(bench: Bench) -> Result:
    """Updates all rows some times and shortens the retention. The table is idle then."""
    directory, rows = bench.directory / "retention", bench.rows
    with BenchmarkServer(bench.directory / "live") as server, connect(server.url) as client:
        _write(client, rows, 0, changelog="none")
    live = _bytes_below(bench.directory / "live")
    with BenchmarkServer(directory) as server, connect(server.url) as client:
        for number in range(_UPDATES):
            _write(client, rows, number, changelog="full")
        before = _bytes_below(directory)
        expected = live + BUCKETS * _RETENTION_BYTES
        client.alter_table(t4.TABLE, log_retention_bytes=_RETENTION_BYTES)
        most = expected + max(expected // 10, 64 * _MEBIBYTE)
        deadline = time.monotonic() + _WITHIN_SECONDS
        while (left := _bytes_below(directory)) > most and time.monotonic() < deadline:
            time.sleep(1)
    progress(f"  {before / _MEBIBYTE:.0f} MiB became {left / _MEBIBYTE:.0f} MiB")
    figure = Figure(
        name="retention",
        work=f"data directory {_WITHIN_SECONDS:g} s after the retention was cut, {before / _MEBIBYTE:,.0f} MiB before",
        against="live rows, retention, and a tenth or 64 MiB",
        unit="ratio",
        spread=Spread.of([left / most]),
        at_most=1,
    )
    return Result(figures=[figure])


def _write(client: Client, rows: int, number: int, changelog: str) -> None:
    """Creates T4 at first, and writes all rows with amounts that differ by number."""
    if number == 0:
        client.create_table(
            t4.TABLE, t4.SCHEMA, primary_key=["id"], buckets=BUCKETS, changelog=changelog, columnar_base="off"
        )
    table = client.table(t4.TABLE)
    for batch in t4.batches(rows, _REQUEST_ROWS):
        amounts = pa.array(np.asarray(batch.column("amount")) + number)
        table.upsert(batch.set_column(2, t4.SCHEMA.field(2), amounts))


def _bytes_below(directory: Path) -> int:
    found = 0
    for file in directory.rglob("*"):
        try:
            found += file.stat().st_size
        except FileNotFoundError:  # compaction has removed it
            continue
    return found


def tables(bench: Bench) -> Result:
    """Uses 1,000 tables in turn, or as many as the limit of open files lets stay open, and stops the server."""
    raise_file_limit()
    wanted = max(1, bench.rows // _SCALE)
    count = max(1, min(wanted, file_limit() * 3 // 4 // _FILES_OF_TABLE))
    if count < wanted:
        progress(f"  the limit of {file_limit():,} open files lets {count} of {wanted:,} buckets stay open")
    least = count
    with BenchmarkServer(bench.directory / "tables") as server:
        with connect(server.url) as client:
            found = [
                client.create_table(f"growth.t{number}", t4.SCHEMA, primary_key=["id"], buckets=1)
                for number in range(count)
            ]
            for number in range(_ROUNDS):
                for table in found:
                    table.upsert(t4.rows(number, 1))
                    least = min(least, client.stats().open_buckets) if number else least
        began = time.monotonic()
        server.stop(_STOP_SECONDS)
        seconds = time.monotonic() - began
    return Result(
        figures=[
            Figure(
                name="tables_open",
                work=f"least number of buckets open while {count:,} tables are used in turn",
                against="number of tables",
                unit="ratio",
                spread=Spread.of([least / count]),
                at_least=1,
            ),
            Figure(
                name="tables_stop",
                work=f"stop of a server with {count:,} open tables",
                against="wall clock",
                unit="s",
                spread=Spread.of([seconds]),
                at_most=5,
            ),
        ]
    )


def large_rows(bench: Bench) -> Result:
    """Scans rows that are larger than a chunk, in any order and in key order."""
    value = random.Random(7).randbytes(8 * _MEBIBYTE)
    # Without a cache, which keeps what was read.
    settings = {"block_cache_bytes": _MEBIBYTE}
    with BenchmarkServer(bench.directory / "large", **settings) as server, connect(server.url) as client:
        table = client.create_table("growth.large", _SCHEMA, primary_key=["id"], buckets=BUCKETS)
        for number in range(_LARGE_ROWS):
            table.upsert([{"id": number, "value": value}])
    figures = []
    for order, most in (("any", _ROWS_IN_MEMORY), ("key", _ROWS_OF_BUCKET * BUCKETS)):
        peaks = []
        for _ in range(bench.runs):
            # A server that has scanned large rows before keeps some of the memory.
            with BenchmarkServer(bench.directory / "large", **settings) as server, connect(server.url) as client:
                scan = client.table("growth.large").scan().read_path("rocksdb")
                peaks.append(_peak_of(server.pid, scan.ordered() if order == "key" else scan))
        figures.append(
            Figure(
                name=f"large_rows_{order}_order",
                work=f"memory of a scan of rows of 8 MiB in {BUCKETS} buckets, in {order} order",
                against="one row",
                unit="rows",
                spread=Spread.of(peak / len(value) for peak in peaks),
                at_most=most,
            )
        )
    return Result(figures=figures)


def _peak_of(pid: int, scan: Scan) -> int:
    """Reads all rows of a scan. Returns how much more memory the server used than before."""
    idle = resident_bytes(pid)
    reset_peak(pid)
    if (rows := sum(batch.num_rows for batch in scan)) != _LARGE_ROWS:
        raise RuntimeError(f"the scan must return {_LARGE_ROWS} rows, not {rows}")
    return peak_bytes(pid) - idle
