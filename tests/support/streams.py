"""Readers of streams: one that reads all rows, and one that is cancelled while it waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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
