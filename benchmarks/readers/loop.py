"""The reference: only RocksDB's fast iterator, in the process that opened the store."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Self

from benchmarks import t4
from benchmarks.files import open_rocks
from benchmarks.measure import Timing
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from pathlib import Path

_LIST_ROWS = 4096


class LoopReader:
    """Loops over `db.values()` in lists of 4,096 rows without decoding them, with the server's options and cache."""

    def __init__(self, data: Path, table: str = t4.TABLE) -> None:
        self._store = open_rocks(data, table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def read(self) -> Timing:
        """Reads all rows once."""
        started, rows = time.perf_counter(), 0
        options = scan_options()  # Kept in a variable, since the iterator only borrows it.
        values = iter(self._store.rows.values(read_opt=options))
        while part := list(islice(values, _LIST_ROWS)):
            rows += len(part)
        return Timing(rows, time.perf_counter() - started)
