"""What does this process answer to `AdminService.Activity`? And how large are the files of each table?"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from scankv.model.names import table_of
from scankv.v1 import admin_pb2
from streaming_server.access.grants import Role
from streaming_server.activity import MAX_TABLES, Counters
from streaming_server.engine.tables.table_sizes import SLICE_SECONDS
from streaming_server.histogram import LATENCY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streaming_server.access.grants import Grants
    from streaming_server.activity import CallTimes
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

    async def read(self, request: admin_pb2.ActivityRequest, grants: Grants) -> admin_pb2.ActivityResponse:
        """Returns the counters of the tables that a caller may read, or which tables these are. Measures nothing.

        Args:
            request: What the caller knows, or the tables that it asks for.
            grants: What the caller may read.
        """
        everything = grants.allow_everywhere(Role.READ)
        now = time.monotonic()
        found = admin_pb2.ProcessActivity(
            worker=self._worker,
            incarnation=self._incarnation,
            latency_bounds=LATENCY_SECONDS,
            read_at_micros=_micros(now),
        )
        if request.names:
            self._add_names(found, request.names, grants)
            return admin_pb2.ActivityResponse(processes=[found])
        self._is_asked = True
        scans = _by_table(scan for scan in self._registry.live if not scan.is_check)
        activity = self._tables.activity
        if everything:
            found.server.CopyFrom(_message(activity.total, [each for of_one in scans.values() for each in of_one]))
        # The counters of a scan change while it runs, and when it ends. So no other task may run before they are read.
        for name, of_table in scans.items():
            if everything or grants.allow(Role.READ, name):
                self._add(found, name, activity.find(name) or Counters(now), of_table)
        since = request.read_at_micros.get(self._incarnation, 0) / 1_000_000
        began = time.perf_counter()
        for name, counters in activity.tables_since(since).items():
            if name not in scans and (everything or grants.allow(Role.READ, name)):
                self._add(found, name, counters, [])
            if time.perf_counter() - began > SLICE_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return admin_pb2.ActivityResponse(processes=[found])

    def _add_names(self, found: admin_pb2.ProcessActivity, names: Sequence[str], grants: Grants) -> None:
        """Adds the tables that the caller may read, without counters. Raises InvalidRequest if they are too many."""
        if len(names) > MAX_TABLES:
            raise InvalidRequest(f"the request names {len(names):,} tables: the limit is {MAX_TABLES:,}")
        for name in names:
            if grants.allow(Role.READ, name) and not self._tables.lacks(name):
                found.tables.add(table=name)
        if grants.allow_everywhere(Role.READ):
            found.server.SetInParent()

    def _add(
        self, found: admin_pb2.ProcessActivity, name: str, counters: Counters, scans: list[RegisteredScan]
    ) -> None:
        found.tables.add(table=name, counters=_message(counters, scans), incarnation=self._tables.incarnation(name))

    async def measure_if_asked(self) -> None:
        """Measures the files of each table, at most once a minute, and only if a caller has asked for the activity."""
        now = time.monotonic()
        if not self._is_asked or now - self._measured_at < _MEASURE_SECONDS:
            return
        self._is_asked, self._measured_at = False, now
        names = {table_of(each.name) for each in self._tables.definitions() if not each.is_divided}
        sizes = await self._tables.sizes.measure(names)
        known = {name: sizes[name].disk_bytes if name in sizes else None for name in names}
        self._tables.activity.set_disk_bytes(known)


def _by_table(scans: Iterable[RegisteredScan]) -> dict[str, list[RegisteredScan]]:
    found: defaultdict[str, list[RegisteredScan]] = defaultdict(list)
    for scan in scans:
        found[table_of(scan.table)].append(scan)
    return dict(found)


def _message(counters: Counters, scans: list[RegisteredScan]) -> admin_pb2.ActivityCounters:
    return admin_pb2.ActivityCounters(
        rows_written=counters.rows_written,
        writes=_times(counters.writes),
        rows_read=counters.rows_read + sum(scan.rows_scanned for scan in scans),
        reads=_times(counters.reads),
        disk_bytes=counters.disk_bytes,
        live_scans=sorted({_number_of(scan) for scan in scans}),
        began_at_micros=_micros(counters.began_at),
    )


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _number_of(scan: RegisteredScan) -> int:
    """Returns a number that all parts of a scan have. It does not reveal the id, by which a scan can be cancelled."""
    return int.from_bytes(hashlib.blake2b(scan.shown_id.encode(), digest_size=8).digest())


def _times(times: CallTimes) -> admin_pb2.CallTimes | None:
    if not times.calls:
        return None
    return admin_pb2.CallTimes(calls=times.calls, seconds=times.seconds, classes=times.classes)
