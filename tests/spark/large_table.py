"""A table that is far larger than all buffers between the server and a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from aio_client import sync

LARGE_SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])
LARGE_ROWS = 15_000
"""The number of rows, of 4 KB each."""

_STEP = 3000


def make_large(client: sync.Client, name: str) -> sync.Table:
    """Creates and fills the table."""
    table = client.create_table(name, LARGE_SCHEMA, primary_key=["k"], buckets=2)
    for start in range(0, LARGE_ROWS, _STEP):
        keys = range(start, start + _STEP)
        table.upsert(pa.table({"k": keys, "text": [4000 * "x"] * _STEP}, schema=LARGE_SCHEMA))
    return table
