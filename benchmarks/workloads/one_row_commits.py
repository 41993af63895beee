"""The changelog of a table that was written one row at a time, before and after it was rewritten into segments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.files import definition, open_bucket
from benchmarks.measure import Spread, interleaved, paired_ratios, progress
from benchmarks.proc import cpu_seconds
from benchmarks.readers.changes import ChangesReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker, run_alone
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.storage.bucket.bucket_change import BucketChange
from streaming_server.storage.changelog.records import MAX_CHANGES_PER_RECORD, Changes, RowKind
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench
    from streaming_server.engine.merging.prepared_rows import PreparedRows

_MOST_ROWS: Final = 500_000
_PREPARED_ROWS: Final = 1000
_UPKEEP_SECONDS: Final = 0.2
_NEVER_SECONDS: Final = 3600.0
_QUIET_SECONDS: Final = 1.0
_QUIET_SHARE: Final = 0.1
_AS_WRITTEN, _SEGMENTS, _SCAN = "changes, as they were written", "changes, in segments", "full scan"


def run(bench: Bench) -> Result:
    """Writes row by row, reads the changes, lets the server rewrite them, and reads them again."""
    # The last changes stay as they are until there are more than make a segment.
    segments = min(bench.rows, _MOST_ROWS) // MAX_CHANGES_PER_RECORD
    rows, data = segments * MAX_CHANGES_PER_RECORD + 1, bench.directory / "one-row-commits"
    with BenchmarkServer(data) as server, connect(server.url) as client:
        client.create_table(t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
    progress(f"writing {rows:,} rows in as many commits")
    run_alone(_commit_one_by_one, data, rows)
    with (
        BenchmarkServer(data, log_maintenance_seconds=_NEVER_SECONDS) as server,
        Worker(ChangesReader, server.url) as reader,
    ):
        written = interleaved(1, {_AS_WRITTEN: lambda: reader.call(ChangesReader.read_log).checked(rows)})
    progress("waiting for the server to rewrite them")
    _let_rewrite(data)
    with BenchmarkServer(data) as server, Worker(ChangesReader, server.url) as reader:
        rates = interleaved(
            bench.runs,
            {
                _SCAN: lambda: reader.call(ChangesReader.read).checked(rows),
                _SEGMENTS: lambda: reader.call(ChangesReader.read_log).checked(rows),
            },
        )
    return Result(
        figures=[
            Figure(
                name="segments_vs_scan",
                work=f"bounded read of {rows:,} changes of as many commits, rewritten into segments, rows/s",
                against="full scan of the same table",
                unit="ratio",
                spread=paired_ratios(rates[_SEGMENTS], rates[_SCAN]),
                at_least=2,
            )
        ],
        tables=[
            rates_table(
                "Changes of one-row commits", {name: Spread.of(values) for name, values in (written | rates).items()}
            )
        ],
        notes=[
            f"One-row commits: {rows:,} rows of T4, each applied to the bucket of a stopped server in a write batch of "
            "its own, as the engine does, but with one sync at the end. Then a server with a short "
            "`log_maintenance_seconds` rewrites them in the background; that it has, but for the last one, is checked. "
            "Nothing is compacted afterwards: the files are as the server leaves them. Up to "
            f"{MAX_CHANGES_PER_RECORD:,} changes behind the last segment would be read as they were written.",
        ],
    )


def _commit_one_by_one(data: Path, rows: int) -> None:
    table = definition(data)
    bucket, codec = open_bucket(data), TableCodec.of(table)
    for batch in t4.batches(rows, _PREPARED_ROWS):
        (part,) = prepare(batch, codec, keys_only=False)
        for number in range(batch.num_rows):
            bucket.apply(_insert(part.slice(number, 1), table.schema.id))
    bucket.sync(bucket.state.log_offset)
    bucket.close()


def _insert(row: PreparedRows, schema_id: int) -> BucketChange:
    """What the engine makes of one new row."""
    assert row.values is not None
    return BucketChange(
        put_keys=row.keys,
        put_values=row.values,
        delete_keys=row.keys[:0],
        changes=Changes(np.full(1, RowKind.INSERT, np.uint8), row.batch),
        rows_added=1,
        schema_id=schema_id,
    )


def _let_rewrite(data: Path) -> None:
    """Returns when a server has rewritten the changelog, and has stopped."""
    before, left = 0, run_alone(_changes_left, data)
    while left > 1:
        if left == before:
            raise RuntimeError(f"the server has {left:,} changes yet to rewrite, and does not")
        _rewrite_until_quiet(data)
        before, left = left, run_alone(_changes_left, data)


def _rewrite_until_quiet(data: Path) -> None:
    """Has a server rewrite until it takes little of a core: all of it, unless others take the cores."""
    with (
        BenchmarkServer(data, log_maintenance_seconds=_UPKEEP_SECONDS) as server,
        Worker(ChangesReader, server.url) as reader,
    ):
        reader.call(ChangesReader.read_log, 1)  # what nobody has used since the start is not looked after
        share = 1.0
        while share > _QUIET_SHARE:
            before = cpu_seconds(server.pid)
            time.sleep(_QUIET_SECONDS)
            share = (cpu_seconds(server.pid) - before) / _QUIET_SECONDS


def _changes_left(data: Path) -> int:
    bucket = open_bucket(data)
    state = bucket.state
    bucket.close()
    return state.count - state.log_rewritten
