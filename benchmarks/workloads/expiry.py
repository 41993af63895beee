"""Measures scans and upserts of tables whose rows expire, against the same of tables whose rows do not."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client.sync import Client
    from benchmarks.bench import Bench

_MOST_ROWS: Final = 1_000_000
_WRITTEN_ROWS: Final = 200_000
_REQUEST_ROWS: Final = 50_000
_TTL: Final = 50 * 365 * 86_400
_PLAIN, _BY_COLUMN, _BY_WRITE = "rows that do not expire", "rows that expire by a column", "rows that expire by write"
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    _PLAIN: {},
    _BY_COLUMN: {"ttl_seconds": _TTL, "ttl_column": "ts"},
    _BY_WRITE: {"ttl_seconds": _TTL},
}
_NAMES: Final = {_BY_COLUMN: "column", _BY_WRITE: "write"}


def run(bench: Bench) -> Result:
    """Reads and then writes the same rows in turn. No row has expired."""
    rows, data = min(bench.rows, _MOST_ROWS), bench.directory / "expiry"
    written = min(rows, _WRITTEN_ROWS)
    with BenchmarkServer(data) as server, connect(server.url) as client:
        for what, options in _OPTIONS.items():
            _load(client, f"bench.{_OPTIONS_NAMES[what]}", rows, options)
    # A new server has no rows in write buffers, so all rows are read from table files.
    with BenchmarkServer(data) as server, connect(server.url) as client:
        with ExitStack() as stack:
            reads = run_interleaved(
                bench.runs,
                {
                    what: _reading(
                        stack.enter_context(Worker(ClientReader, server.url, f"bench.{_OPTIONS_NAMES[what]}")), rows
                    )
                    for what in _OPTIONS
                },
            )
        writes = run_interleaved(
            bench.runs, {what: _writing(client, written, options) for what, options in _OPTIONS.items()}
        )
    return Result(
        figures=[
            Figure(
                name=f"expiry_{kind}_{name}",
                work=f"{work} of {what}, time",
                against="the same rows, which do not expire",
                unit="ratio",
                spread=paired_ratios(rates[_PLAIN], rates[what]),
                at_most=at_most,
            )
            for kind, work, rates, at_most in (("scan", "scan", reads, 1.15), ("upsert", "upsert", writes, 1.10))
            for what, name in _NAMES.items()
        ],
        tables=[
            rates_table("Scans of rows that expire", {what: Spread.of(values) for what, values in reads.items()}),
            rates_table("Upserts of rows that expire", {what: Spread.of(values) for what, values in writes.items()}),
        ],
        notes=[
            "Rows that expire: T4 with a time to live that no row has reached. Upserts are of new rows, in requests of "
            f"{_REQUEST_ROWS:,} rows.",
        ],
    )


_OPTIONS_NAMES: Final = {_PLAIN: "plain", **_NAMES}


def _load(client: Client, name: str, rows: int, options: dict[str, Any]) -> float:
    """Creates a table with the rows of T4. Returns the seconds of the upserts."""
    table = client.create_table(name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS, **options)
    batches = list(t4.batches(rows, _REQUEST_ROWS))
    started = time.perf_counter()
    for batch in batches:
        table.upsert(batch)
    return time.perf_counter() - started


def _reading(reader: Worker[ClientReader], rows: int) -> Callable[[], Any]:
    return lambda: reader.call(ClientReader.read).check_rows(rows)


def _writing(client: Client, rows: int, options: dict[str, Any]) -> Callable[[], Timing]:
    def write() -> Timing:
        seconds = _load(client, "bench.written", rows, options)
        client.drop_table("bench.written")
        return Timing(rows, seconds)

    return write
