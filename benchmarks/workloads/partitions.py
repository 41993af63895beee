"""Measures drops of partitions, how long they delay writers of other partitions, and pins of many partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, progress
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench

_SCHEMA: Final = pa.schema([pa.field("day", pa.int64(), nullable=False), *t4.SCHEMA])
_BUCKETS: Final = 4
_BATCH_ROWS: Final = 100_000
_PARTITIONS: Final = 1000
_SMALL_ROWS: Final = 20
_OTHER: Final = 0
_MILLIS: Final = 1000.0


class OtherWriter:
    """A client that writes single rows to a partition of its own."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    def __enter__(self) -> Self:
        self._client = connect(self._url)
        self._table = self._client.table(self._name)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def write(self, seconds: float) -> float:
        """Writes one row after another for some seconds. Returns how long the slowest write took, in seconds."""
        end, slowest, number = time.monotonic() + seconds, 0.0, 0
        while time.monotonic() < end:
            number += 1
            row = {"day": _OTHER, "id": number % 1000, "name": "other", "amount": float(number), "ts": None}
            started = time.perf_counter()
            self._table.upsert([row])
            slowest = max(slowest, time.perf_counter() - started)
        return slowest


def run(bench: Bench) -> Result:
    """Drops large and empty partitions in turn, with a writer to another one, then pins a table of many partitions."""
    with BenchmarkServer(bench.directory / "partitions") as server, connect(server.url) as client:
        table = _create(client, "bench.days")
        full: list[float] = []
        empty: list[float] = []
        waits: list[float] = []
        with Worker(OtherWriter, server.url, "bench.days") as writer:
            for number in range(bench.runs):
                day = 1 + 2 * number
                for batch in t4.batches(bench.rows, _BATCH_ROWS):
                    table.upsert(_of_day(day, batch))
                table.create_partition({"day": day + 1})
                writer.begin(OtherWriter.write, 2.0)
                full.append(_drop(table, day, bench.rows))
                waits.append(_MILLIS * writer.finish())
                empty.append(_drop(table, day + 1, 0))
                progress(
                    f"  run {number + 1} of {bench.runs}: {full[-1]:.1f} ms with rows, {empty[-1]:.1f} ms without; "
                    f"the slowest write took {waits[-1]:.1f} ms"
                )
        pauses = _pins(client, bench.runs)
    what = f"a partition of {bench.rows:,} rows"
    return Result(
        figures=[
            Figure(
                name="partition_drop",
                work=f"drop {what}, time",
                against="of an empty partition",
                unit="ratio",
                spread=Spread.of([each / other for each, other in zip(full, empty, strict=True)]),
                at_most=2,
            ),
            Figure(
                name="partition_drop_wait",
                work=f"the slowest write to another partition while {what} is dropped",
                against="wall clock",
                unit="ms",
                spread=Spread.of(waits),
                at_most=250,
            ),
            Figure(
                name="partition_pin_hold",
                work=f"pin a table of {_PARTITIONS:,} partitions in {_BUCKETS} buckets: writers paused",
                against="the server's clock",
                unit="ms",
                spread=Spread.of(pauses),
                at_most=1000,
            ),
        ],
        notes=[
            f"Partitions: T4 with a partition column before the key, in {_BUCKETS} buckets. A drop of rows takes "
            f"{Spread.of(full).median:.1f} ms. RocksDB removes the files afterwards, in the background.",
        ],
    )


def _create(client: Client, name: str) -> Table:
    return client.create_table(
        name, _SCHEMA, primary_key=["day", *t4.PRIMARY_KEY], partition_by=["day"], buckets=_BUCKETS
    )


def _of_day(day: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([day] * batch.num_rows), *batch.columns], schema=_SCHEMA)


def _drop(table: Table, day: int, rows: int) -> float:
    """Drops a partition. Returns the milliseconds."""
    started = time.perf_counter()
    dropped = table.drop_partition({"day": day})
    millis = _MILLIS * (time.perf_counter() - started)
    if [each.rows for each in dropped] != [rows]:
        raise RuntimeError(f"partition {day} had {dropped}, not {rows} rows")
    return millis


def _pins(client: Client, runs: int) -> list[float]:
    """Pins a table with rows in many partitions, and returns for how many milliseconds writers waited for each pin."""
    table, pauses = _create(client, "bench.many"), []
    for number in range(runs):
        rows = t4.rows(0, _PARTITIONS * _SMALL_ROWS)
        days = pa.array([place // _SMALL_ROWS for place in range(rows.num_rows)])
        amounts = pa.array([float(number)] * rows.num_rows)
        changed = rows.set_column(2, t4.SCHEMA.field("amount"), amounts)
        table.upsert(pa.RecordBatch.from_arrays([days, *changed.columns], schema=_SCHEMA))
        snapshot = table.snapshot(ttl=60)
        pauses.append(_MILLIS * snapshot.write_pause)
        snapshot.release()
    return pauses
