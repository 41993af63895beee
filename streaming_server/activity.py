"""What do clients do with each table? Counters since the start of this process, from which charts are drawn."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from streaming_server.histogram import LATENCY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_TABLES: Final = 10_000
"""The most tables with counters. Beyond, the table that was used least recently loses its counters."""


class CallTimes:
    """The calls of one kind, and how long those took that did not wait for a change.

    Attributes:
        calls: The number of calls.
        seconds: The sum of the latencies.
        classes: The number of latencies in each class of `LATENCY_SECONDS`.
    """

    __slots__ = ("calls", "classes", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.classes = [0] * (len(LATENCY_SECONDS) + 1)

    def count(self, seconds: float | None) -> None:
        """Counts a call. None: it has no latency of its own."""
        self.calls += 1
        if seconds is not None:
            self.seconds += seconds
            self.classes[bisect_left(LATENCY_SECONDS, seconds)] += 1


class Counters:
    """The counters of a table, or of all tables.

    Attributes:
        rows_written: The rows and keys that writes have applied, and those of commits.
        writes: The upserts, deletes and undos.
        rows_read: The rows that scans and queries have read, once they have ended.
        reads: The lookups and queries.
        disk_bytes: The size of its files when they were last measured. None: not known.
        began_at: When all were 0, as by `time.monotonic`.
        changed_at: When one of them changed last.
    """

    __slots__ = ("began_at", "changed_at", "disk_bytes", "reads", "rows_read", "rows_written", "writes")

    def __init__(self, began_at: float) -> None:
        self.rows_written = 0
        self.writes = CallTimes()
        self.rows_read = 0
        self.reads = CallTimes()
        self.disk_bytes: int | None = None
        self.began_at = self.changed_at = began_at


class Activity:
    """Counts what the clients of a process do. Bound to the event loop. An observation takes about two microseconds.

    Rule: a call counts where the call of the client arrives, and only there; rows count where they are read or
    written. So the sums over all processes of a server count everything once.

    Args:
        clock: The time in seconds.
        max_tables: The most tables with counters.

    Attributes:
        total: The counters of all tables together, also of those that have lost theirs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_tables: int = MAX_TABLES) -> None:
        self._clock = clock
        self._max_tables = max_tables
        self._tables: OrderedDict[str, Counters] = OrderedDict()
        self.total = Counters(clock())

    def count_write(self, table: str, seconds: float | None) -> None:
        """Counts an answered call that writes."""
        for counters in (self._of(table), self.total):
            counters.writes.count(seconds)

    def count_read(self, table: str, seconds: float | None) -> None:
        """Counts an answered lookup or query."""
        for counters in (self._of(table), self.total):
            counters.reads.count(seconds)

    def count_written_rows(self, table: str, rows: int) -> None:
        """Counts rows that a request has applied, or a transaction or a bootstrap has committed."""
        if rows:
            for counters in (self._of(table), self.total):
                counters.rows_written += rows

    def count_read_rows(self, table: str, rows: int) -> None:
        """Counts rows that a scan or a query has read."""
        if rows:
            for counters in (self._of(table), self.total):
                counters.rows_read += rows

    def set_disk_bytes(self, sizes: Mapping[str, int | None]) -> None:
        """Records the sizes of the files of all tables of this process. None: not known.

        A size is no use of a table, so no other table loses its counters for it.
        """
        for table in sizes.keys() - self._tables.keys():
            if len(self._tables) < self._max_tables:
                self._tables[table] = Counters(self._clock())
                self._tables.move_to_end(table, last=False)
        for table, counters in self._tables.items():
            size = sizes.get(table, 0)
            if counters.disk_bytes != size:
                counters.disk_bytes, counters.changed_at = size, self._clock()
        self.total.disk_bytes = None if None in sizes.values() else sum(filter(None, sizes.values()))

    def begin(self, table: str) -> None:
        """Begins the counters of a table that was just created, whatever a dropped table of its name has done."""
        self.forget(table)
        self._of(table)

    def forget(self, table: str) -> None:
        """Removes the counters of a table that was dropped."""
        self._tables.pop(table, None)

    def tables_since(self, at: float) -> dict[str, Counters]:
        """Returns the counters of the tables that have changed since an instant, the most recently used first."""
        return {name: counters for name, counters in reversed(self._tables.items()) if counters.changed_at >= at}

    def find(self, table: str) -> Counters | None:
        """Returns the counters of a table. None: it has none yet."""
        return self._tables.get(table)

    def _of(self, table: str) -> Counters:
        """Returns the counters of a table, which change now."""
        counters, now = self._tables.get(table), self._clock()
        if counters is None:
            if len(self._tables) >= self._max_tables:
                self._tables.popitem(last=False)
            counters = self._tables[table] = Counters(now)
        counters.changed_at = now
        self._tables.move_to_end(table)
        return counters
