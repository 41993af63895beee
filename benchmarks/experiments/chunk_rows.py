"""How many rows a chunk should have: the rate of a scan, and how long one chunk keeps the server's event loop."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from benchmarks.bench import Result, ResultTable
from benchmarks.files import definition, open_bucket
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from scankv.model.limits import DEFAULT_CHUNK_ROWS, MAX_CHUNK_BYTES
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench

_CHUNK_ROWS: Final = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)


class ChunkClock:
    """Times how long it takes to make one chunk, in a process of its own."""

    def __init__(self, data: Path) -> None:
        self._bucket = open_bucket(data)
        table = definition(data)
        self._codec, self._keys = RowCodec(table), KeyEncoder(table).codec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bucket.close()

    def chunk_seconds(self, chunk_rows: int) -> list[float]:
        """The time of every chunk of one pass, from RocksDB to the Arrow message."""
        cursor = self._bucket.cursor(self._codec, self._codec.decoder(), self._keys)
        seconds: list[float] = []
        while True:
            started = time.perf_counter()
            batch = cursor.next_batch(chunk_rows, MAX_CHUNK_BYTES)
            if batch is None:
                cursor.close()
                return seconds
            batch.serialize().to_pybytes()
            seconds.append(time.perf_counter() - started)


def run(bench: Bench) -> Result:
    """Scans in chunks of different sizes, in turn."""
    store = bench.store
    with Worker(ChunkClock, store.copy("chunks")) as clock:
        blocked = {rows: Spread.of(clock.call(ChunkClock.chunk_seconds, rows)) for rows in _CHUNK_ROWS}
    with BenchmarkServer(store.data) as server, Worker(ClientReader, server.url) as reader:

        def read(chunk_rows: int) -> Timing:
            return reader.call(ClientReader.read, chunk_rows, MAX_CHUNK_BYTES).checked(store.rows)

        rates = interleaved(bench.runs, {f"{rows:,}": partial(read, rows) for rows in _CHUNK_ROWS})
    reference = rates[f"{DEFAULT_CHUNK_ROWS:,}"]
    table = []
    for rows in _CHUNK_ROWS:
        name = f"{rows:,}"
        ratio = paired_ratios(rates[name], reference)
        made = blocked[rows]
        rate = Spread.of(rates[name]).median
        table.append((name, rate, ratio.median, ratio.least, ratio.greatest, 1e3 * made.median, 1e3 * made.greatest))
    against = f"against {DEFAULT_CHUNK_ROWS:,}"
    columns = ("rows of a chunk", "rows/s", against, "least", "greatest", "ms to make one", "greatest ms")
    return Result(tables=[ResultTable("Rows of a chunk", columns, table)])
