"""A table while the server runs: its state, reads, writes and changes."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest
from streaming_server.engine.bucket.bucket_checker import BucketChecker
from streaming_server.engine.bucket.bucket_opener import BucketOpener
from streaming_server.engine.bucket.commit_barrier import still_opening
from streaming_server.engine.bucket.live_bucket import LiveBucket, LiveBucketStats
from streaming_server.engine.bucket.locking import OPENING_SECONDS, lock_buckets
from streaming_server.engine.bucket.table_state import TableState
from streaming_server.engine.changelog.compacted_catch_up import DEFAULT_CATCH_UP
from streaming_server.engine.changelog.table_changes import TableChanges
from streaming_server.engine.columnar.base_adoption import adopt_bases
from streaming_server.engine.indexes.index_builds import IndexBuilds
from streaming_server.engine.reads.table_reads import TableReads
from streaming_server.engine.snapshots.pinning import ViewPinner
from streaming_server.engine.table.table_partitions import TablePartitions
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.writes.table_writes import TableWrites
from streaming_server.storage.changelog.retention_holds import UNDO_OWNER
from streaming_server.storage.files.disk_use import DiskBytes, measure_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.own_buckets import OwnBuckets
    from streaming_server.engine.changelog.compacted_catch_up import CatchUpLimits
    from streaming_server.engine.functions.installed import Installed
    from streaming_server.engine.indexes.index_builds import IndexBuildProgress
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.writes.column_locks import TableColumnLocks
    from streaming_server.storage.bucket.writer_states import WriterLimits
    from streaming_server.storage.files.disk_reserve import DiskReserve
    from streaming_server.storage.files.disk_use import BucketFiles
    from streaming_server.storage.rocks.store_options import RocksResources


class LiveTable:
    """One table of a running server. Bound to the server's event loop.

    Attributes:
        state: Its definition and its buckets.
        reads: Scans, lookups and counts.
        writes: Upserts and deletes.
        changes: Streams of its changes.
        pinning: Takes the views that pinned snapshots keep.
        partitions: Its partitions, if it is partitioned.
    """

    def __init__(
        self,
        definition: TableDefinition,
        path: Path,
        resources: RocksResources,
        executor: StorageExecutor,
        retention_holds: Callable[[int], Mapping[str, int]] = lambda _: {},
        catch_up: CatchUpLimits = DEFAULT_CATCH_UP,
        *,
        clock: ServerClock,
        locks: TableColumnLocks,
        writer_limits: WriterLimits,
        reserve: DiskReserve,
        total_delta_bytes: int,
        installed: Installed = MappingProxyType({}),
        count_written: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Opens nothing yet.

        Args:
            definition: The current definition.
            path: The table's directory.
            resources: Shared by all buckets of the process.
            executor: Runs blocking work.
            retention_holds: Returns the retention holds on a bucket's changelog: the offset of each, by owner.
            catch_up: When and how streams of changes catch up.
            clock: The server's clock.
            locks: The locks on the table's columns.
            writer_limits: The limits on the writers of each bucket.
            reserve: The disk space that writes leave free.
            total_delta_bytes: The memory for the deltas of all columnar bases of the process.
            installed: The aggregators that the server has from other packages.
            count_written: Counts rows that a request has applied.
        """

        def make_bucket(number: int, state: TableState) -> LiveBucket:
            opener = BucketOpener(
                path / "buckets" / f"{number:04}",
                f"bucket {number} of {definition.name}",
                compression=definition.options.compression,
                resources=resources,
                clock=clock,
                mark_seconds=lambda: _mark_seconds(state.definition),
                indexes=lambda: list(state.codec.indexes),
                definition=lambda: state.definition,
                retention_holds=partial(retention_holds, number),
                writer_limits=writer_limits,
            )
            return LiveBucket(
                number,
                definition.name,
                opener,
                executor=executor,
                on_unbuilt=lambda live: self._index_builds.wake(live),
            )

        self.state = TableState(
            definition,
            path,
            make_bucket,
            executor=executor,
            clock=clock,
            reserve=reserve,
            total_delta_bytes=total_delta_bytes,
            count_written=count_written,
        )
        self.reads = TableReads(self.state)
        self.writes = TableWrites(self.state, locks, installed)
        self.changes = TableChanges(self.state, catch_up)
        self.pinning = ViewPinner(self.state)
        self.partitions = TablePartitions(self.state, locks, self.alter)
        self._index_builds = IndexBuilds(lambda: self.state.codec, reserve)

    @property
    def definition(self) -> TableDefinition:
        return self.state.definition

    @property
    def buckets(self) -> OwnBuckets:
        return self.state.buckets

    def alter(self, definition: TableDefinition) -> None:
        """Uses a newer definition from now on. Indexes are built and removed in the background, in every bucket.

        Columnar bases that are no longer wanted are not read any more; `BaseMaintenance` removes their files.
        """
        old = self.definition
        has_other_changelog = definition.changelogs != old.changelogs
        self.state.alter(definition)
        for live in self.buckets:
            if live.open_bucket is not None:
                live.open_bucket.log.set_age_precision(_mark_seconds(definition))
            if definition.options.columnar_base == "off":
                live.columnar.drop_unwanted()
            elif definition.expiry_since_micros != old.expiry_since_micros and live.columnar.delta is not None:
                # It may have rows that were removed silently because they had expired by the earlier TTL.
                live.columnar.drop("the TTL of the table was changed")
        if definition.indexes != old.indexes:
            for live in self.buckets:
                self._index_builds.wake(live)
        if has_other_changelog:
            for live in self.buckets:
                live.notify()  # A stream that waits for changes ends if none can come any more.
        self.state.notify()

    async def alter_changelog(self, store: Callable[[], Awaitable[TableDefinition]]) -> TableDefinition:
        """Uses a definition with another value of the option `changelog` from now on, as `alter`.

        Nothing is written to any bucket in the meantime. Storing the definition is the decision: after a crash, each
        bucket follows it when it is opened. Once this returns, all of them follow it durably.

        Args:
            store: Stores the new definition durably, and returns it as it is stored.

        Returns:
            The new definition.

        Raises:
            InvalidRequest: An undo is running. Nothing was changed.
            DataLoss: A bucket is damaged. Nothing was changed.
            DiskFull: Less than the reserve of disk space is free, so nothing was changed; or the disk is full.
        """
        self.state.reserve.check()
        async with lock_buckets([*self.buckets]) as opened:
            for live, bucket in opened:
                if any(owner.startswith(UNDO_OWNER) for owner in bucket.log.holds.owners):
                    raise InvalidRequest(
                        f"{live.location}: an undo is running, which needs the changelog as it is: set the option "
                        '"changelog" when it is done',
                        table=live.table,
                    )
            definition = await store()
            self.alter(definition)
            # Every bucket that can be written follows the definition, even if another one fails.
            await all_ended(live.open() for live in self.buckets)
        await all_ended(live.wait_written() for live in self.buckets)
        return definition

    def build_indexes(self) -> None:
        """Begins to build the indexes in the background, also in buckets that no client has used yet."""
        for live in self.buckets:
            self._index_builds.wake(live)

    async def statistics(self) -> tuple[list[LiveBucketStats], list[IndexBuildProgress]]:
        """Returns the statistics of each bucket, read one after another, and how far each index is built.

        Opens buckets that were never opened. Adopts their columnar bases first, as the next scan would.

        Raises:
            Unavailable: Opening them takes longer than a client waits for an answer. Another attempt gets further.
        """
        await adopt_bases(self.state, [*self.buckets])
        figures, opened, ends = list[LiveBucketStats](), 0, time.monotonic() + OPENING_SECONDS
        for live in self.buckets:
            is_new = live.state is None and live.damage is None
            if is_new and opened and time.monotonic() >= ends:
                raise still_opening([*self.buckets])
            figures.append(await live.stats())
            opened += is_new
        return figures, [self._index_builds.status(index, figures) for index in self.definition.indexes]

    async def disk_use(self) -> tuple[DiskBytes, dict[int, BucketFiles]]:
        """Returns the disk use of the table and of each bucket. Opens nothing; reads directories in a thread."""
        files = await self.state.executor.run(measure_table, self.state.path)
        known = {live.number: live.family_bytes for live in self.buckets}
        use = DiskBytes.of_table(files, {number: each for number, each in known.items() if each is not None})
        return use, dict(files.buckets)

    async def open_check(self, number: int) -> BucketChecker:
        """Returns a check of one bucket as of now, for the caller to run. Raises DataLoss if the bucket cannot open."""
        live = self.buckets[number]
        async with live.mutex:
            bucket = await live.open()
            check = BucketChecker(number, bucket, self.state.codec, live.record_error)
            self.state.abort_on_close(check)
        return check

    async def close(self, reason: ScanKvError) -> None:
        """Refuses new work, ends every scan, and closes the buckets. Scans and new work get the error `reason`."""
        for live in self.buckets:
            live.refuse(reason)
        self.state.notify()
        await self._index_builds.close()
        await self.pinning.close(reason)
        async with AsyncExitStack() as mutexes:
            for live in self.buckets:
                # Bypasses the barrier, because the barrier of a transaction that cannot be applied is never lifted.
                await mutexes.enter_async_context(live.mutex.bypass_barrier())
            # Views are opened with the mutexes held, so no further view can open.
            for source in self.state.sources():
                source.abort(reason)
            # Closing syncs, which releases the interpreter lock: several at once take a fraction of the time.
            await all_ended(live.close() for live in self.buckets)


def _mark_seconds(definition: TableDefinition) -> float:
    """Returns how precisely the ages of changes must be known, in seconds."""
    # Without a retention, for one that may be set later.
    return (definition.options.log_retention_seconds or 7 * 86_400) / 100
