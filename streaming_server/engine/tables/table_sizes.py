"""How many rows do tables have, and how much disk? Opens no bucket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.names import table_of
from streaming_server.storage.files.disk_use import DiskBytes, measure_table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.tables.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The size of a table, or of a part of it in one process. Immutable.

    Attributes:
        rows: The live rows. None: not counted, or not known.
        disk_bytes: The bytes of its files.
        unopened_buckets: The buckets that were not opened since the start, whose rows are not known.
    """

    rows: int | None
    disk_bytes: int
    unopened_buckets: int

    def __add__(self, more: TableSize) -> TableSize:
        return TableSize(
            rows=None if self.rows is None or more.rows is None else self.rows + more.rows,
            disk_bytes=self.disk_bytes + more.disk_bytes,
            unopened_buckets=self.unopened_buckets + more.unopened_buckets,
        )


class TableSizes:
    """Measures tables of a process, one after another, however many callers ask. Bound to the event loop.

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

    async def measure(self, wanted: Collection[str]) -> dict[str, TableSize]:
        """Returns the sizes of tables by name, ascending. Tables that are not in this process are left out."""
        found = dict[str, TableSize]()
        for name in self._catalog.names():
            if (table := table_of(name)) in wanted:
                async with self._turn:
                    size = await self._measure(name)
                found[table] = found[table] + size if table in found else size
        return dict(sorted(found.items()))

    async def _measure(self, name: str) -> TableSize:
        # A bucket without files has never been opened, and has no rows.
        live = self._live.get(name)
        if live is None:
            files = await self._executor.run(measure_table, self._catalog.path(name))
            total, unopened = DiskBytes.of_table(files, {}).total, len(files.buckets)
            return TableSize(rows=None if unopened else 0, disk_bytes=total, unopened_buckets=unopened)
        use, stored = await live.disk_use()
        used = [each for each in live.buckets if each.problem is not None or each.state or each.number in stored]
        counts = [None if each.state is None else each.state.rows for each in used]
        return TableSize(
            rows=None if None in counts else sum(filter(None, counts)),
            disk_bytes=use.total,
            unopened_buckets=sum(each.state is None and each.problem is None for each in used),
        )
