"""Stamps an increasing generation into one row of every bucket, in bucket order, awaiting each write.

Run as `python -m tests.integration.server.generation_writer URL TABLE WRITER`; says `started` once every row has a
generation, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import pyarrow as pa

from aio_client import connect
from scankv.model.keys.buckets import bucket_of_one
from scankv.model.keys.key_codec import KeyCodec

SCHEMA = pa.schema([("key", pa.string()), ("generation", pa.int64())])


def keys_of(writer: str, buckets: int) -> list[str]:
    """Returns the keys of a writer, one for each bucket, in bucket order."""
    codec = KeyCodec([pa.string()])
    found: dict[int, str] = {}
    for number in itertools.count():
        key = f"{writer} {number}"
        found.setdefault(bucket_of_one(codec.encode_one([key]), buckets), key)
        if len(found) == buckets:
            break
    return [found[bucket] for bucket in range(buckets)]


async def main(url: str, name: str, writer: str) -> None:
    """Writes until standard input ends."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with connect(url) as client:
        table = await client.table(name)
        keys = keys_of(writer, table.buckets)
        for generation in itertools.count(1):
            for key in keys:
                await table.upsert([{"key": key, "generation": generation}])
            if generation == 1:
                sys.stdout.write("started\n")
                sys.stdout.flush()
            if ended.done():
                return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
