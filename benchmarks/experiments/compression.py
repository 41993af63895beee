"""How compression and block size affect the rates of scans and writes, and the space on disk."""

from __future__ import annotations

import itertools
import shutil
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from benchmarks import t4
from benchmarks.bench import Result, ResultTable
from benchmarks.files import resources
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.workers import Worker
from scankv.model.limits import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_ROWS
from streaming_server.clock import ServerClock
from streaming_server.engine.merging.outcome import merge_upsert
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.rocks import store_options as rocks
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.bench import Bench

_MOST_ROWS: Final = 1_000_000
_BATCH_ROWS: Final = 10_000
_COMPRESSIONS: Final = ("none", "lz4", "zstd")
_BLOCK_KIB: Final = (4, 16, 64)
_REFERENCE: Final = "lz4, 16 KiB"


class CompressedBucket:
    """A bucket with a given compression and block size, in its own process."""

    def __init__(self, path: Path, rows: int, compression: str, block_kib: int) -> None:
        # Patched, since the server has no setting for the block size.
        rocks._BLOCK_BYTES = block_kib * 1024
        definition = t4.definition()
        self._path = path
        self._batches = list(t4.batches(rows, _BATCH_ROWS))
        self._compression = compression
        self._codec = RowCodec(definition)
        self._keys = KeyEncoder(definition)
        self._bucket: Bucket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._bucket is not None:
            self._bucket.close()
            shutil.rmtree(self._path)

    def write(self) -> Timing:
        """Writes the rows and their changelog into a new bucket, and flushes them to table files."""
        self._drop()
        self._path.mkdir()
        self._bucket = bucket = Bucket(
            self._path / "0000", "T4", compression=self._compression, resources=resources(), clock=ServerClock()
        )
        started = time.perf_counter()
        for batch in self._batches:
            for part in prepare(batch, TableCodec(self._codec, self._keys, {}, None), keys_only=False):
                bucket.apply(merge_upsert([None] * len(part.keys), part, row_deduplicate=True))
        bucket.sync(bucket.state.log_offset)
        bucket.flush()
        return Timing(bucket.state.rows or 0, time.perf_counter() - started)

    def scan(self) -> Timing:
        """Reads the bucket as a scan does, up to the Arrow message of each chunk."""
        assert self._bucket is not None
        started, rows = time.perf_counter(), 0
        cursor = self._bucket.cursor(self._codec, self._codec.decoder(), self._keys.codec)
        while (batch := cursor.next_batch(DEFAULT_CHUNK_ROWS, DEFAULT_CHUNK_BYTES)) is not None:
            batch.serialize()
            rows += batch.num_rows
        seconds = time.perf_counter() - started
        cursor.close()
        return Timing(rows, seconds)

    def disk_bytes(self) -> int:
        """Returns the bytes of all table files, including the changelog."""
        assert self._bucket is not None
        used = self._bucket.family_bytes()
        return used.rows + used.changelog + used.indexes


def run(bench: Bench) -> Result:
    """Writes with every variant in turn, then scans the buckets of the last round in turn."""
    rows = min(bench.rows, _MOST_ROWS)
    with ExitStack() as stack:
        workers = {
            f"{compression}, {kib} KiB": stack.enter_context(
                Worker(CompressedBucket, bench.directory / f"{compression}-{kib}", rows, compression, kib)
            )
            for compression, kib in itertools.product(_COMPRESSIONS, _BLOCK_KIB)
        }
        for worker in workers.values():
            worker.wait_ready()
        writes = run_interleaved(
            bench.runs,
            {name: partial(_call_checked, worker, CompressedBucket.write, rows) for name, worker in workers.items()},
            warm_up=False,
        )
        scans = run_interleaved(
            bench.runs,
            {name: partial(_call_checked, worker, CompressedBucket.scan, rows) for name, worker in workers.items()},
        )
        sizes = {name: worker.call(CompressedBucket.disk_bytes) for name, worker in workers.items()}
    table = []
    for name in workers:
        written = paired_ratios(writes[name], writes[_REFERENCE])
        scanned = paired_ratios(scans[name], scans[_REFERENCE])
        table.append((name, *_values(scans[name], scanned), *_values(writes[name], written), sizes[name] / rows))
    against = f"against {_REFERENCE}"
    columns = ("blocks", "scan rows/s", against, "range", "write rows/s", against, "range", "bytes/row on disk")
    return Result(
        tables=[ResultTable(f"Compression and block size ({rows:,} rows)", columns, table)],
        notes=[
            "Compression: in-process, without gRPC. A write encodes the rows, writes rows and changelog in batches of "
            "10,000, syncs once at the end, and flushes to table files, which compresses the blocks. A scan iterates, "
            "decodes and makes the Arrow messages, from the page cache. The space on disk includes the changelog.",
        ],
    )


def _call_checked(worker: Worker[CompressedBucket], method: Callable[[CompressedBucket], Timing], rows: int) -> Timing:
    return worker.call(method).check_rows(rows)


def _values(rates: list[float], ratio: Spread) -> tuple[float, float, str]:
    return Spread.of(rates).median, ratio.median, f"{ratio.least:.2f} to {ratio.greatest:.2f}"
