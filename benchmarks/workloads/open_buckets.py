"""Measures what 1,000 open buckets cost calls that need four of them, and all of them, and what closed ones cost."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from aio_client.sync import connect
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, paired_ratios, progress
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from streaming_server.storage.files.file_limit import file_limit, max_open_buckets, raise_file_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.bench import Bench

_FEW: Final = "bench.few"
_MANY: Final = "bench.many"
_FEW_BUCKETS: Final = 4
_OPEN_BUCKETS: Final = 1000
_LEAST_OPEN: Final = 16
# Compared with the rows of the run, so that a trial run has fewer buckets.
_T4_ROWS_OF_A_BUCKET: Final = 2000
_ROWS_OF_A_BUCKET: Final = 20
_SCHEMA: Final = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())])
_CALLS: Final = 20
_WORK: Final = {
    "describe": "description",
    "first row": "description and first row of a scan",
    "statistics": "description and statistics",
}
_MILLIS: Final = 1000.0
_MOST_MILLIS_TO_OPEN: Final = 20.0
"""A bucket, which holds the interpreter lock: docs/internals/open-buckets.md."""
_IDLE_SECONDS: Final = 86_400


class BucketCaller:
    """A client of one server, which describes its tables and reads the first rows of each."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Self:
        self._client = connect(self._url, operation_timeout=600, attempt_timeout=600)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def create(self, name: str, buckets: int) -> None:
        """Creates a table with rows in all of its buckets."""
        rows = buckets * _ROWS_OF_A_BUCKET
        table = self._client.create_table(name, _SCHEMA, primary_key=["id"], buckets=buckets)
        table.upsert(pa.table([range(rows), [0.5] * rows], schema=_SCHEMA))

    def round(self, names: list[str], calls: int) -> dict[str, float]:
        """Returns the mean seconds of each call for each table, by their names."""
        seconds: defaultdict[str, float] = defaultdict(float)
        for name in names:
            for kind, call in [*self._calls().items()] * calls:
                # Not measured: after this call, the server has finished the previous one, a scan that was aborted.
                self._client.wait_ready()
                began = time.perf_counter()
                call(name)
                seconds[f"{name} {kind}"] += (time.perf_counter() - began) / calls
        return dict(seconds)

    def _calls(self) -> dict[str, Callable[[str], object]]:
        # In this order, since the first row of a scan opens the buckets, whose statistics are known then.
        return {"describe": self._client.table, "first row": self._read_first_row, "statistics": self._read_statistics}

    def _read_first_row(self, name: str) -> None:
        with self._client.table(name).scan().with_chunk(rows=1).stream() as stream:
            next(stream)

    def _read_statistics(self, name: str) -> None:
        self._client.table(name).stats()


def run(bench: Bench) -> Result:
    """Runs two servers, one with four buckets and one with 1,000, and calls both in turn, warm and right after a start.

    The larger server has a table of four buckets, as the other one, and a table with all other buckets.
    """
    raise_file_limit()
    # A server closes buckets beyond what its limit of open files allows.
    kept_open = max_open_buckets(_OPEN_BUCKETS, file_limit())
    many = max(min(kept_open, bench.rows // _T4_ROWS_OF_A_BUCKET), _LEAST_OPEN)
    directories = {_FEW: bench.directory / "few-buckets", _MANY: bench.directory / "many-buckets"}
    warm: list[dict[str, float]] = []
    cold: list[dict[str, float]] = []
    with _server(directories[_FEW]) as one, _server(directories[_MANY]) as other:
        with Worker(BucketCaller, one.url) as few, Worker(BucketCaller, other.url) as all_of_them:
            few.call(BucketCaller.create, _FEW, _FEW_BUCKETS)
            all_of_them.call(BucketCaller.create, _FEW, _FEW_BUCKETS)
            all_of_them.call(BucketCaller.create, _MANY, many - _FEW_BUCKETS)
            for number in range(-1, bench.runs):
                found = _round(few, all_of_them, _CALLS)
                if number >= 0:
                    warm.append(found)
                    _report(f"  run {number + 1} of {bench.runs}, warm", found)
    for number in range(bench.runs):
        with _server(directories[_FEW]) as one, _server(directories[_MANY]) as other:
            with Worker(BucketCaller, one.url) as few, Worker(BucketCaller, other.url) as all_of_them:
                cold.append(_round(few, all_of_them, 1))
                _report(f"  run {number + 1} of {bench.runs}, cold", cold[-1])
    return Result(
        figures=[*_warm_figures(warm, many), *_cold_figures(cold, many)],
        notes=[
            f"Open buckets: {_CALLS} calls of each kind per run, in turn. Before each, an empty call that does not "
            "count lets the server free the iterators of the scan before, which was aborted after its first row. The "
            "bound of the calls right after a start was set after a first measurement. The limit of open files lets "
            f"{kept_open:,} buckets stay open.",
        ],
    )


def _server(directory: Path) -> BenchmarkServer:
    return BenchmarkServer(directory, max_open_buckets=2 * _OPEN_BUCKETS, bucket_idle_seconds=_IDLE_SECONDS)


def _round(few: Worker[BucketCaller], many: Worker[BucketCaller], calls: int) -> dict[str, float]:
    """Returns the seconds of the calls of both servers; those of the smaller one begin with "alone"."""
    alone = few.call(BucketCaller.round, [_FEW], calls)
    return {f"alone {name}": seconds for name, seconds in alone.items()} | many.call(
        BucketCaller.round, [_FEW, _MANY], calls
    )


def _report(what: str, found: dict[str, float]) -> None:
    progress(what + ": " + ", ".join(f"{name} {_MILLIS * seconds:.2f} ms" for name, seconds in found.items()))


def _warm_figures(found: list[dict[str, float]], many: int) -> list[Figure]:
    return [
        Figure(
            name=f"open_buckets_{kind.replace(' ', '_')}_{place}",
            work=f"{work} of a table of {buckets:,} buckets, while {many:,} are open",
            against=f"of a table of {_FEW_BUCKETS} buckets, while no others are open",
            unit="times",
            spread=paired_ratios(
                [each[f"{table} {kind}"] for each in found], [each[f"alone {_FEW} {kind}"] for each in found]
            ),
            at_most=3,
        )
        for table, place, buckets in ((_FEW, "beside", _FEW_BUCKETS), (_MANY, "in_one", many - _FEW_BUCKETS))
        for kind, work in _WORK.items()
    ]


def _cold_figures(found: list[dict[str, float]], many: int) -> list[Figure]:
    return [
        Figure(
            name=f"closed_buckets_first_row_{place}",
            work=f"{_WORK['first row']} of a table of {buckets:,} buckets, right after a start",
            against="wall clock",
            unit="ms",
            spread=Spread.of(_MILLIS * each[f"{table} first row"] for each in found),
            at_most=_MOST_MILLIS_TO_OPEN * buckets,
        )
        for table, place, buckets in ((_FEW, "few", _FEW_BUCKETS), (_MANY, "many", many - _FEW_BUCKETS))
    ]
