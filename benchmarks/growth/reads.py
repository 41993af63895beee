"""How reads grow: one of many columns, the first rows by the key, and the first rows of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import CpuRounds, Spread
from benchmarks.proc import cpu_seconds
from benchmarks.readers.loop import LoopReader
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.store import Store
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench

COLUMNS: Final = 500
N: Final = 10
POLLED_ROWS: Final = 100
_SCALE: Final = 50
_LOAD_ROWS: Final = 1000
_TOP_N_CALLS: Final = 20
_QUEUE_ROWS: Final = 2000
_DELETED_SHARE: Final = 0.08
_WINDOWS: Final = 8


class WideStore(Store):
    """A data directory with rows of 500 columns, which are numbers and texts in turn."""

    name = "growth.wide"

    def load(self, client: Client) -> None:
        """Creates the table and upserts its rows."""
        fields = [pa.field(f"c{number}", pa.string() if number % 2 else pa.int64()) for number in range(1, COLUMNS)]
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *fields])
        table = client.create_table(self.name, schema, primary_key=["id"], buckets=1, columnar_base="off")
        for start in range(0, self.rows, _LOAD_ROWS):
            ids = pa.array(range(start, min(start + _LOAD_ROWS, self.rows)), pa.int64())
            texts = ids.cast(pa.string())
            columns = [texts if field.type == pa.string() else ids for field in schema]
            table.upsert(pa.RecordBatch.from_arrays(columns, schema=schema))


def measure_one_column(directory: Path, rows: int, rounds: int) -> Spread:
    """Compares the processor time of a scan of one of many columns with that of a loop over the same rows."""
    store = WideStore(directory, rows)
    with (
        Worker(LoopReader, store.copy("loop"), store.name) as loop,
        BenchmarkServer(store.data) as server,
        Worker(ClientReader, server.url, store.name) as reader,
    ):
        cpu = CpuRounds(
            rounds,
            {
                "loop": ([loop.pid], lambda: loop.call(LoopReader.read).check_rows(rows).rows),
                "scan": (
                    (server.pid, reader.pid),
                    lambda: reader.call(ClientReader.read_some, ("c251",), None).check_rows(rows).rows,
                ),
            },
        )
    return cpu.ratios("scan", "loop")


def one_column(bench: Bench) -> Result:
    """Reads one of 500 columns."""
    rows = max(1, bench.rows // _SCALE)
    figure = Figure(
        name="one_column",
        work=f"scan of one of {COLUMNS} columns of {rows:,} rows",
        against="`db.values()` in-process over the same rows",
        unit="ratio",
        spread=measure_one_column(bench.directory, rows, bench.runs),
        at_most=1.6,
    )
    return Result(figures=[figure])


def measure_top_by_key(directory: Path, rows: int, rounds: int) -> Spread:
    """Compares the processor time of the server for the first rows by the key with that for those by an index."""
    # Without a result cache, which would answer.
    with (
        BenchmarkServer(directory / "top", result_cache_bytes=0) as server,
        connect(server.url) as client,
    ):
        table = client.create_table(
            t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS, indexes=["amount"], columnar_base="off"
        )
        for batch in t4.batches(rows, 50 * _LOAD_ROWS):
            table.upsert(batch)

        def top(column: str) -> Callable[[], int]:
            def ask() -> int:
                for _ in range(_TOP_N_CALLS):
                    if len(table.top_n(N, order_by=column)) != N:
                        raise RuntimeError(f"the top-N by {column} must have {N} rows")
                return _TOP_N_CALLS

            return ask

        cpu = CpuRounds(rounds, {"index": ([server.pid], top("amount")), "key": ([server.pid], top("id"))})
    return cpu.ratios("key", "index")


def top_by_key(bench: Bench) -> Result:
    """Asks for the top-N by the key."""
    figure = Figure(
        name="top_by_key",
        work=f"top-{N} of {bench.rows:,} rows by the key, server",
        against="by an index",
        unit="ratio",
        spread=measure_top_by_key(bench.directory, bench.rows, 2 * bench.runs),
        at_most=1.1,
    )
    return Result(figures=[figure])


class Queue:
    """A table from whose head rows are read and deleted, while others are added at its end."""

    def __init__(self, table: Table, server: int) -> None:
        self._table, self._server = table, server
        self._head, self._end = 0, _QUEUE_ROWS
        table.upsert(t4.rows(0, _QUEUE_ROWS))

    def take(self, polls: int) -> float:
        """Takes some rows at a time, and returns the processor time of the server for one poll."""
        seconds = 0.0
        for _ in range(polls):
            before = cpu_seconds(self._server)
            found = self._table.scan().ordered().limit(POLLED_ROWS).to_arrow()
            seconds += cpu_seconds(self._server) - before
            if found["id"][0].as_py() != self._head:
                raise RuntimeError(f"the queue must begin with {self._head}, not {found['id'][0]}")
            self._table.delete(found.select(["id"]))
            self._table.upsert(t4.rows(self._end, POLLED_ROWS))
            self._head, self._end = self._head + POLLED_ROWS, self._end + POLLED_ROWS
        return seconds / polls


def measure_queue(directory: Path, deletes: int, windows: int) -> Spread:
    """Compares the processor time of the server for polls after more and more deletes with that for the first ones.

    The polls fall into windows. The slowest window counts.
    """
    with BenchmarkServer(directory / "queue") as server, connect(server.url) as client:
        table = client.create_table("growth.queue", t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
        queue = Queue(table, server.pid)
        queue.take(N)  # warms up
        first, *others = [queue.take(max(1, deletes // POLLED_ROWS // windows)) for _ in range(windows)]
    ratios = Spread.of(each / first for each in others)
    return Spread(ratios.greatest, ratios.least, ratios.greatest)


def queue(bench: Bench) -> Result:
    """Polls a queue from which more and more rows were deleted. The slowest eighth counts."""
    deletes = int(bench.rows * _DELETED_SHARE)
    figure = Figure(
        name="queue",
        work=f"poll of the first rows of a queue, slowest eighth of {deletes:,} deletes, server",
        against="polls of the first eighth",
        unit="ratio",
        spread=measure_queue(bench.directory, deletes, _WINDOWS),
        at_most=2,
    )
    return Result(figures=[figure])
