"""How upserts grow with the connections, with the columns, and with the rows of the table."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from aio_client import connect, sync
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import CpuRounds, progress
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench
    from benchmarks.measure import Spread

FEW_CONNECTIONS: Final = 128
NARROW, WIDE = 50, 900
SMALL_CACHE_BYTES: Final = 64 << 20
_SMALLER: Final = 30
_WARM_UPDATES: Final = 3
_UPDATED_ROWS: Final = 100_000
_REQUEST_ROWS: Final = 10_000
_SCALE: Final = 1000


class OneRowWriters:
    """Clients that each have a connection and upsert one row after another into one bucket.

    Args:
        url: The address of the server.
        count: The number of clients.
    """

    def __init__(self, url: str, count: int) -> None:
        self._url, self._count = url, count
        self._runner = asyncio.Runner()
        self._row: dict[str, Any] = t4.rows(0, 1).to_pylist()[0]

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def upsert(self, rows: int) -> int:
        """Upserts about so many rows, one in each call. Returns their number."""
        return self._runner.run(self._upsert(max(1, rows // self._count)))

    async def _connect(self) -> None:
        self._clients = await asyncio.gather(*(connect(self._url) for _ in range(self._count)))
        self._tables = await asyncio.gather(*(client.table(t4.TABLE) for client in self._clients))

    async def _close(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self._clients))

    async def _upsert(self, calls: int) -> int:
        async def upsert(number: int) -> None:
            for _ in range(calls):
                # The amounts differ, since an update that changes nothing is not an update.
                self._row["amount"] += 1
                await self._tables[number].upsert([{**self._row, "id": number}])

        await asyncio.gather(*map(upsert, range(self._count)))
        return calls * self._count


def measure_connections(directory: Path, many: int, rows: int, rounds: int) -> Spread:
    """Compares the processor time of the server for a row from one of many connections with that from one of few."""
    with BenchmarkServer(directory / "connections") as server:
        with sync.connect(server.url) as client:
            client.create_table(t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
        with (
            Worker(OneRowWriters, server.url, FEW_CONNECTIONS) as of_few,
            Worker(OneRowWriters, server.url, many) as of_many,
        ):
            of_few.wait_ready()
            of_many.wait_ready()
            cpu = CpuRounds(
                rounds,
                {
                    "few": ([server.pid], lambda: of_few.call(OneRowWriters.upsert, rows)),
                    "many": ([server.pid], lambda: of_many.call(OneRowWriters.upsert, rows)),
                },
            )
    return cpu.ratios("many", "few")


def connections(bench: Bench) -> Result:
    """Upserts over 1,000 connections."""
    many = max(2, bench.rows // _SCALE)
    figure = Figure(
        name="connections",
        work=f"upsert of one row from each of {many:,} connections, server",
        against=f"from each of {FEW_CONNECTIONS}",
        unit="ratio",
        spread=measure_connections(bench.directory, many, 2 * many, bench.runs),
        at_most=1.3,
    )
    return Result(figures=[figure])


class ColumnsWriter:
    """Upserts rows of so many columns, which are numbers and texts in turn."""

    def __init__(self, client: Client, columns: int, values: int) -> None:
        fields = [pa.field(f"c{number}", pa.string() if number % 2 else pa.int64()) for number in range(1, columns)]
        self._schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *fields])
        self._table = client.create_table(
            f"growth.columns_{columns}", self._schema, primary_key=["id"], buckets=1, columnar_base="off"
        )
        self._rows = max(1, values // columns)
        self._written = 0

    def upsert(self) -> int:
        """Upserts new rows. Returns the number of their values."""
        ids = pa.array(range(self._written, self._written + self._rows), pa.int64())
        self._written += self._rows
        texts = ids.cast(pa.string())
        columns = [texts if field.type == pa.string() else ids for field in self._schema]
        self._table.upsert(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return self._rows * len(columns)


def measure_columns(directory: Path, values: int, rounds: int) -> Spread:
    """Compares the processor time for a value in rows of many columns with that in rows of few."""
    with BenchmarkServer(directory / "columns") as server, sync.connect(server.url) as client:
        narrow, wide = (ColumnsWriter(client, columns, values) for columns in (NARROW, WIDE))
        both = (server.pid, os.getpid())
        cpu = CpuRounds(rounds, {"narrow": (both, narrow.upsert), "wide": (both, wide.upsert)})
    return cpu.ratios("wide", "narrow")


def columns(bench: Bench) -> Result:
    """Upserts rows of 900 columns."""
    figure = Figure(
        name="columns",
        work=f"upsert, for each value of rows of {WIDE} columns",
        against=f"of rows of {NARROW} columns",
        unit="ratio",
        spread=measure_columns(bench.directory, bench.rows, bench.runs),
        at_most=1.5,
    )
    return Result(figures=[figure])


def scattered(bench: Bench) -> Result:
    """Updates random rows of a large table and of a small one; 30 million rows take some minutes."""
    sizes = {"small": max(1, bench.rows // _SMALLER), "large": bench.rows}
    for name, rows in sizes.items():
        with BenchmarkServer(bench.directory / name) as server, sync.connect(server.url) as client:
            _load(client, rows)
    default = _measure_scattered(bench, sizes, 1, {})
    small = _measure_scattered(bench, sizes, 2, {"block_cache_bytes": SMALL_CACHE_BYTES})
    return Result(
        figures=[
            Figure(
                name=name,
                work=f"update of random rows, for each of a table of {bench.rows:,} rows, {cache}, server",
                against=f"of a table of {sizes['small']:,} rows",
                unit="ratio",
                spread=spread,
                at_most=target,
            )
            for name, cache, spread, target in (
                ("scattered", "the default cache", default, 2.0),
                ("scattered_small_cache", "64 MiB of cache", small, None),
            )
        ]
    )


def _measure_scattered(bench: Bench, sizes: dict[str, int], seed: int, settings: dict[str, float]) -> Spread:
    # The amounts differ by the seed, since an update that changes nothing is not an update.
    # A server for each table, since tables of one server share its block cache.
    with ExitStack() as stack:
        updates: dict[str, tuple[list[int], Callable[[], int]]] = {}
        for name, rows in sizes.items():
            server = stack.enter_context(BenchmarkServer(bench.directory / name, **settings))
            table = stack.enter_context(sync.connect(server.url)).table(t4.TABLE)
            updates[name] = [server.pid], partial(_update, table, rows, np.random.default_rng(seed))
        for _, update in updates.values():
            for _ in range(_WARM_UPDATES):  # fill the block cache
                update()
        return CpuRounds(bench.runs, updates).ratios("large", "small")


def _load(client: Client, rows: int) -> None:
    progress(f"loading {rows:,} rows")
    table = client.create_table(
        t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS, columnar_base="off"
    )
    for batch in t4.batches(rows, _UPDATED_ROWS):
        table.upsert(batch)


def _update(table: Table, rows: int, random: np.random.Generator) -> int:
    """Gives random rows new amounts. Returns how many."""
    updated = 0
    for _ in range(_UPDATED_ROWS // _REQUEST_ROWS):
        ids = np.unique(random.integers(0, rows, _REQUEST_ROWS))
        table.upsert(t4.rows_of(ids).set_column(2, t4.SCHEMA.field(2), pa.array(random.random(len(ids)))))
        updated += len(ids)
    return updated
