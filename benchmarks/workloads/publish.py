"""Measures how long it takes to publish few changes of a table, and the share of the server in publishing many."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from aio_client import connect, sync
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, progress
from benchmarks.proc import cpu_seconds
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import create_filled_table, updates
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.bench import Bench

_TABLE: Final = "bench.published"
_SHARE: Final = 100
"""One in so many rows changes."""
_MANY: Final = 3
"""One in so many rows changes where the work of the server is measured, which then exceeds that of the pin."""


def run(bench: Bench) -> Result:
    """Publishes T4 again and again: all rows, scattered changes with and without vectors, clustered changes."""
    times: dict[str, list[float]] = {}
    with BenchmarkServer(bench.directory / "published_data") as server, sync.connect(server.url) as client:
        table = create_filled_table(client, bench.rows, _TABLE, "off")
        for number in range(-1, bench.runs):
            files, vectors, all_rows = (
                str(bench.directory / f"{kind}-{number}") for kind in ("files", "vectors", "all")
            )
            _publish(server.url, files)
            _publish(server.url, vectors)
            _upsert(table, updates(bench.rows, bench.rows // _SHARE, 2 * number + 2))
            seconds = {"vectors": _publish(server.url, vectors, masks=True), "files": _publish(server.url, files)}
            # Here, because it reads the same files of RocksDB as the others then.
            full = _publish(server.url, all_rows)
            _upsert(table, _clustered(bench.rows, number))
            seconds["clustered"] = _publish(server.url, files)
            measured = {name: taken / full for name, taken in seconds.items()}
            used = cpu_seconds(server.pid)
            _upsert(table, updates(bench.rows, bench.rows // _MANY, 2 * number + 3))
            written = cpu_seconds(server.pid)
            _publish(server.url, vectors, masks=True)
            measured["server"] = (cpu_seconds(server.pid) - written) / (written - used)
            progress(f"  run {number + 1} of {bench.runs}: {full:.2f} s for all rows, then {measured}")
            if number >= 0:
                for name, value in measured.items():
                    times.setdefault(name, []).append(value)
    changed = f"{bench.rows // _SHARE:,} of {bench.rows:,} rows"
    return Result(
        figures=[
            _figure(
                "publish_vectors", f"publish {changed}, scattered, with deletion vectors, time", times["vectors"], 0.3
            ),
            _figure("publish_files", f"publish {changed}, scattered, as replaced files, time", times["files"], 1.2),
            _figure(
                "publish_clustered", f"publish {changed}, adjacent, by replacing files, time", times["clustered"], 0.3
            ),
            Figure(
                name="publish_server",
                work=f"publish {bench.rows // _MANY:,} rows, scattered, as vectors: processor time of the server",
                against="the upserts that are published",
                unit="ratio",
                spread=Spread.of(times["server"]),
                at_most=0.1,
            ),
        ],
        notes=["Publishing: T4, as a Delta table in a directory on the same disk, with files of 65,536 rows."],
    )


def _figure(name: str, work: str, values: Iterable[float], at_most: float) -> Figure:
    return Figure(
        name=name, work=work, against="publishing all rows", unit="ratio", spread=Spread.of(values), at_most=at_most
    )


def _publish(url: str, location: str, *, masks: bool = False) -> float:
    """Publishes the table, and returns the seconds that it took. Fails if nothing was published."""

    async def work() -> None:
        async with connect(url) as client:
            report = await publish(client, _TABLE, open_lake_table(location), PublishOptions(masks=masks))
            if report.mode == "unchanged":
                raise RuntimeError("there must be something to publish")

    started = time.perf_counter()
    asyncio.run(work())
    return time.perf_counter() - started


def _upsert(table: sync.Table, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        table.upsert(batch)


def _clustered(rows: int, number: int) -> Iterable[pa.RecordBatch]:
    """Yields adjacent rows of T4 with new amounts."""
    batch = t4.rows(rows // 2, rows // _SHARE)
    yield batch.set_column(2, t4.SCHEMA.field(2), pa.array(np.full(batch.num_rows, -0.5 - number)))
