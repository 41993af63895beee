"""How many rows do tables have, and how much disk? Opens no bucket, and seldom reads a directory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.names import table_of
from streaming_server.storage.files.disk_use import measure_table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.files.disk_use import TableFiles
    from streaming_server.storage.tables.catalog import Catalog

SLICE_SECONDS: Final = 0.001
"""How long a loop over buckets may keep the event loop before other tasks run."""

_READING_SECONDS: Final = 0.5
"""How long a call may read directories, so that its answer comes within the second that another worker waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSize:
    """The size of a table, or of those of its tablets that one process has. Immutable.

    Attributes:
        rows: The live rows. None: not counted, or not known.
        disk_bytes: The bytes of its files.
        unopened_buckets: The buckets that were not opened since the start, whose rows are not known.
        tablets: How many tablets the table has.
        measured_tablets: How many of them the other fields include.
    """

    rows: int | None = 0
    disk_bytes: int = 0
    unopened_buckets: int = 0
    tablets: int = 1
    measured_tablets: int = 0

    def __add__(self, more: MeasuredSize) -> MeasuredSize:
        return MeasuredSize(
            rows=None if self.rows is None or more.rows is None else self.rows + more.rows,
            disk_bytes=self.disk_bytes + more.disk_bytes,
            unopened_buckets=self.unopened_buckets + more.unopened_buckets,
            tablets=self.tablets,
            measured_tablets=self.measured_tablets + more.measured_tablets,
        )


def file_bytes(live: LiveBucket) -> int | None:
    """Returns the bytes of a bucket that RocksDB knows of, and of its columnar base. None: it was never opened.

    Takes some microseconds, because no directory is read.
    """
    known, bucket, base = live.family_bytes, live.open_bucket, live.columnar.base
    if known is None:
        return None
    unflushed = 0 if bucket is None else bucket.unflushed_log_bytes
    of_base = 0 if base is None else base.info.disk_bytes
    return known.rows + known.changelog + known.indexes + unflushed + of_base


class TableSizes:
    """Measures tables of a process. Bound to the event loop.

    RocksDB knows the sizes of the buckets that were opened since the start. The files of the others do not change, so
    their directories are read once, one after another, for all callers.

    Args:
        executor: Reads directories.
        catalog: The tables and tablets of this process.
        live: Those that were used since the start, by name.
    """

    def __init__(self, executor: StorageExecutor, catalog: Catalog, live: Mapping[str, LiveTable]) -> None:
        self._executor = executor
        self._catalog = catalog
        self._live = live
        self._turn = asyncio.Lock()
        # By name, with the incarnation.
        self._files: dict[str, tuple[str, TableFiles]] = {}

    async def measure(self, names: Collection[str]) -> dict[str, MeasuredSize]:
        """Returns the sizes of tables by name, ascending.

        Tables that are not in this process are left out, and so are those for which the time does not suffice. Another
        call gets further.
        """
        found = dict[str, MeasuredSize | None]()
        ends = time.monotonic() + _READING_SECONDS
        for name in self._catalog.names():
            table, definition = table_of(name), self._catalog.find(name)
            # The buckets of a table with tablets are in the tablets. A table may be dropped while others are measured.
            if table not in names or definition is None or definition.is_divided:
                continue
            known = found.get(table, MeasuredSize(tablets=definition.tablets))
            size = None if known is None else await self._measure(definition, ends)
            found[table] = None if known is None or size is None else known + size
        return {table: size for table, size in sorted(found.items()) if size is not None}

    async def _measure(self, definition: TableDefinition, ends: float) -> MeasuredSize | None:
        """Returns the size of a table or a tablet. None: the time ended before its directory was read."""
        live = self._live.get(definition.name)
        buckets = {} if live is None else {each.number: each for each in live.buckets}
        known, began = dict[int, int](), time.monotonic()
        for number, bucket in buckets.items():
            if (size := file_bytes(bucket)) is not None:
                known[number] = size
            if time.monotonic() - began > SLICE_SECONDS:
                await asyncio.sleep(0)
                began = time.monotonic()
        disk_bytes, others = sum(known.values()), set[int]()
        if len(known) < len(definition.own_buckets):
            files = await self._read_files(definition, ends)
            if files is None:
                return None
            # A bucket without files has never been opened, and has no rows.
            others = files.buckets.keys() - known.keys()
            disk_bytes += sum(files.buckets[number].total for number in others) + (0 if known else files.bases)
        states = [buckets[number].state for number in known]
        damaged = [each for each in buckets.values() if each.problem is not None]
        counts = [None if state is None else state.rows for state in states]
        return MeasuredSize(
            rows=None if others or damaged or None in counts else sum(filter(None, counts)),
            disk_bytes=disk_bytes,
            unopened_buckets=len(others - {each.number for each in damaged}),
            tablets=definition.tablets,
            measured_tablets=1,
        )

    async def _read_files(self, definition: TableDefinition, ends: float) -> TableFiles | None:
        """Returns the files of a table of which a bucket is not open, as they were when it was first asked for."""
        if (files := self._files_read(definition)) is not None:
            return files
        async with self._turn:
            # Another caller may have read them in the meantime.
            if (files := self._files_read(definition)) is not None or time.monotonic() > ends:
                return files
            files = await self._executor.run(measure_table, self._catalog.path(definition.name))
        kept = {name: each for name, each in self._files.items() if self._catalog.knows(name)}
        self._files = {**kept, definition.name: (definition.incarnation, files)}
        return files

    def _files_read(self, definition: TableDefinition) -> TableFiles | None:
        incarnation, files = self._files.get(definition.name, ("", None))
        return files if incarnation == definition.incarnation else None
