"""Measures scans of rows that were written before the columns of their table changed, and the changes themselves."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, paired_ratios, run_interleaved
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from benchmarks.workloads.base_tables import create_filled_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client.sync import Client
    from benchmarks.bench import Bench

_MOST_ROWS: Final = 1_000_000
_BATCH_ROWS: Final = 50_000
_CURRENT, _OLDER, _MIXED = "rows of the current schema", "rows of an older schema", "rows of two schemas"
_TABLES: Final = {_CURRENT: "bench.current", _OLDER: "bench.older", _MIXED: "bench.mixed"}
_RENAMED: Final = {"name": "label", "ts": "at"}
_EMPTY: Final = "bench.empty"
_CHANGES: Final = 20


def run(bench: Bench) -> Result:
    """Reads the same rows from three tables in turn, then changes columns of a full table and of an empty one."""
    rows, data = min(bench.rows, _MOST_ROWS), bench.directory / "evolution"
    with BenchmarkServer(data) as server, connect(server.url) as client:
        _fill(client, rows)
    # A new server has no rows in write buffers, so all rows are read from table files.
    with BenchmarkServer(data) as server:
        with ExitStack() as stack:
            contenders = {
                what: _reading(stack.enter_context(Worker(ClientReader, server.url, name)), rows)
                for what, name in _TABLES.items()
            }
            rates = run_interleaved(bench.runs, contenders)
        with connect(server.url) as client:
            client.create_table(_EMPTY, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
            times = [(_change(client, _TABLES[_CURRENT], n), _change(client, _EMPTY, n)) for n in range(_CHANGES)]
    return Result(
        figures=[
            Figure(
                name=f"evolution_{name}",
                work=f"scan of {what}, time",
                against="the same rows of the current schema",
                unit="ratio",
                spread=paired_ratios(rates[_CURRENT], rates[what]),
                at_most=at_most,
            )
            for name, what, at_most in (("older", _OLDER, 1.05), ("mixed", _MIXED, 1.35))
        ]
        + [
            Figure(
                name="evolution_change",
                work=f"adding, renaming and dropping a column of {rows:,} rows, time",
                against="of an empty table",
                unit="ratio",
                spread=Spread.of([full / empty for full, empty in times]),
                at_most=1.5,
            )
        ],
        tables=[rates_table("Rows of older schemas", {what: Spread.of(values) for what, values in rates.items()})],
        notes=[
            "Rows of older schemas: T4, with two columns renamed and the columns in another order since.",
            "Rows of two schemas: as above, and every second row was written since.",
            f"Changes of columns: three calls each, {_CHANGES} times; "
            f"{1000 * Spread.of([full for full, _ in times]).median:.1f} ms for the full table.",
        ],
    )


def _fill(client: Client, rows: int) -> None:
    for what, name in _TABLES.items():
        create_filled_table(client, rows if what != _CURRENT else 0, name, "off")
        table = client.alter_table(name, rename_columns=_RENAMED, column_order=["at", "id", "amount", "label"])
        if what == _OLDER:
            continue
        for batch in t4.batches(rows, _BATCH_ROWS):
            renamed = batch.rename_columns([_RENAMED.get(column, column) for column in batch.schema.names])
            table.upsert(renamed if what == _CURRENT else renamed.take(pa.array(range(0, batch.num_rows, 2))))


def _reading(reader: Worker[ClientReader], rows: int) -> Callable[[], Any]:
    return lambda: reader.call(ClientReader.read).check_rows(rows)


def _change(client: Client, name: str, number: int) -> float:
    """Adds, renames and drops a column. Returns the seconds."""
    started = time.perf_counter()
    client.alter_table(name, add_columns=pa.schema([("added", pa.int64())]), column_defaults={"added": number})
    client.alter_table(name, rename_columns={"added": "renamed"})
    client.alter_table(name, drop_columns=["renamed"])
    return time.perf_counter() - started
