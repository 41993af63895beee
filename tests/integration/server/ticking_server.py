"""A server whose event loop is watched: a ticker beside it tells for how long the loop was not free.

Run as `python -m tests.integration.server.ticking_server DIRECTORY ROWS`; fills the table `test.ticks`, says its
address, and then, for each line on standard input, how late ticks were since the line before, in milliseconds: all but
the latest twentieth of them. What every chunk does shows there; the few stalls of a busy host do not.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming_server.config import ServerConfig
from streaming_server.server import Server
from tests.support.tables import ipc_stream

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("score", pa.float64()), ("name", pa.string()), ("city", pa.string())]
)
_TICK_SECONDS = 0.005
_ROWS_AT_ONCE = 250_000


class Ticker:
    """Measures how late its ticks are, which is how long other work has held the event loop.

    Only the work of this process in the meantime counts, in any of its threads. Other processes delay ticks, too.
    """

    def __init__(self) -> None:
        self._delays: list[float] = []

    async def run(self) -> None:
        """Ticks forever."""
        while True:
            due, worked = time.monotonic() + _TICK_SECONDS, time.process_time()
            await asyncio.sleep(_TICK_SECONDS)
            self._delays.append(min(time.monotonic() - due, time.process_time() - worked))

    def take(self) -> float:
        """Returns the delay in milliseconds that 95 % of the ticks since the previous call did not exceed."""
        delays, self._delays = sorted(self._delays), []
        return delays[len(delays) * 19 // 20] * 1000 if delays else 0.0


async def fill(server: Server, rows: int) -> None:
    """Writes the rows without a client."""
    await server._tables.create(
        "test.ticks", SCHEMA, primary_key=["k"], bucket_key=[], buckets=4, options={"row_deduplicate": "false"}
    )
    table = server._tables.table("test.ticks")
    for start in range(0, rows, _ROWS_AT_ONCE):
        keys = np.arange(start, min(start + _ROWS_AT_ONCE, rows))
        names = pa.array(keys).cast(pa.string())
        batch = pa.record_batch([pa.array(keys), pa.array(keys / 7), names, names], schema=SCHEMA)
        await table.writes.upsert(ipc_stream(SCHEMA, batch), 0)


async def main(directory: str, rows: str) -> None:
    """Serves until standard input ends."""
    async with Server(ServerConfig(data=Path(directory), port=0)) as server:
        await fill(server, int(rows))
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        ticker = Ticker()
        ticking = asyncio.create_task(ticker.run())
        while await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(f"{ticker.take():.3f}\n")
            sys.stdout.flush()
        ticking.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
