"""How much disk space do the files of a data directory use, and how much is free?"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from streaming_server.engine.tasks.throttled_value import ThrottledValue
from streaming_server.storage.files.disk_use import DiskBytes, directory_bytes, measure_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.tables.catalog import Catalog
    from streaming_server.storage.tables.data_directory import DataDirectory
    from streaming_server.storage.tables.placement import Placement


class DataDiskUse:
    """Measures the disk use of the tables of a process. Bound to the event loop.

    Args:
        directory: The data directory.
        placement: The place of this process among the worker processes.
        executor: Reads directories.
        catalog: The tables of this process.
        live: Those that are open, by name.
    """

    def __init__(
        self,
        directory: DataDirectory,
        placement: Placement,
        executor: StorageExecutor,
        catalog: Catalog,
        live: Mapping[str, LiveTable],
    ) -> None:
        self._directory = directory
        self._placement = placement
        self._executor = executor
        self._catalog = catalog
        self._live = live
        self._use = ThrottledValue(self.measure)

    async def get(self) -> tuple[DiskBytes, int]:
        """Returns the disk use of the data directory, and the free space there, in bytes.

        The disk use may be slightly old, because measuring it reads every directory: its age is at most 20 times the
        duration of the measurement. So frequent calls do not keep a server with many tables busy.
        """
        use = await self._use.get()
        return use, await self._executor.run(_free_bytes, self._directory)

    async def measure(self) -> DiskBytes:
        """Measures the disk use. Opens nothing.

        The SST files of buckets that are or were open are counted by what they contain.
        """
        use = DiskBytes()
        for name in self._catalog.names():
            live = self._live.get(name)
            if live is None:
                files = await self._executor.run(measure_table, self._catalog.path(name))
                use += DiskBytes.of_table(files, {})
            else:
                use += (await live.disk_use())[0]
        staging, others = await self._executor.run(_other_bytes, self._directory, self._placement)
        return use + DiskBytes(staging=staging, other=others)


def _other_bytes(directory: DataDirectory, placement: Placement) -> tuple[int, int]:
    """Returns the bytes of staged rows, and the bytes of all files that are neither staged rows nor of a table.

    Of several worker processes, the first one counts the files that belong to all of them.
    """
    counted = {directory.own} if placement.number else {directory.own, directory.path}
    left_out = directory.tables, directory.transactions, directory.bootstraps, directory.own, *directory.parts()
    others = sum(
        directory_bytes(path) for root in counted for path in root.iterdir() if path not in left_out and path != root
    )
    staged = directory_bytes(directory.transactions)
    if not placement.number:
        staged += directory_bytes(directory.bootstraps)
    return staged, others


def _free_bytes(directory: DataDirectory) -> int:
    return shutil.disk_usage(directory.path).free
