"""What is measured: the asyncio client against `scankv serve`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

from aio_client import connect
from benchmarks import t4
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client import Scan


class ClientReader:
    """Scans through the client, which opens and validates every batch and compares totals and checksum at the end.

    Args:
        url: Of the server.
        table: The table that is read.
    """

    def __init__(self, url: str, table: str = t4.TABLE) -> None:
        self._url = url
        self._name = table
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    async def _connect(self) -> None:
        self._client = await connect(self._url)
        self._table = await self._client.table(self._name)

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def read(self, chunk_rows: int | None = None, chunk_bytes: int | None = None) -> Timing:
        """Reads everything once, in chunks of the server's default size unless another is given."""
        return self._runner.run(self._timed(self._table.scan().with_chunk(rows=chunk_rows, bytes=chunk_bytes)))

    def read_some(self, columns: Sequence[str] | None, where: str | None) -> Timing:
        """Reads some columns of the rows for which something is true."""
        return self._runner.run(self._timed(self._table.scan(columns, where=where)))

    async def _timed(self, scan: Scan) -> Timing:
        started, rows = time.perf_counter(), 0
        async for batch in scan.stream():
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)
