"""Readers of streams: one that reads all rows, and others that are cancelled while they wait for them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pyarrow as pa

    from aio_client import ScanStream


async def read_all(stream: ScanStream) -> None:
    """Reads the rows that are left of a stream, and drops them."""
    async for _ in stream:
        pass


async def cancel_reading(stream: ScanStream) -> None:
    """Begins to read all rows of a stream in a task, and cancels the task."""
    reading = asyncio.create_task(read_all(stream))
    # The task begins in the next turn of the loop.
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def read_between_cancellations(stream: ScanStream) -> tuple[list[pa.RecordBatch], int]:
    """Returns all rows of a stream whose reads are cancelled all the time, and how many were cancelled."""
    batches: list[pa.RecordBatch] = []
    cancelled, turns = 0, random.Random(7)
    while True:
        read = asyncio.ensure_future(anext(stream, None))
        # At whatever it waits for, from the opening of the call to the end of the stream.
        for _ in range(turns.randrange(12)):
            await asyncio.sleep(0)
        read.cancel()
        await asyncio.wait({read})
        if read.cancelled():
            cancelled += 1
        elif (rows := read.result()) is None:
            return batches, cancelled
        else:
            batches.append(rows)
