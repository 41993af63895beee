"""Durable upserts through the client against the cheapest way to get the same rows into RocksDB."""

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
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios
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
_WRITE_BATCH = "WriteBatch in-process"


def run(bench: Bench) -> Result:
    """Writes the first rows of T4 in all ways, in turn, each time into something new."""
    rows = min(bench.rows, _MOST_ROWS)
    with (
        BenchmarkServer(bench.directory / "upsert") as server,
        Worker(UpsertWriter, server.url, rows) as upsert,
        Worker(WriteBatchWriter, bench.directory / "write-batch", rows) as write_batch,
    ):
        rates = interleaved(
            bench.runs,
            {
                _WRITE_BATCH: lambda: write_batch.call(WriteBatchWriter.write).checked(rows),
                _FULL: lambda: upsert.call(UpsertWriter.write, "full").checked(rows),
                _UPSERT: lambda: upsert.call(UpsertWriter.write, "upsert").checked(rows),
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
                name="upsert",
                work=f"the same, full changelog, {rows:,} rows of T4",
                against="wall clock of the client",
                unit="rows/s",
                spread=Spread.of(rates[_FULL]),
            ),
        ],
        tables=[rates_table("Durable upsert", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Upsert: all write batches of 10,000 rows and sync the log after every 100,000. The reference has its "
            "keys and rows as Python bytes before the clock starts, looks for no older row and writes no changelog; "
            "ScanKV starts from Arrow in the client.",
        ],
    )


class UpsertWriter:
    """Upserts through the client, one call for every 100,000 rows, each acknowledged before the next."""

    def __init__(self, url: str, rows: int) -> None:
        self._url = url
        self._batches = list(t4.batches(rows, _CALL_ROWS))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def write(self, changelog: str) -> Timing:
        """Writes everything into a new table with such a changelog, and drops it."""
        return self._runner.run(self._write(changelog))

    async def _write(self, changelog: str) -> Timing:
        async with connect(self._url) as client:
            table = await client.create_table(
                t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS, changelog=changelog
            )
            started = time.perf_counter()
            for batch in self._batches:
                await table.upsert(batch)
            seconds = time.perf_counter() - started
            timing = Timing(await table.count(), seconds)
            await client.drop_table(t4.TABLE)
        return timing


class WriteBatchWriter:
    """Puts encoded keys and rows into WriteBatches and nothing else; options and cache are the server's."""

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
        """Writes everything into a new directory, and removes it."""
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
