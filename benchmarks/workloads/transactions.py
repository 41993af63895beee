"""A transaction against plain upserts of the same rows, and lookups beside its commit."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from aio_client import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, Timing, interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from typing import Self

    from aio_client import Client, Table
    from benchmarks.bench import Bench

_MOST_ROWS: Final = 1_000_000
_CALL_ROWS: Final = 100_000
_LOOKUP_KEYS: Final = 100
_PLAIN, _TRANSACTION, _BESIDE = "plain upserts", "one transaction", "beside lookups"


def run(bench: Bench) -> Result:
    """Writes a million rows over as many others, in turn in both ways."""
    rows = min(bench.rows, _MOST_ROWS)
    waits: list[float] = []
    with (
        BenchmarkServer(bench.directory / "transactions") as server,
        Worker(TransactionWriter, server.url, rows) as writer,
    ):

        def write(how: str) -> Timing:
            timing, longest = writer.call(TransactionWriter.write, how)
            if how == _BESIDE:
                waits.append(longest)
            return timing.checked(rows)

        rates = interleaved(bench.runs, {how: partial(write, how) for how in (_PLAIN, _TRANSACTION, _BESIDE)})
    # Of rates, so that a greater one is a shorter time.
    times = [plain / within for plain, within in zip(rates[_PLAIN], rates[_TRANSACTION], strict=True)]
    return Result(
        figures=[
            Figure(
                name="transaction_vs_upserts",
                work=f"a transaction of {rows:,} rows of T4, begin to commit, durable, full changelog",
                against="the time of plain upserts of the same rows, each into a table that is empty",
                unit="times",
                spread=Spread.of(times),
                at_most=1.3,
            ),
            Figure(
                name="lookup_beside_commit",
                work=f"the slowest lookup of {_LOOKUP_KEYS} keys, one after another while it is committed",
                against="wall clock of another client",
                unit="ms",
                spread=Spread.of([1000 * wait for wait in waits]),
                at_most=1000,
            ),
        ],
        tables=[],
        notes=["No lookups are made beside the transactions whose time counts."],
    )


class TransactionWriter:
    """Writes T4 through the client, in calls of 100,000 rows."""

    def __init__(self, url: str, rows: int) -> None:
        self._url = url
        self._batches = list(t4.batches(rows, _CALL_ROWS))
        self._runner = asyncio.Runner()
        self._longest = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def write(self, how: str) -> tuple[Timing, float]:
        """Writes everything into a new table; how long that took, and the slowest lookup beside the commit."""
        return self._runner.run(self._write(how))

    async def _write(self, how: str) -> tuple[Timing, float]:
        async with connect(self._url) as client:
            table = await client.create_table(t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
            self._longest = 0.0
            started = time.perf_counter()
            if how == _PLAIN:
                await self._plainly(table)
            else:
                await self._within(client, table, lookups=how == _BESIDE)
            seconds = time.perf_counter() - started
            timing = Timing(await table.count(), seconds)
            await client.drop_table(t4.TABLE)
        return timing, self._longest

    async def _plainly(self, table: Table) -> None:
        for batch in self._batches:
            await table.upsert(batch)

    async def _within(self, client: Client, table: Table, *, lookups: bool) -> None:
        begun = await client.transaction()
        for batch in self._batches:
            await begun.upsert(table, batch)
        looking = [asyncio.create_task(self._look_up(table))] if lookups else []
        await begun.commit()
        for task in looking:
            task.cancel()
            await asyncio.wait([task])

    async def _look_up(self, table: Table) -> None:
        keys = self._batches[0].column(0).slice(0, _LOOKUP_KEYS)
        while True:
            started = time.perf_counter()
            await table.lookup(keys)
            self._longest = max(self._longest, time.perf_counter() - started)
