"""The session of the demo with its server: load, stream while rows change, stream again."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import connect
from scankv.demo.flights import KEY, SCHEMA, TABLE, Figures, read_flights
from scankv.demo.tally import Tally
from scankv.demo.zeroing import Zeroing
from scankv.formats.amounts import size
from scankv.model import lazy_compute as pc
from scankv.model.counts import counted

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table
    from scankv.demo.report import Report

_SAMPLE_EVERY: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of the session.

    Attributes:
        streamed: The figures of the first stream, which was open while rows changed.
        zeros_streamed: Rows with distance 0 in the first stream: updates that the stream must not show.
        concurrent_updates: Rows whose update was acknowledged before the first stream ended.
        updated: All rows that were updated.
        updated_miles: The distance that the updated rows had before.
        afterwards: The figures of the second stream, which was opened after the last update.
        zeros_afterwards: Rows with distance 0 in the second stream.
        zeros_looked_up: Rows with distance 0 in a lookup of the updated keys.
    """

    streamed: Figures
    zeros_streamed: int
    concurrent_updates: int
    updated: int
    updated_miles: int
    afterwards: Figures
    zeros_afterwards: int
    zeros_looked_up: int


async def run_session(address: str, source: Path, report: Report) -> Outcome:
    """Loads the flights into a new table and streams the table twice.

    Args:
        address: The server.
        source: The file with the flights.
        report: Prints every step.
    """
    async with connect(address) as client:
        report.print_line("server", f"{address}, in its own process")
        table = await client.create_table(TABLE, SCHEMA, primary_key=KEY)
        sample = await _load(table, source, report)
        zeroing = Zeroing(table, sample)
        streamed, concurrent = await _stream_while_rows_change(table, zeroing, report)
        afterwards = await _stream_again(table, report)
        before = zeroing.updated_rows()
        now = await table.lookup(before.select(list(KEY)))
        await _report_memory(client, report)
    return Outcome(
        streamed=streamed.figures(),
        zeros_streamed=streamed.zeros,
        concurrent_updates=concurrent,
        updated=before.num_rows,
        updated_miles=pc.sum(before.column("distance")).as_py(),
        afterwards=afterwards.figures(),
        zeros_afterwards=afterwards.zeros,
        zeros_looked_up=pc.sum(pc.equal(now.column("distance"), 0)).as_py(),
    )


async def _load(table: Table, source: Path, report: Report) -> pa.Table:
    """Loads all flights; returns every eighth of them."""
    sample: list[pa.RecordBatch] = []
    batches = read_flights(source)
    loaded = 0
    with report.step("load") as done:
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            write = None
            # The next batch is read while the last one is written.
            while (rows := await asyncio.to_thread(next, batches, None)) is not None:
                if write is not None:
                    await write
                write = group.create_task(table.upsert(rows))
                loaded += rows.num_rows
                sample.append(rows.take(pa.array(range(0, rows.num_rows, _SAMPLE_EVERY))))
        done(_speed(loaded, time.monotonic() - started))
    return pa.Table.from_batches(sample)


async def _stream_while_rows_change(table: Table, zeroing: Zeroing, report: Report) -> tuple[Tally, int]:
    """Streams the table; returns the tally of the rows, and how many rows were updated before the stream ended."""
    tally = Tally()
    writer = None
    with report.step("stream") as done:
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            async for rows in table.scan().stream():
                tally.add(rows)
                if writer is None:
                    writer = group.create_task(zeroing.run())
                    # Ensures that some rows are updated even if the stream is much faster than the updates.
                    await zeroing.first.wait()
            concurrent = zeroing.acknowledged
            zeroing.stop.set()
        done(f"{_speed(tally.rows, time.monotonic() - started)}, {concurrent:,} updated in the meantime")
    return tally, concurrent


async def _stream_again(table: Table, report: Report) -> Tally:
    tally = Tally()
    with report.step("again") as done:
        started = time.monotonic()
        async for rows in table.scan().stream():
            tally.add(rows)
        done(_speed(tally.rows, time.monotonic() - started))
    return tally


async def _report_memory(client: Client, report: Report) -> None:
    server = (await client.stats()).peak_resident_bytes
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    report.print_line("memory", f"server {size(server)}, client {size(own)} at their peaks")


def _speed(rows: int, seconds: float) -> str:
    return f"{counted(rows, 'row')} in {seconds:.2f} s, {rows / seconds:,.0f} rows/s"
