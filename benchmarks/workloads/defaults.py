"""Measures tables with default settings: scans before and after their columnar bases, what bases cost, and writers."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Self

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, progress, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from benchmarks.workloads.base_tables import updates
from benchmarks.workloads.projection import PROJECTED, create_table_of_ten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aio_client import ReadPath
    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench

_T4, _TEN = "bench.t4", "bench.ten"
_OFF, _AUTO = "off", "auto"
_LOAD_ROWS: Final = 50_000
_TEN_ROWS: Final = 500_000
_LOADED: Final = 500_000
_CALLS: Final = 300
_READY_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05
_EXTRA_UPDATES: Final = 0.1
_RECOVERED: Final = 3
"""How many times as fast as RocksDB a scan is once its base has caught up with the writers."""


class Updater:
    """Another process, which updates all rows of T4 in random order, and some of them again, as fast as they go."""

    def __init__(self, url: str, rows: int) -> None:
        self._url = url
        self._rows = rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self) -> int:
        """Returns the number of updates."""
        with connect(self._url) as client:
            table = client.table(_T4)
            return sum(
                table.upsert(batch).rows
                for number, count in enumerate((self._rows, int(_EXTRA_UPDATES * self._rows)))
                for batch in updates(self._rows, count, number)
            )


def run(bench: Bench) -> Result:
    """Measures everything with one server, except for the writers, which have their own."""
    with BenchmarkServer(bench.directory / "defaults") as server, connect(server.url) as client:
        figures, rates = _measure_first_and_third(bench, client)
        figures += _measure_queries(bench, client, rates)
        figures += _measure_writes(bench, client)
    with (
        BenchmarkServer(bench.directory / "default-writers") as server,
        connect(server.url) as client,
        Worker(Updater, server.url, bench.rows) as updater,
    ):
        figures += _measure_writers(bench, client, updater)
    return Result(
        figures=figures,
        tables=[rates_table("Default settings", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Default settings: tables of four buckets. The third scan begins when every bucket has the base that the "
            "first scan has asked for. Tables that are never scanned have no bases; those scanned every second "
            "have one in each bucket. Writers: one process updates all rows in random order, and a tenth of them "
            "again, in requests of 10,000 rows, while the table is scanned by both read paths in turn.",
        ],
    )


def _measure_first_and_third(bench: Bench, client: Client) -> tuple[list[Figure], dict[str, list[float]]]:
    """Loads T4 into a new table in each round, and keeps the last one."""
    firsts, thirds, waits = [], [], []
    for number in range(bench.runs):
        if number:
            client.drop_table(_T4)
        table = _load(client, _T4, bench.rows)
        firsts.append(_scan(table, bench.rows).rate)
        waits.append(_wait_for_bases(table))
        _scan(table, bench.rows)
        thirds.append(_scan(table, bench.rows).rate)
    return [
        Figure(
            name="default_third_scan",
            work=f"third scan of {bench.rows:,} rows with default settings, rows/s",
            against="the first scan, in the same round",
            unit="ratio",
            spread=paired_ratios(thirds, firsts),
            at_least=3,
        ),
        Figure(
            name="default_base_wait",
            work=f"from the first scan of {bench.rows:,} rows until every bucket has a base",
            against="wall clock",
            unit="ms",
            spread=Spread.of(1000 * seconds for seconds in waits),
        ),
    ], {"first scan": firsts, "third scan": thirds}


def _measure_queries(bench: Bench, client: Client, rates: dict[str, list[float]]) -> list[Figure]:
    """Measures what gains most: few of many columns, and predicates without an index."""
    ten_rows = min(bench.rows, _TEN_ROWS)
    ten = create_table_of_ten(client, _TEN, ten_rows, buckets=4)
    _scan(ten, ten_rows)
    _wait_for_bases(ten)
    t4_table, kept = client.table(_T4), bench.rows // 100
    few = f"amount < {kept / 100}"
    some = client.table(_T4).count(few)
    works: dict[str, tuple[Callable[[ReadPath], Timing], str]] = {
        "two of ten columns": (lambda path: _scan(ten, ten_rows, path, PROJECTED), f"{ten_rows:,} rows"),
        "predicate": (
            lambda path: Timing(bench.rows, _scan(t4_table, some, path, where=few).seconds),
            f"{some:,} of {bench.rows:,} rows, without an index",
        ),
    }
    figures = []
    for name, (read, what) in works.items():
        before, after = f"{name}, RocksDB", f"{name}, default settings"
        found = run_interleaved(bench.runs, {before: partial(read, "rocksdb"), after: partial(read, "auto")})
        rates |= found
        figures.append(
            Figure(
                name=f"default_{name.replace(' ', '_')}",
                work=f"{name}, {what}, with default settings, rows/s",
                against="the same from RocksDB",
                unit="ratio",
                spread=paired_ratios(found[after], found[before]),
                at_least=3,
            )
        )
    return figures


def _measure_writes(bench: Bench, client: Client) -> list[Figure]:
    loads = run_interleaved(bench.runs, {base: partial(_time_load, client, base) for base in (_OFF, _AUTO)})
    tables = {base: _load(client, f"bench.{base}", _LOADED, columnar_base=base) for base in (_OFF, _AUTO)}
    _scan(tables[_AUTO], _LOADED)
    _wait_for_bases(tables[_AUTO])
    seed = 0

    def make_calls(table: Table, kind: str) -> Timing:
        nonlocal seed
        seed += 1
        (batch,) = updates(_LOADED, _CALLS, seed, _CALLS)
        rows = batch.to_pylist()
        started = time.perf_counter()
        for row in rows:
            table.get(row["id"]) if kind == "get" else table.upsert([row])
        return Timing(len(rows), time.perf_counter() - started)

    def update(table: Table) -> Timing:
        nonlocal seed
        seed += 1
        batches = list(updates(_LOADED, _LOADED // 2, seed))
        with _scanned_every_second(table):
            started = time.perf_counter()
            for batch in batches:
                table.upsert(batch)
            return Timing(_LOADED // 2, time.perf_counter() - started)

    pairs = {
        ("unscanned_upserts", f"bulk upserts of {_LOADED:,} new rows into a table that is never scanned", 0.95): loads,
        ("scanned_upserts", "bulk updates of a table with bases that is scanned every second", 0.8): run_interleaved(
            bench.runs, {base: partial(update, table) for base, table in tables.items()}
        ),
        **{
            (
                f"default_{kind}",
                f"`{kind}` of one row at a time in a table with bases",
                0.97,
            ): run_interleaved(
                3 * bench.runs, {base: partial(make_calls, table, kind) for base, table in tables.items()}
            )
            for kind in ("get", "upsert")
        },
    }
    return [
        Figure(
            name=name,
            work=f"{work}, with default settings, rows/s",
            against="the same with columnar_base=off",
            unit="ratio",
            spread=paired_ratios(rates[_AUTO], rates[_OFF]),
            at_least=at_least,
        )
        for (name, work, at_least), rates in pairs.items()
    ]


def _measure_writers(bench: Bench, client: Client, updater: Worker[Updater]) -> list[Figure]:
    table = _load(client, _T4, bench.rows)
    _scan(table, bench.rows)
    _wait_for_bases(table)
    progress("updating all rows while the table is scanned")

    def ratio() -> float:
        seconds = {path: _scan(table, bench.rows, path).seconds for path in ("auto", "rocksdb")}
        return seconds["rocksdb"] / seconds["auto"]

    updater.begin(Updater.update)
    during = []
    while updater.is_busy:
        during.append(ratio())
    updater.finish()
    ended = time.perf_counter()
    while ratio() < _RECOVERED and time.perf_counter() - ended < _READY_SECONDS:
        time.sleep(_POLL_SECONDS)
    after = time.perf_counter() - ended
    return [
        Figure(
            name="scans_under_writers",
            work=f"scans of {bench.rows:,} rows while all of them are updated, with default settings, rows/s",
            against="the same from RocksDB, in turn",
            unit="ratio",
            spread=Spread.of(during),
            at_least=0.9,
        ),
        Figure(
            name="scans_after_writers",
            work=f"from the end of the updates until scans are {_RECOVERED} times as fast as RocksDB again",
            against="wall clock",
            unit="ms",
            spread=Spread.of([1000 * after]),
            at_most=60_000,
        ),
    ]


def _load(client: Client, name: str, rows: int, columnar_base: str | None = None) -> Table:
    progress(f"loading {rows:,} rows of T4 into {name}")
    table = client.create_table(name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, columnar_base=columnar_base)
    for batch in t4.batches(rows, _LOAD_ROWS):
        table.upsert(batch)
    return table


def _time_load(client: Client, columnar_base: str) -> Timing:
    """Times the upserts of new rows into a new table, and drops it."""
    table = client.create_table("bench.load", t4.SCHEMA, primary_key=t4.PRIMARY_KEY, columnar_base=columnar_base)
    batches = list(t4.batches(_LOADED, _LOAD_ROWS))
    started = time.perf_counter()
    for batch in batches:
        table.upsert(batch)
    seconds = time.perf_counter() - started
    client.drop_table("bench.load")
    return Timing(_LOADED, seconds)


def _scan(
    table: Table,
    rows: int,
    path: ReadPath = "auto",
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> Timing:
    """Scans a table whose scan returns so many rows."""
    started, found = time.perf_counter(), 0
    with table.scan(columns, where=where).read_path(path).stream() as stream:
        for batch in stream:
            found += batch.num_rows
    return Timing(found, time.perf_counter() - started).check_rows(rows)


def _wait_for_bases(table: Table) -> float:
    """Returns the seconds until scans read a base of each bucket."""
    began = time.perf_counter()
    while any(bucket.base is None or bucket.base.unused_reason for bucket in table.stats()):
        if (seconds := time.perf_counter() - began) > _READY_SECONDS:
            raise RuntimeError(f"{table.name} has no bases after {seconds:.0f} s: {table.scan().explain()}")
        time.sleep(_POLL_SECONDS)
    return time.perf_counter() - began


@contextmanager
def _scanned_every_second(table: Table) -> Iterator[None]:
    """Scans the table once a second while the block runs."""
    ends = Event()

    def scan() -> None:
        while not ends.wait(1):
            _scan(table, _LOADED)

    scanner = Thread(target=scan)
    scanner.start()
    try:
        yield
    finally:
        ends.set()
        scanner.join()
