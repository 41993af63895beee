"""Keeps columnar bases up to date in the background: builds and rebuilds them, and adopts them after a restart."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from scankv.model.errors import ScanKvError
from streaming_server.engine.columnar.base_adoption import adopt_base, bases_directory, remove_all_bases
from streaming_server.engine.columnar.base_build import SPARED_BYTES, BaseBuild, BaseNotBuiltError, CpuShare
from streaming_server.engine.columnar.base_due import NEVER_SCANNED, NOT_SCANNED, BucketNow, why_not_due
from streaming_server.engine.tasks.background import Background, repeat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.columnar.base_due import BaseLimits
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.columnar.delta import Delta
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.files.disk_reserve import DiskReserve

_log: Final = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 60.0
"""The pause before another build of a base that could not be built, or that was dropped for lack of memory or space."""
_PAUSES: Final = 10
"""The pause after a build during which the base was dropped, in multiples of the duration of that build."""
_SCANNED_SECONDS: Final = 60.0
"""For so long after a scan, the delta is kept merged for the next scan."""
_MUTEX_SECONDS: Final = 1.0
"""How long a merge for later scans waits for the mutex of a bucket. The merges of other buckets wait for it."""
_BUCKETS_AT_ONCE: Final = 64
"""So many buckets are looked at in one turn of the event loop."""


class BaseMaintenance(Background):
    """Builds and rebuilds the bases of all open tables, one bucket after another. Bound to the event loop.

    A base shows its bucket as of one log offset, which is durable before the base is. RocksDB and the changelog remain
    the source of truth, so a lost or damaged base costs only the time to build it. It is built from the previous base
    and its delta, or else from the rows in RocksDB, in steps as short as those of a scan. Writers do not wait for it.
    One base is built at a time, which bounds memory and processor time; the others wait.

    Args:
        tables: Returns the open tables.
        executor: Runs blocking work.
        limits: When bases are built, and what they may cost.
        seconds: The pause between two rounds over all tables.
        clock: The server's clock.
        reserve: The disk space that writes leave free.
    """

    def __init__(
        self,
        tables: Callable[[], Iterable[TableState]],
        executor: StorageExecutor,
        limits: BaseLimits,
        *,
        seconds: float,
        clock: ServerClock,
        reserve: DiskReserve,
    ) -> None:
        self._clock = clock
        self._reserve = reserve
        self._tables = tables
        self._executor = executor
        self._limits = limits
        self._share = CpuShare(executor, limits.cpu_share)
        super().__init__(
            partial(repeat, seconds, self._look),
            partial(repeat, seconds, self.keep_to_limits),
            partial(repeat, seconds, self.merge_deltas),
        )
        self._building: LiveBucket | None = None
        self._not_before: WeakKeyDictionary[LiveBucket, float] = WeakKeyDictionary()
        self._scanned_until: WeakKeyDictionary[LiveBucket, float] = WeakKeyDictionary()
        # The tables with the option `columnar_base=off` that are known to have no base, not even on disk.
        self._without_bases: WeakSet[TableState] = WeakSet()

    async def _look(self) -> None:
        for table in list(self._tables()):
            if not _wants_bases(table):
                if table not in self._without_bases:
                    await self._remove_bases(table)
                continue
            self._without_bases.discard(table)
            for number, live in enumerate(table.buckets):
                if number % _BUCKETS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if not _wants_bases(table):
                    break
                if _is_at_rest(table, live):
                    continue
                try:
                    if self._not_before.get(live, 0.0) <= self._clock.monotonic():
                        await self.maintain_bucket(table, live)
                    else:
                        await self._remove_unread(table, live)
                except (ScanKvError, OSError) as error:
                    if live.open_bucket is None:
                        continue  # The bucket was closed in the meantime.
                    # The disk is full, or the bucket is damaged. Readers of a damaged bucket get an error.
                    _log.warning("columnar base of bucket %s of %s: %s", live.number, live.table, error)
                    self._pause(live, error.strerror or str(error) if isinstance(error, OSError) else error.message)
                except Exception:
                    _log.exception("columnar base of bucket %s of %s", live.number, live.table)
                    self._pause(live, "it could not be built, see the log of the server")

    async def _remove_bases(self, table: TableState) -> None:
        """Removes the bases of a table that wants none: they are of the time before the option was changed."""
        try:
            for live in table.buckets:
                # An adoption that began before the change ends first. A later one finds no base.
                async with live.columnar.adoption:
                    live.columnar.drop_unwanted()
                    await self._executor.run(remove_all_bases, bases_directory(table, live))
                    record = live.columnar.record
                    record.is_on_disk, record.lost, record.waits = False, "", "the table has columnar_base=off"
        except OSError as error:
            _log.warning("columnar bases of %s cannot be removed yet: %s", table.definition.name, error)
        else:
            self._without_bases.add(table)

    def _pause(self, live: LiveBucket, why: str, seconds: float = _PAUSE_SECONDS) -> None:
        live.columnar.record.waits = why
        self._not_before[live] = self._clock.monotonic() + seconds

    async def maintain_bucket(self, table: TableState, live: LiveBucket) -> None:
        """Does the due work for one bucket, if it is open. Raises DataLoss, or OSError if the disk is full."""
        bucket = live.open_bucket
        if bucket is None:
            return
        if not live.columnar.is_adopted:
            await adopt_base(table, live)
        await self._remove_unread(table, live)
        delta, record = live.columnar.delta, live.columnar.record
        record.waits = why_not_due(self._bucket_now(table, live, bucket), record, self._limits)
        if not record.waits and delta is not None and delta.unmerged_rows:
            # So that a row that was updated several times counts once. A build merges the delta first, anyway.
            await self._merge(live, delta)
            record.waits = why_not_due(self._bucket_now(table, live, bucket), record, self._limits)
        if record.waits:
            return
        record.waits, self._building = "it is being built", live
        began = self._clock.monotonic()
        try:
            await BaseBuild(table, live, bases_directory(table, live), self._share).run()
        except BaseNotBuiltError as error:
            self._pause(live, str(error), max(_PAUSE_SECONDS, _PAUSES * (self._clock.monotonic() - began)))
        finally:
            self._building = None

    async def _remove_unread(self, table: TableState, live: LiveBucket) -> None:
        """Removes the files of a base that is no longer read."""
        if live.columnar.record.is_on_disk:
            await self._executor.run(remove_all_bases, bases_directory(table, live))
            live.columnar.record.is_on_disk = False

    def _bucket_now(self, table: TableState, live: LiveBucket, bucket: Bucket) -> BucketNow:
        rows, base, delta = bucket.state.rows, live.columnar.base, live.columnar.delta
        has_base, size = base is not None and delta is not None, live.family_bytes
        return BucketNow(
            eager=table.definition.options.columnar_base == "eager",
            # If the number of rows is not known, the number of changes is an upper bound.
            rows=bucket.state.count if rows is None else rows,
            base_rows=base.info.rows if base is not None and has_base else None,
            changes=0 if base is None or delta is None else delta.rows + base.file_rows - base.info.rows,
            delta_bytes=delta.nbytes if delta is not None else 0,
            age_seconds=self._clock.commit_micros() / 1e6 - live.columnar.record.cut_millis / 1000,
            build_bytes=live.columnar.record.base_bytes or (0 if size is None else size.rows),
            free_bytes=self._reserve.free - self._reserve.bytes - SPARED_BYTES,
        )

    async def keep_to_limits(self) -> None:
        """Drops the largest bases, as many as memory or disk space is missing for. Waits for no bucket."""
        found = [each async for each in self._with_deltas()]
        # The base that is being built goes last, because its delta is about to become small.
        found.sort(key=lambda each: (each[1] is self._building, -each[1].columnar.delta_bytes))
        missing = sum(live.columnar.delta_bytes for _, live in found) - self._limits.total_delta_bytes
        why = (
            "the writes since the bases of all buckets were built exceed their memory limit "
            f"(base_total_delta_bytes is {self._limits.total_delta_bytes:,})"
        )
        dropped = []
        for table, live in found:
            if missing <= 0:
                break
            missing -= live.columnar.delta_bytes
            self._drop(live, why)
            dropped.append((table, live))
        missing = self._reserve.bytes + SPARED_BYTES - self._reserve.free
        for table, live in sorted(found, key=lambda each: -each[1].columnar.record.base_bytes):
            if missing <= 0:
                break
            if live.columnar.base is not None:
                missing -= live.columnar.record.base_bytes
                # Another one is built once there is space, whatever it costs: nothing else was wrong with it.
                self._drop(live, "the disk is almost full, and writes need the space", at_once=True)
                dropped.append((table, live))
        for table, live in dropped:
            if live is not self._building:
                await self._remove_unread(table, live)

    async def merge_deltas(self) -> None:
        """Merges deltas for the scans that follow, and those that take much memory until they are merged."""
        found = [live async for _, live in self._with_deltas()]
        for live in found:
            try:
                await self._merge_delta(live, self._limits.total_delta_bytes // len(found) // 2)
            except (ScanKvError, TimeoutError) as error:
                # Its writers wait for it, too, or it was closed.
                _log.debug("the delta of %s is merged later: %s", live.location, error)

    async def _with_deltas(self) -> AsyncIterator[tuple[TableState, LiveBucket]]:
        for table in list(self._tables()):
            for number, live in enumerate(table.buckets):
                if number % _BUCKETS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if live.columnar.delta is not None:
                    yield table, live

    async def _merge_delta(self, live: LiveBucket, most_bytes: int) -> None:
        slot, delta, now = live.columnar, live.columnar.delta, self._clock.monotonic()
        if slot.was_scanned:
            slot.was_scanned, self._scanned_until[live] = False, now + _SCANNED_SECONDS
        is_scanned = slot.base is not None and now < self._scanned_until.get(live, 0.0)
        for each in (delta, None if delta is None else delta.forked):
            if each is None:
                continue
            many = is_scanned and 2 * each.unmerged_rows > slot.most_unmerged_rows(each)
            if many or (2 * each.unmerged_rows > each.rows and each.nbytes > most_bytes):
                await self._merge(live, each, _MUTEX_SECONDS)

    async def _merge(self, live: LiveBucket, delta: Delta, wait_seconds: float | None = None) -> None:
        """Merges a delta. Raises TimeoutError if the mutex of the bucket is not free within some seconds."""
        async with asyncio.timeout(wait_seconds), live.mutex:
            view = delta.view()
        await self._executor.run(view.merge)

    def _drop(self, live: LiveBucket, why: str, *, at_once: bool = False) -> None:
        """Drops the base of a bucket, or the one that is being built."""
        live.columnar.drop(why, at_once=at_once)
        live.columnar.record.drops += 1
        self._pause(live, "it was dropped a short time ago")
        _log.warning("the columnar base of %s is dropped: %s", live.location, why)


def _is_at_rest(table: TableState, live: LiveBucket) -> bool:
    """Whether nothing is due before the next scan, which takes less time to find out than `why_not_due`."""
    record = live.columnar.record
    if record.wanted or record.is_on_disk or record.waits not in (NEVER_SCANNED, NOT_SCANNED):
        return False
    return table.definition.options.columnar_base == "auto"


def _wants_bases(table: TableState) -> bool:
    return table.definition.options.columnar_base != "off"
