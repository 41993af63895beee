"""What is measured: the asyncio client against `scankv serve`."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from aio_client import connect
from benchmarks import t4
from benchmarks.measure import Timing


class ScanKvReader:
    """Scans through the client, which opens and validates every batch and compares totals and checksum at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    async def _connect(self) -> None:
        self._client = await connect(self._url)
        self._table = await self._client.table(t4.TABLE)

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def read(self, chunk_rows: int | None = None, chunk_bytes: int | None = None) -> Timing:
        """Reads everything once, in chunks of the server's default size unless another is given."""
        return self._runner.run(self._read(chunk_rows, chunk_bytes))

    async def _read(self, chunk_rows: int | None, chunk_bytes: int | None) -> Timing:
        started, rows = time.perf_counter(), 0
        async for batch in self._table.scan().with_chunk(rows=chunk_rows, bytes=chunk_bytes).stream():
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)
