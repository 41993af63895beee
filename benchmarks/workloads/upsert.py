"""Compares durable upserts through the client with the cheapest way to write the same rows to RocksDB."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from aio_client import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.files import resources
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench

_MOST_ROWS: Final = 500_000
_CALL_ROWS: Final = 100_000
_BATCH_ROWS: Final = 10_000
_FULL, _UPSERT = "ScanKV upsert, full changelog", "ScanKV upsert, upsert changelog"
_APPEND = "ScanKV append, table without a key"
_WRITE_BATCH = "WriteBatch in-process"


def run(bench: Bench) -> Result:
    """Writes the first rows of T4 with each writer in turn, each time into a new table or directory."""
    rows = min(bench.rows, _MOST_ROWS)
    with (
        BenchmarkServer(bench.directory / "upsert") as server,
        Worker(UpsertWriter, server.url, rows) as upsert,
        Worker(WriteBatchWriter, bench.directory / "write-batch", rows) as write_batch,
    ):
        rates = run_interleaved(
            bench.runs,
            {
                _WRITE_BATCH: lambda: write_batch.call(WriteBatchWriter.write).check_rows(rows),
                _FULL: lambda: upsert.call(UpsertWriter.write, "full").check_rows(rows),
                _UPSERT: lambda: upsert.call(UpsertWriter.write, "upsert").check_rows(rows),
                _APPEND: lambda: upsert.call(UpsertWriter.append).check_rows(rows),
            },
        )
    return Result(
        figures=[
            Figure(
                name="upsert_vs_write_batch",
                work="upsert of new rows over gRPC, durable, full changelog",
                against="`WriteBatch` of the same rows through rocksdict in-process",
                unit="ratio",
                spread=paired_ratios(rates[_FULL], rates[_WRITE_BATCH]),
                at_least=0.25,
            ),
            Figure(
                name="upsert_mode_vs_write_batch",
                work="the same, `changelog=upsert`",
                against="`WriteBatch` of the same rows through rocksdict in-process",
                unit="ratio",
                spread=paired_ratios(rates[_UPSERT], rates[_WRITE_BATCH]),
                at_least=0.45,
            ),
            Figure(
                name="append_vs_upsert",
                work="append of the same rows to a table without a key",
                against="their upsert, full changelog",
                unit="ratio",
                spread=paired_ratios(rates[_APPEND], rates[_FULL]),
                at_least=2.0,
            ),
            Figure(
                name="upsert",
                work=f"the same, full changelog, {rows:,} rows of T4",
                against="wall clock of the client",
                unit="rows/s",
                spread=Spread.of(rates[_FULL]),
            ),
        ],
        tables=[rates_table("Durable upsert", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Upsert: all writers write batches of 10,000 rows and sync after every 100,000 rows. The reference has its "
            "keys and rows as Python bytes before the clock starts, reads no old rows and writes no changelog. ScanKV "
            "starts from Arrow data in the client.",
        ],
    )


class UpsertWriter:
    """Upserts through the client with one call for each 100,000 rows, acknowledged before the next."""

    def __init__(self, url: str, rows: int) -> None:
        self._url = url
        self._batches = list(t4.batches(rows, _CALL_ROWS))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def write(self, changelog: str) -> Timing:
        """Writes all rows into a new table with the given changelog mode, and drops the table."""
        return self._runner.run(self._write(changelog))

    def append(self) -> Timing:
        """Appends all rows to a new table without a key, and drops the table."""
        return self._runner.run(self._write(None))

    async def _write(self, changelog: str | None) -> Timing:
        key = [] if changelog is None else t4.PRIMARY_KEY
        async with connect(self._url) as client:
            table = await client.create_table(
                t4.TABLE, t4.SCHEMA, primary_key=key, buckets=t4.BUCKETS, changelog=changelog or "full"
            )
            started = time.perf_counter()
            for batch in self._batches:
                await (table.upsert(batch) if key else table.append(batch))
            seconds = time.perf_counter() - started
            timing = Timing(await table.count(), seconds)
            await client.drop_table(t4.TABLE)
        return timing


class WriteBatchWriter:
    """Only writes encoded keys and rows in WriteBatches, with the server's options and cache."""

    def __init__(self, path: Path, rows: int) -> None:
        definition = t4.definition()
        self._path = path
        self._compression = definition.options.compression
        batch = pa.concat_batches(t4.batches(rows, _CALL_ROWS))
        self._keys = KeyEncoder(definition).encode(batch)[0].to_pylist()
        self._values = RowCodec(definition).encode(batch).to_pylist()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def write(self) -> Timing:
        """Writes all rows into a new directory, and removes the directory."""
        store = RocksStore(self._path, "T4", compression=self._compression, resources=resources())
        started = time.perf_counter()
        for start in range(0, len(self._keys), _BATCH_ROWS):
            end = start + _BATCH_ROWS
            batch = store.batch()
            batch.put_rows(self._keys[start:end], self._values[start:end])
            store.write(batch)
            if end % _CALL_ROWS == 0 or end >= len(self._keys):
                store.sync()
        seconds = time.perf_counter() - started
        written = sum(1 for _ in store.rows.keys())
        store.close()
        shutil.rmtree(self._path)
        return Timing(written, seconds)
