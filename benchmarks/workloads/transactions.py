"""Compares a transaction with plain upserts of the same rows, and measures lookups during its commit."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from aio_client import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from aio_client import Client, Table
    from benchmarks.bench import Bench

_MOST_ROWS: Final = 1_000_000
_CALL_ROWS: Final = 100_000
_LOOKUP_KEYS: Final = 100
_PLAIN, _TRANSACTION, _BESIDE = "plain upserts", "one transaction", "beside lookups"
_UPDATES, _REPLACE, _SAME = "upserts of changed rows", "replacement by changed rows", "replacement by equal rows"
_ALL: Final = (_PLAIN, _TRANSACTION, _BESIDE, _UPDATES, _REPLACE, _SAME)


def run(bench: Bench) -> Result:
    """Writes up to a million rows into a new table, with upserts and with a transaction in turn."""
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
            return timing.check_rows(rows)

        rates = run_interleaved(bench.runs, {how: partial(write, how) for how in _ALL})
    # These are rates, so the ratio of the times is the inverse.
    times = [plain / within for plain, within in zip(rates[_PLAIN], rates[_TRANSACTION], strict=True)]
    return Result(
        figures=[
            Figure(
                name="transaction_vs_upserts",
                work=f"a transaction of {rows:,} rows of T4, begin to commit, durable, full changelog",
                against="the time of plain upserts of the same rows, both into empty tables",
                unit="times",
                spread=Spread.of(times),
                at_most=1.3,
            ),
            *(
                Figure(
                    name=name,
                    work=f"`replace` of a table of {rows:,} rows by {what}",
                    against=f"the time of {against}",
                    unit="times",
                    spread=paired_ratios(rates[reference], rates[how]),
                )
                for name, what, how, against, reference in (
                    ("replace_vs_upserts", "as many changed rows", _REPLACE, "their plain upserts", _UPDATES),
                    ("replace_vs_load", "as many changed rows", _REPLACE, "plain upserts into an empty table", _PLAIN),
                    ("replace_by_equal_rows", "the same rows", _SAME, "plain upserts into an empty table", _PLAIN),
                )
            ),
            Figure(
                name="lookup_beside_commit",
                work=f"the slowest lookup of {_LOOKUP_KEYS} keys, one after another during the commit",
                against="wall clock of another client",
                unit="ms",
                spread=Spread.of([1000 * wait for wait in waits]),
                at_most=1000,
            ),
        ],
        tables=[],
        notes=["No lookups run during the transactions whose time is compared."],
    )


class TransactionWriter:
    """Writes T4 through the client, in calls of 100,000 rows."""

    def __init__(self, url: str, rows: int) -> None:
        self._url = url
        self._batches = list(t4.batches(rows, _CALL_ROWS))
        amount = t4.SCHEMA.get_field_index("amount")
        self._changed = [
            batch.set_column(amount, t4.SCHEMA.field(amount), pc.add(batch.column(amount), 1.0))
            for batch in self._batches
        ]
        self._runner = asyncio.Runner()
        self._longest = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def write(self, how: str) -> tuple[Timing, float]:
        """Writes all rows into a new table. Returns the timing and the seconds of the slowest lookup."""
        return self._runner.run(self._write(how))

    async def _write(self, how: str) -> tuple[Timing, float]:
        async with connect(self._url) as client:
            table = await client.create_table(t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
            if how in (_UPDATES, _REPLACE, _SAME):
                await self._upsert_all(table, self._batches)
            self._longest = 0.0
            started = time.perf_counter()
            if how == _PLAIN:
                await self._upsert_all(table, self._batches)
            elif how == _UPDATES:
                await self._upsert_all(table, self._changed)
            elif how in (_REPLACE, _SAME):
                await table.replace(pa.Table.from_batches(self._changed if how == _REPLACE else self._batches))
            else:
                await self._write_transaction(client, table, lookups=how == _BESIDE)
            seconds = time.perf_counter() - started
            timing = Timing(await table.count(), seconds)
            await client.drop_table(t4.TABLE)
        return timing, self._longest

    async def _upsert_all(self, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            await table.upsert(batch)

    async def _write_transaction(self, client: Client, table: Table, *, lookups: bool) -> None:
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
