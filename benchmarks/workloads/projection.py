"""Compares a scan of two of ten columns with a scan of all ten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aio_client.sync import connect
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, paired_ratios, progress, run_interleaved
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench

_TABLE: Final = "bench.ten"
_MOST_ROWS: Final = 500_000
_BATCH_ROWS: Final = 50_000
PROJECTED: Final = ("player", "score")
_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("player", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("level", pa.int32()),
        pa.field("active", pa.bool_()),
        pa.field("seen", pa.timestamp("us")),
        pa.field("born", pa.date32()),
        pa.field("balance", pa.decimal128(12, 2)),
        pa.field("country", pa.string()),
        pa.field("note", pa.string()),
    ]
)
_SPREAD, _PRIME = 2_654_435_761, 1_000_003


def run(bench: Bench) -> Result:
    """Reads ten columns and two of them, in turn."""
    rows, data = min(bench.rows, _MOST_ROWS), bench.directory / "ten"
    with BenchmarkServer(data) as server, connect(server.url) as client:
        create_table_of_ten(client, _TABLE, rows)
    two, ten = " and ".join(PROJECTED), "all ten columns"
    # A new server has no rows in write buffers, so all rows are read from table files, as with T4.
    with BenchmarkServer(data) as server, Worker(ClientReader, server.url, _TABLE) as reader:
        rates = run_interleaved(
            bench.runs,
            {
                ten: lambda: reader.call(ClientReader.read).check_rows(rows),
                two: lambda: reader.call(ClientReader.read_some, PROJECTED, None).check_rows(rows),
            },
        )
    return Result(
        figures=[
            Figure(
                name="projection_vs_scan",
                work=f"scan of two of ten columns, {rows:,} rows, rows/s",
                against="full scan of the same table",
                unit="ratio",
                spread=paired_ratios(rates[two], rates[ten]),
                at_least=1.5,
            )
        ],
        tables=[rates_table("Two of ten columns", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Projection: the ten columns are three strings, int64, int32, float64, boolean, timestamp, date and "
            "decimal; the two are a string and a float64. Storage is row by row, so the server reads complete rows.",
        ],
    )


def create_table_of_ten(client: Client, name: str, rows: int, buckets: int = 1) -> Table:
    """Creates a table of ten columns with so many rows."""
    progress(f"loading {rows:,} rows of ten columns")
    table = client.create_table(name, _SCHEMA, primary_key=["id"], buckets=buckets)
    for start in range(0, rows, _BATCH_ROWS):
        table.upsert(_rows(start, min(_BATCH_ROWS, rows - start)))
    return table


def _rows(start: int, count: int) -> pa.RecordBatch:
    """Returns rows `start` to `start + count`: ids ascend, all else is scattered, and every tenth note is null."""
    ids = np.arange(start, start + count, dtype=np.int64)
    scattered = ids * _SPREAD % _PRIME
    text = pa.array(scattered).cast(pa.string())
    columns = [
        pa.array(ids),
        pc.binary_join_element_wise("player", text, "-"),
        pa.array(scattered / 100),
        pa.array((scattered % 100).astype(np.int32)),
        pa.array(scattered % 2 == 0),
        pa.array(1_700_000_000_000_000 + 1000 * scattered).cast(pa.timestamp("us")),
        pa.array((scattered % 20_000).astype(np.int32)).cast(pa.date32()),
        pa.array(scattered).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2)),
        pc.binary_join_element_wise("country", pa.array(scattered % 200).cast(pa.string()), " "),
        pc.if_else(
            pa.array(scattered % 10 == 0),
            pa.scalar(None, pa.string()),
            pc.binary_join_element_wise("what is to be said of player", text, "is said here", " "),
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
