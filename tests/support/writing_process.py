"""A job that writes numbered batches with a named writer and continues after the last applied one. Tests kill it.

Run as `python -m tests.support.writing_process URL TABLE`. Prints the number of each batch when it is acknowledged.
"""

from __future__ import annotations

import asyncio
import sys

import pyarrow as pa

from aio_client import connect

ROWS = 50
SCHEMA = pa.schema([("k", pa.int64()), ("batch", pa.int64())])


async def main(url: str, name: str) -> None:
    """Writes until it is killed. The table has one bucket, so the next sequence number says what was applied."""
    async with connect(url) as client:
        table = await client.table(name)
        async with table.writer(id="job-1", in_flight=1, batch_delay=0) as writer:
            while True:
                number = writer.next_sequence
                await writer.upsert(pa.table({"k": range(ROWS), "batch": [number] * ROWS}, schema=SCHEMA))
                await writer.flush()
                assert writer.next_sequence == number + 1
                sys.stdout.write(f"{number}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
