"""The subject of the benchmarks: the asyncio client with a `scankv serve` process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

from aio_client import connect
from benchmarks import t4
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client import Scan, Tls


class ClientReader:
    """Scans through the client, which opens and validates every batch and compares totals and checksum at the end.

    Args:
        url: The address of the server.
        table: The table to read.
        tls: The TLS settings of the client. None: no TLS.
        token: The token of the client. None: it has none.
    """

    def __init__(self, url: str, table: str = t4.TABLE, tls: Tls | None = None, token: str | None = None) -> None:
        self._url = url
        self._token = token
        self._tls = tls
        self._name = table
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    async def _connect(self) -> None:
        self._client = await connect(self._url, token=self._token, tls=self._tls)
        self._table = await self._client.table(self._name)

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def read(self, chunk_rows: int | None = None, chunk_bytes: int | None = None) -> Timing:
        """Reads all rows once from RocksDB, in chunks of the given size or of the server's default size."""
        scan = self._table.scan().read_path("rocksdb").with_chunk(rows=chunk_rows, bytes=chunk_bytes)
        return self._runner.run(self._time_scan(scan))

    def read_some(self, columns: Sequence[str] | None, where: str | None) -> Timing:
        """Reads some columns of the rows that match a predicate, from RocksDB."""
        return self._runner.run(self._time_scan(self._table.scan(columns, where=where).read_path("rocksdb")))

    async def _time_scan(self, scan: Scan) -> Timing:
        started, rows = time.perf_counter(), 0
        async for batch in scan.stream():
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)
