"""Measures how long it takes to pin a table, and how long the pin pauses writers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, progress
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_BUCKETS: Final = 4
_BUCKET_COUNTS: Final = (1, 4, 64, 256)
_SMALL_ROWS: Final = 20_000
# Compared with the rows of the run, so that a trial run leaves out the tables with very many buckets.
_LEAST_ROWS_OF_A_BUCKET: Final = 5000
_BATCH_ROWS: Final = 100_000
_WRITER_ROWS: Final = 10_000
_MILLIS: Final = 1000.0


class RowUpdater:
    """A client that updates rows for a given time."""

    def __init__(self, url: str, rows: int) -> None:
        self._url = url
        self._rows = rows
        self._next = 0

    def __enter__(self) -> Self:
        self._client = connect(self._url)
        self._table = self._client.table("bench.pinned")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def write(self, seconds: float) -> int:
        """Updates rows for some seconds, and returns the number of updates."""
        end, written = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            batch = t4.rows(self._next, min(_WRITER_ROWS, self._rows - self._next))
            changed = pa.compute.add(batch.column("amount"), float(written + 1))
            self._table.upsert(batch.set_column(2, t4.SCHEMA.field("amount"), changed))
            self._next = (self._next + batch.num_rows) % self._rows
            written += batch.num_rows
        return written


def run(bench: Bench) -> Result:
    """Pins a large table while a client writes to it, then small tables with growing numbers of buckets."""
    with BenchmarkServer(bench.directory / "pin") as server:
        calls, paused = _pin_under_writer(server.url, bench.rows, bench.runs)
        small = min(bench.rows, _SMALL_ROWS)
        counts = [buckets for buckets in _BUCKET_COUNTS if buckets * _LEAST_ROWS_OF_A_BUCKET <= bench.rows]
        pauses = [_measure_pauses(server.url, buckets, small, bench.runs) for buckets in counts]
    what = f"of {bench.rows:,} rows in {_BUCKETS} buckets, with a writer at full speed"
    return Result(
        figures=[
            Figure(
                name="pin",
                work=f"pin {what}: the complete call",
                against="wall clock",
                unit="ms",
                spread=calls,
                at_most=500,
            ),
            Figure(
                name="pin_hold",
                work=f"pin {what}: writers paused",
                against="the server's clock",
                unit="ms",
                spread=paused,
                at_most=100,
            ),
        ],
        tables=[
            ResultTable(
                f"How long a pin pauses the writers of a table of {small:,} rows (milliseconds)",
                ("buckets", "median", "least", "greatest"),
                [
                    (str(buckets), pause.median, pause.least, pause.greatest)
                    for buckets, pause in zip(counts, pauses, strict=True)
                ],
            )
        ],
        notes=[
            f"Pin: one client updates rows in batches of {_WRITER_ROWS:,} as fast as it can while another pins. The "
            "table changes before each pin, so pins share no view. The small tables change in every bucket before each "
            "pin. After one second the server ends the pause, and the pin fails.",
        ],
    )


def _pin_under_writer(url: str, rows: int, runs: int) -> tuple[Spread, Spread]:
    calls: list[float] = []
    paused: list[float] = []
    with connect(url) as client:
        table = client.create_table("bench.pinned", t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=_BUCKETS)
        for batch in t4.batches(rows, _BATCH_ROWS):
            table.upsert(batch)
        with Worker(RowUpdater, url, rows) as writer:
            for number in range(-1, runs):
                writer.begin(RowUpdater.write, 1.0)
                started = time.perf_counter()
                snapshot = table.snapshot(ttl=60)
                seconds = time.perf_counter() - started
                if writer.finish() == 0:
                    raise RuntimeError("the writer has written nothing during the pin")
                if number >= 0:
                    calls.append(_MILLIS * seconds)
                    paused.append(_MILLIS * snapshot.write_pause)
                    progress(
                        f"  run {number + 1} of {runs}: {calls[-1]:.0f} ms, writers paused for {paused[-1]:.1f} ms"
                    )
                snapshot.release()
        client.drop_table("bench.pinned")
    return Spread.of(calls), Spread.of(paused)


def _measure_pauses(url: str, buckets: int, rows: int, runs: int) -> Spread:
    pauses = []
    with connect(url) as client:
        table = client.create_table("bench.buckets", t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=buckets)
        for number in range(-1, runs):
            batch = t4.rows(0, rows)
            table.upsert(batch.set_column(2, t4.SCHEMA.field("amount"), pa.array([float(number)] * rows)))
            snapshot = table.snapshot(ttl=60)
            if number >= 0:
                pauses.append(_MILLIS * snapshot.write_pause)
            snapshot.release()
        client.drop_table("bench.buckets")
    pause = Spread.of(pauses)
    progress(f"  {buckets} buckets: writers paused for {pause.median:.1f} ms")
    return pause
