"""Processes around a pinned table: one that writes as fast as it can, and one that reads a partition.

Run as `python -m tests.integration.server.partition_worker write URL TABLE`: says `started` after its first write, and
ends, saying how many rows it has written, when its standard input does. Or as `... read URL CHUNKS`, with a pickled
`ScanSpec` on standard input: reads so many chunks (0: all) and writes the batches and the last token, pickled, to
standard output.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aio_client import ConnectionFailed, connect

if TYPE_CHECKING:
    from aio_client import ScanSpec

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("version", pa.int64()), ("v", pa.string())])
KEYS = 24_000
_BATCH_ROWS = 200


def rows_of(keys: range, version: int) -> pa.RecordBatch:
    """Returns a row for each key, with its version."""
    values = [list(keys), [version] * len(keys), [f"version {version} of {key}" for key in keys]]
    return pa.record_batch(values, schema=SCHEMA)


async def write(url: str, name: str) -> None:
    """Upserts and deletes until standard input ends, even while the server is away in between."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    draw = random.Random(11)
    version = 0
    async with connect(url) as client:
        table = await client.table(name)
        while not ended.done():
            version += 1
            start = draw.randrange(KEYS)
            keys = range(start, start + _BATCH_ROWS)
            try:
                if version % 5:
                    await table.upsert(rows_of(keys, version))
                else:
                    await table.delete(pa.array(keys, pa.int64()))
            except ConnectionFailed:
                await client.wait_ready()
            if version == 1:
                sys.stdout.write("started\n")
                sys.stdout.flush()
    sys.stdout.write(f"{version * _BATCH_ROWS}\n")


async def read(url: str, spec: ScanSpec, chunks: int) -> tuple[list[pa.RecordBatch], bytes | None]:
    """Reads some or all chunks of a scan; returns them and the token to continue with."""
    async with connect(url) as client, client.scan(spec).stream() as stream:
        batches: list[pa.RecordBatch] = []
        async for batch in stream:
            batches.append(batch)
            if len(batches) == chunks:
                break
        return batches, stream.resume_token


def main(what: str, url: str, *arguments: str) -> None:
    if what == "write":
        asyncio.run(write(url, *arguments))
        return
    spec: Any = pickle.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(pickle.dumps(asyncio.run(read(url, spec, *map(int, arguments)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
