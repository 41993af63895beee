"""The reference: nothing but RocksDB's fast iterator, in the process that has the store open."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Self

from benchmarks.files import open_rocks
from benchmarks.measure import Timing
from streaming_server.storage.rocks.store import scan_options

if TYPE_CHECKING:
    from pathlib import Path

_LIST_ROWS = 4096


class LoopReader:
    """Loops over `db.values()` in lists of 4,096 rows, decoding nothing; options and cache are the server's."""

    def __init__(self, data: Path) -> None:
        self._store = open_rocks(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def read(self) -> Timing:
        """Reads everything once."""
        started, rows = time.perf_counter(), 0
        options = scan_options()  # The iterator only borrows it.
        values = iter(self._store.rows.values(read_opt=options))
        while part := list(islice(values, _LIST_ROWS)):
            rows += len(part)
        return Timing(rows, time.perf_counter() - started)
