"""What does this process answer to `AdminService.Activity`? And how large are the files of each table?"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from scankv.model.names import table_of
from scankv.v1 import admin_pb2
from streaming_server.access.grants import Role
from streaming_server.engine.tables.table_sizes import SLICE_SECONDS, file_bytes
from streaming_server.histogram import LATENCY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streaming_server.access.grants import Grants
    from streaming_server.activity import CallTimes, Counters
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import RegisteredScan, ScanRegistry

LOOK_SECONDS: Final = 2.0
"""How often `ActivityReader.measure_if_asked` is to be called."""

_MEASURE_SECONDS: Final = 60.0


class ActivityReader:
    """Reads the counters of a process, in steps of about a millisecond on the event loop. Bound to the event loop.

    Args:
        tables: The tables of the process.
        registry: The live scans.
        incarnation: This start of the process.
        worker: The number of the worker process.
    """

    def __init__(self, tables: Tables, registry: ScanRegistry, incarnation: str, worker: int) -> None:
        self._tables = tables
        self._registry = registry
        self._incarnation = incarnation
        self._worker = worker
        self._is_asked = False
        self._measured_at = float("-inf")

    async def read(self, within: float | None, grants: Grants) -> admin_pb2.ActivityResponse:
        """Returns the counters of the tables that a caller may read. Measures nothing.

        Args:
            within: Leaves out the tables of which nothing has changed for so many seconds. None: leaves out none.
            grants: What the caller may read.
        """
        self._is_asked = True
        everything = grants.allow_everywhere(Role.READ)
        since = float("-inf") if within is None else time.monotonic() - within
        scans = _by_table(scan for scan in self._registry.live if not scan.is_check)
        found = admin_pb2.ProcessActivity(
            worker=self._worker, incarnation=self._incarnation, latency_bounds=LATENCY_SECONDS
        )
        began = time.perf_counter()
        activity = self._tables.activity
        # The counters of a scan change while it runs. A table has none before its first scan has ended.
        live = {name: activity.find(name) for name in scans}
        for name, counters in {**activity.tables_since(since), **live}.items():
            if everything or grants.allow(Role.READ, name):
                found.tables.add(table=name, counters=_message(counters, scans.get(name, [])))
            if time.perf_counter() - began > SLICE_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        if everything:
            found.server.CopyFrom(_message(activity.total, [each for of_one in scans.values() for each in of_one]))
        return admin_pb2.ActivityResponse(processes=[found])

    async def measure_if_asked(self) -> None:
        """Measures the files of each table, at most once a minute, and only if a caller has asked for the activity.

        RocksDB knows the sizes of its files, so no directory is read.
        """
        now = time.monotonic()
        if not self._is_asked or now - self._measured_at < _MEASURE_SECONDS:
            return
        self._is_asked, self._measured_at = False, now
        sizes: defaultdict[str, int] = defaultdict(int)
        began = time.perf_counter()
        for table in list(self._tables.live_tables()):
            for live in table.buckets:
                size = file_bytes(live)
                if size is not None:
                    sizes[table_of(table.definition.name)] += size
                if time.perf_counter() - began > SLICE_SECONDS:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
        for name, size in sizes.items():
            self._tables.activity.set_disk_bytes(name, size)
        self._tables.activity.total.disk_bytes = sum(sizes.values())


def _by_table(scans: Iterable[RegisteredScan]) -> dict[str, list[RegisteredScan]]:
    found: defaultdict[str, list[RegisteredScan]] = defaultdict(list)
    for scan in scans:
        found[table_of(scan.table)].append(scan)
    return dict(found)


def _message(counters: Counters | None, scans: list[RegisteredScan]) -> admin_pb2.ActivityCounters:
    live = sorted({_number_of(scan) for scan in scans})
    rows = sum(scan.rows_scanned for scan in scans)
    if counters is None:
        return admin_pb2.ActivityCounters(rows_read=rows, live_scans=live)
    return admin_pb2.ActivityCounters(
        rows_written=counters.rows_written,
        writes=_times(counters.writes),
        rows_read=counters.rows_read + rows,
        reads=_times(counters.reads),
        disk_bytes=counters.disk_bytes,
        live_scans=live,
    )


def _number_of(scan: RegisteredScan) -> int:
    """Returns a number that all parts of a scan have. It does not reveal the id, by which a scan can be cancelled."""
    return int.from_bytes(hashlib.blake2b(scan.shown_id.encode(), digest_size=8).digest())


def _times(times: CallTimes) -> admin_pb2.CallTimes | None:
    if not times.calls:
        return None
    return admin_pb2.CallTimes(calls=times.calls, seconds=times.seconds, classes=times.classes)
