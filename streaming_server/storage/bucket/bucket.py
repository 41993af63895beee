"""One bucket on disk: rows, changelog and state in one RocksDB directory, changed together or not at all."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.bucket_change import BucketChange, as_array
from streaming_server.storage.bucket.bucket_snapshot import BucketSnapshot
from streaming_server.storage.bucket.bucket_state import STATE_KEY, BucketState, load_state
from streaming_server.storage.bucket.deleted_run import DeletedRun
from streaming_server.storage.bucket.deleted_space import DUE_BYTES, DeletedRanges, DeletedSpace
from streaming_server.storage.bucket.index_build import IndexBuild, build_key, entry_range, load_index_build
from streaming_server.storage.bucket.partitions import BucketPartitions, PartitionRecord, put_partitions
from streaming_server.storage.bucket.removed_changes import commit_time_before, find_removed, put_removed
from streaming_server.storage.bucket.writer_states import DEFAULT_WRITER_LIMITS, WriterStates
from streaming_server.storage.changelog.bucket_log import BucketLog
from streaming_server.storage.changelog.range_markers import RangeMarker
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.entry_cursor import EntryCursor
from streaming_server.storage.cursors.ranges_cursor import RangesCursor
from streaming_server.storage.cursors.row_lookup import RowLookup
from streaming_server.storage.rocks.dense_rows import get_dense_rows
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_files import make_logs_durable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_ranges import KeyRanges
    from scankv.model.tables.partitioning import PartitionDrop
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.bucket.bucket_change import Binary
    from streaming_server.storage.bucket.writer_states import WriteAnswer, WriteIdentity, WriterLimits, WriteStep
    from streaming_server.storage.changelog.change_log import ChangeLog, ChangelogUsage
    from streaming_server.storage.changelog.segments import Segment
    from streaming_server.storage.files.disk_use import FamilyBytes
    from streaming_server.storage.rocks.store import RocksStats
    from streaming_server.storage.rocks.store_batch import StoreBatch
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.rocks.store_readers import StoreReaders
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec

_ALL_KEYS = KeyRange()
_MANY_KEYS = 256  # for which one probe costs little next to their lookups
_MANY_ROWS: Final = 64  # that are worth sorting
_LOG_SECONDS: Final = 60.0
"""The least time between two compactions of a changelog that is written."""
_LOG_IDLE_SECONDS: Final = 5.0
"""After so long without a change, a changelog counts as not written."""

_log = logging.getLogger(__name__)


class Bucket:
    """One open bucket of a table.

    Not thread-safe: callers hold the bucket's mutex, with two exceptions. `sync` may run concurrently with everything,
    one call at a time. `flush`, `compact_*` and `checkpoint` may run concurrently with all but `close`.

    Attributes:
        location: The name of the bucket in errors.
        flushes: Flushes on demand since small files were last compacted.
        log: The changelog.
        writers: The writers that the bucket knows, and which of their requests are applied.
        partitions: The partitions that have had rows in the bucket, or were created in it.
    """

    def __init__(
        self,
        path: Path,
        location: str,
        *,
        compression: str,
        resources: RocksResources,
        clock: ServerClock,
        writer_limits: WriterLimits = DEFAULT_WRITER_LIMITS,
        read_only: ScanKvError | None = None,
        state_at_close: BucketState | None = None,
        mark_seconds: float = 60.0,
    ) -> None:
        """Opens the bucket in a directory, and creates it when it does not exist.

        Args:
            path: RocksDB's directory. The durable watermark is the file beside it with the suffix `.durable`.
            location: The name of the bucket in errors, such as `bucket 3 of game.scores`.
            compression: `none`, `lz4` or `zstd`, for blocks written from now on.
            resources: Shared by all buckets of the process.
            clock: The clock of the server.
            writer_limits: Limits the writers of the bucket.
            read_only: Why the bucket is opened only for reading, which needs no disk space. None: for writing as well.
            state_at_close: The state with which this process closed the bucket after a write or a sync failed. None:
                this process has not had the bucket open.
            mark_seconds: How precisely the ages of changes are known, in seconds.

        Raises:
            DataLoss: The bucket is damaged: RocksDB cannot open it, or acknowledged changes are missing.
            DiskFull: No space is left to open the bucket for writing.
        """
        self.location = location
        self._is_abandoned = False
        self.flushes = 0
        self._synced_offset: int | None = None
        # Before the store is opened, so that everything it reads is durable.
        has_synced_store = read_only is None or _try_to_sync_logs(path)
        self._store = RocksStore(
            path,
            location,
            compression=compression,
            resources=resources,
            read_only=read_only is not None,
            may_be_cut_short=True,
        )
        self._store.refusal = read_only
        self.writers = WriterStates(self._store, writer_limits, clock)
        self.partitions = BucketPartitions(self._store)
        self._clock = clock
        self._builds: dict[int, IndexBuild] = {}
        # Keys that were read since the last write, if all rows from the first to the last are theirs.
        self._all_between: list[bytes] = []
        self._deleted_rows, self._deleted_entries = DeletedSpace(), DeletedSpace()
        self._deleted_run = DeletedRun()
        self._deleted_log = DeletedSpace(most_ranges=1)
        # On the monotonic clock: when the log was last found to have grown, and when its deleted records were taken.
        self._log_grown, self._log_taken = (-1, -math.inf), -math.inf
        try:
            self.log: ChangeLog = BucketLog(
                self._store,
                lambda: self._state,
                watermark=path.with_suffix(".durable"),
                clock=clock,
                age_seconds=mark_seconds,
                has_synced_store=has_synced_store,
            )
            try:
                self._state = self.log.recover(load_state(self._store), state_at_close)
                self._record_lost()
            except BaseException:
                self.log.close()
                raise
        except BaseException:
            self._store.close()
            raise

    @property
    def state(self) -> BucketState:
        """The state after the last applied change, durable or not."""
        return self._state

    @property
    def is_read_only(self) -> bool:
        """Whether the bucket was opened only for reading."""
        return self._store.is_read_only

    @property
    def is_writable(self) -> bool:
        """Whether the bucket accepts writes. If not, it has to be reopened."""
        return self._store.refusal is None

    @property
    def refusal(self) -> ScanKvError | None:
        """Why the bucket accepts no writes. None: it accepts writes."""
        return self._store.refusal

    @property
    def sequence(self) -> int:
        """RocksDB's number of the last write. After the bucket was opened again, it is lower if writes were lost."""
        return self._store.sequence

    @property
    def longest_row(self) -> int:
        """Bytes of the longest row ever written."""
        return self._state.longest_row

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some encoded keys, None for a key without a row.

        Where no row lies between the least and the greatest of many keys, as when rows arrive in key order, this takes
        a few lookups in all. Where few others do, all rows between the two are read.
        """
        if len(keys) < _MANY_KEYS:
            return self._store.get_rows(keys)
        if not self.has_rows_among(keys):
            return [None] * len(keys)
        rows, are_all = get_dense_rows(self._store, keys)
        self._all_between = keys if are_all else []
        return rows

    def has_rows_among(self, keys: list[bytes]) -> bool:
        """Whether a row may exist between the least and the greatest of some keys. Takes up to three lookups."""
        # Keys often ascend. Otherwise rows mostly exist between any two of them, and the extremes are not needed.
        first, last = min(keys[0], keys[-1]), max(keys[0], keys[-1])
        if self._store.has_rows_between(first, last):
            return True
        least, greatest = min(keys), max(keys)
        return (least, greatest) != (first, last) and self._store.has_rows_between(least, greatest)

    def find_cached(self, keys: list[bytes]) -> list[bytes | None] | None:
        """Like `get`, without reading from disk. Returns None if a row is not in memory."""
        return self._store.find_cached_rows(keys)

    def commit_time(self) -> int:
        """Returns the commit time of a commit made now, in microseconds since 1970 UTC. Never decreases."""
        return max(self._state.commit_micros, self._clock.commit_micros())

    def commit_time_of(self, micros: int | None) -> int:
        """Returns the commit time of a commit whose transaction has chosen a time; None: it is made now."""
        return self.commit_time() if micros is None else max(self._state.commit_micros, micros)

    def apply(self, change: BucketChange, step: WriteStep | None = None, commit_micros: int | None = None) -> None:
        """Applies a change atomically: rows, changelog, index entries and state.

        The change is visible to reads at once and durable after the next `sync`. If no visible column differs, the
        changelog gets no changes and no offset is used, but the rows with their new hidden columns become durable in
        the same way. So does the silent removal of expired rows.

        Args:
            change: The change.
            step: The request that the change is part of; `find_answer` has not refused it. It is recorded even when the
                change is empty.
            commit_micros: The commit time that the transaction has chosen. None: now.
        """
        if change.count == 0 and not len(change.put_keys) and not len(change.delete_keys):
            if step is not None:
                self.record(step)
            return
        rows, added = (0, len(change.put_keys)) if change.clears_bucket else (self._state.rows, change.rows_added)
        micros = self.commit_time_of(commit_micros)
        state = replace(
            self._state,
            rows=None if rows is None or added is None else rows + added,
            longest_row=max(self._state.longest_row, change.longest_row, change.longest_deleted_key),
            commit_micros=micros,
            clean=False,
            indexes=_with(self._state.indexes, (entries.index for entries in change.entries)),
            last_drop=self._state.last_drop if change.last_drop is None else change.last_drop,
            time_restarts=self._state.time_restarts + change.restarts_times,
        )
        batch = self._store.batch()
        deleted: list[bytes] = change.delete_keys.to_pylist()
        deleted_ranges = [*change.delete_ranges]
        if deleted and deleted == self._all_between:
            # Before the puts. One mark slows readers less than many do, and is written sooner.
            batch.delete_adjacent_rows(deleted)
            deleted_ranges.append(KeyRange(deleted[0], deleted[-1] + b"\0"))
            deleted = []
        elif deleted:
            deleted.sort()
            if self._deleted_run.is_due:
                self._join_deleted(batch)
            self._deleted_run.add(deleted)
        self._all_between = []
        for keys in change.delete_ranges:
            batch.delete_row_range(keys.start or b"", keys.end)
        for keys in change.delete_entry_ranges:
            assert keys.start is not None
            assert keys.end is not None
            batch.delete_entry_range(keys.start, keys.end)
        batch.put_rows(*_in_key_order(change.put_keys, change.put_values))
        batch.delete_rows(deleted)
        for entries in change.entries:
            batch.put_entries(*_in_key_order(entries.put_keys, entries.put_values))
            batch.delete_entries(sorted(entries.delete_keys.to_pylist()))
        if change.logged is None:
            state = state.after_unrecorded(change.count)
        else:
            state = self.log.append(batch, state, change.logged, schema_id=change.schema_id, commit_micros=micros)
        partitions = self.partitions.after(change, micros)
        put_partitions(batch, partitions)
        self._record_deleted(deleted_ranges, change)
        self._write_state(batch, state, step)
        self.partitions.remember(partitions)

    def ingest(self, files: Sequence[Path], change: BucketChange, *, longest_row: int, commit_micros: int) -> None:
        """Takes in files with all rows of the bucket, which is empty. Not atomic: a crash may leave rows without state.

        Args:
            files: SST files, in key order.
            change: What `apply` would be given for all rows at once, without the rows themselves.
            longest_row: Bytes of the longest row.
            commit_micros: The commit time of the rows.
        """
        self._store.ingest_rows(files)
        state = replace(
            self._state, rows=change.rows_added, longest_row=longest_row, commit_micros=commit_micros, clean=False
        )
        batch = self._store.batch()
        if change.marker is None:
            state = state.after_unrecorded(1)
        else:
            schema_id = change.schema_id
            state = self.log.append(batch, state, change.marker, schema_id=schema_id, commit_micros=commit_micros)
        put_partitions(batch, self.partitions.after(change, commit_micros))
        self._write_state(batch, state)

    def _join_deleted(self, batch: StoreBatch) -> None:
        """Deletes the range of keys that were deleted one after another, unless a row lies in it.

        RocksDB compacts files with many tombstones of single keys by itself.
        """
        run = self._deleted_run
        if not self._store.has_rows_between(run.first, run.last, deleted=run.count):
            batch.delete_queued_rows(run.first, run.last, run.count)
        run.clear()

    def _record_deleted(self, ranges: Sequence[KeyRange], change: BucketChange) -> None:
        """Records that the rows of some ranges will take space after they are deleted by a change."""
        if not ranges:
            return
        rows, removed, share = self._state.rows, change.rows_added, 1.0
        if rows and removed is not None and not change.clears_bucket:
            share = min(-removed / rows, 1.0)
        stored = self._store.family_bytes()
        self._deleted_rows.add(ranges, int(share * (stored.rows + self._store.unflushed_bytes)))
        self._deleted_entries.add(change.delete_entry_ranges, int(share * stored.indexes))

    def take_deleted_ranges(self, now: float) -> DeletedRanges | None:
        """Returns what has to be compacted, if deleted data take much space.

        A log that is written loses records all the time, and each flush that is not needed makes small files. So its
        records are returned once a minute; and soon, if nothing more is written.

        Args:
            now: The time on the monotonic clock.
        """
        if self._state.log_offset != self._log_grown[0]:
            self._log_grown = self._state.log_offset, now
        rows, entries, records = list[KeyRange](), list[KeyRange](), list[KeyRange]()
        if self._deleted_rows.is_due or self._deleted_entries.is_due:
            rows, entries = self._deleted_rows.take(), self._deleted_entries.take()
        is_idle = now - self._log_grown[1] >= _LOG_IDLE_SECONDS
        if self._deleted_log.is_due and (is_idle or now - self._log_taken >= _LOG_SECONDS):
            records, self._log_taken = self._deleted_log.take(), now
        return DeletedRanges(rows, entries, records) if rows or entries or records else None

    def return_deleted_ranges(self, deleted: DeletedRanges) -> None:
        """Takes back ranges of `take_deleted_ranges` that could not be compacted."""
        for space, ranges in (
            (self._deleted_rows, deleted.rows),
            (self._deleted_entries, deleted.entries),
            (self._deleted_log, deleted.records),
        ):
            if ranges:
                space.add(ranges, DUE_BYTES)

    def compact_ranges(self, deleted: DeletedRanges) -> None:
        """Flushes, and compacts deleted ranges. Blocks, and may run as `compact_small_files`."""
        self.flush()
        self._store.compact_ranges(deleted.rows, deleted.entries, deleted.records)

    def record(self, step: WriteStep) -> None:
        """Records the progress of a request that changes nothing, because its rows were refused."""
        self._write_state(self._store.batch(), self._state, step)

    def find_answer(self, identity: WriteIdentity) -> WriteAnswer | None:
        """Returns how far a request has been applied. None: not at all, and it may be applied now.

        Raises:
            WriterFenced: The writer has been opened again since.
            WriterExpired: Whether it was applied is unknown: it is too old, or its writer was idle for too long.
            TooManyWriters: The writer is new, and the bucket already knows as many writers as it may.
        """
        return self.writers.find_answer(identity)

    def open_writer(self, writer: str, epoch: int, next_sequence: int, principal: str | None = None) -> None:
        """Begins a new epoch of a writer and fences the earlier ones; durable after the next sync of the store.

        `principal` is as in `WriterState`.
        """
        batch = self._store.batch()
        state = self.writers.open(batch, writer, epoch, next_sequence, principal)
        self._store.write(batch)
        self.writers.cache(writer, state)

    def trim_log(self, offset: int, definition: TableDefinition) -> bool:
        """Removes the changes before an offset, except those under a retention hold. Returns whether it removed any."""
        batch = self._store.batch()
        state = self.log.trim(batch, self._state, offset)
        if state.log_first == self._state.log_first:
            return False
        micros = commit_time_before(self.log, state.log_first, definition)
        if micros is not None:
            put_removed(batch, state.log_first, micros)
        self._record_removed(state.log_first)
        # In a table without a primary key, the changes are the rows.
        are_rows = not definition.has_key
        self._write_state(batch, replace(state, rows=state.count - state.log_first) if are_rows else state)
        return True

    def _record_removed(self, count: int) -> None:
        """Records that the changes before the one with this number will take space after they are removed."""
        removed, size = self.log.space_before(count)
        self._deleted_log.add([removed], size)

    def _record_lost(self) -> None:
        """Records the space of changes that were removed, but not compacted away before the bucket was closed."""
        first, end = (self.log.span.offset_of(count) for count in (self._state.log_first, self._state.count))
        kept = self.log.bytes_before(end) - self.log.bytes_before(first)
        lost = self._store.family_bytes().changelog - kept
        if lost > 0:
            self._deleted_log.add([self.log.space_before(self._state.log_first)[0]], lost)

    def lacks_changes_since(self, micros: int, definition: TableDefinition) -> bool:
        """Returns whether a change that was committed at or after a time is no longer in the changelog.

        Where an earlier version has removed changes, it may also return True if none is missing.
        """
        span = self.log.span
        if span.first == 0:
            return False
        removed = find_removed(self._store, span.first)
        if removed is None:
            first = commit_time_before(self.log, span.first + 1, definition) if span.first < span.end else None
            removed = self._state.commit_micros if first is None else first
        return micros <= removed

    def set_changelog(self, changelogs: Sequence[str], schema_id: int) -> None:
        """Makes the bucket record changes with the current value of the table option `changelog`.

        Does nothing if it does so already. Call it before anything is written with that value. A crash undoes it or
        not; it is then called again.

        - Readers could misread changes that are recorded in another way than those before, so a marker comes between.
        - "none" removes the changelog: all positions before it have expired. A reader that had read all of it can
          continue once changes are recorded again, if nothing was written in the meantime; so "none" itself counts for
          nothing between two other values.

        Args:
            changelogs: All values that the option has had: see `TableDefinition.changelogs`.
            schema_id: The current version of the table's schema.

        Raises:
            DataLoss: The option has changed more often in the bucket than in the table: one of them is an older copy.
        """
        if len(self._state.changelog_starts) >= len(changelogs):
            raise DataLoss(
                f'{self.location}: its changelog follows a newer definition of the table (option "changelog"): restore '
                "the definition and the buckets of the table from the same copy"
            )
        while (number := len(self._state.changelog_starts) + 1) < len(changelogs):
            after, batch, state = changelogs[number], self._store.batch(), self._state
            if "none" in (changelogs[number - 1], after):
                put_removed(batch, state.count, state.commit_micros)
            recorded = [each for each in changelogs[:number] if each != "none"]
            if after == "none":
                self._record_removed(state.count)
                state = self.log.clear(batch, state)
            elif recorded and recorded[-1] != after:
                marker, micros = RangeMarker.of_changelogs(recorded[-1], after), self.commit_time()
                state = self.log.append(batch, state, marker, schema_id=schema_id, commit_micros=micros)
                state = replace(state, commit_micros=micros)
            self._write_state(batch, replace(state, changelog_starts=(*state.changelog_starts, state.count)))

    def follow_drop(self, drop: PartitionDrop, definition: TableDefinition) -> None:
        """Deletes the rows of dropped partitions, as the definition of the table says. A crash undoes it or not.

        Call it before anything else is written under that definition. Of each range that had rows, the changelog gets
        one marker.

        Raises:
            DataLoss: The bucket has followed a later drop: the bucket or the definition is an older copy.
        """
        if self._state.last_drop > drop.number:
            raise DataLoss(
                f"{self.location}: a newer definition of the table has dropped partitions: restore the definition and "
                "the buckets of the table from the same copy"
            )
        ranges, empty = [], dict[bytes, None]()
        for prefix in drop.prefixes:
            records = self.partitions.within(prefix)
            counts = [record.rows for record in records.values()]
            if any(count != 0 for count in counts):
                rows = None if None in counts else sum(count for count in counts if count is not None)
                ranges.append((prefix, rows))
            else:
                empty |= dict.fromkeys(records)
        if empty or not ranges:
            batch, state = self._store.batch(), replace(self._state, commit_micros=self.commit_time())
            put_partitions(batch, empty)
            self._write_state(batch, state if ranges else replace(state, last_drop=drop.number))
            self.partitions.remember(empty)
        for number, (prefix, rows) in enumerate(ranges, 1):
            change = BucketChange.of_deleted_range(
                KeyRange.under(prefix),
                definition=definition,
                rows=rows,
                entry_ranges=tuple(KeyRange.under(entry_range(index)[0] + prefix) for index in self._state.indexes),
            )
            # Only the last of them completes the drop.
            last_drop = drop.number if number == len(ranges) else self._state.last_drop
            self.apply(replace(change, last_drop=last_drop))

    def create_partition(self, name: bytes) -> bool:
        """Adds a partition without rows. Returns whether it is new. Durable after the next sync of the store."""
        if name in self.partitions.records:
            return False
        batch, micros = self._store.batch(), self.commit_time()
        created = {name: PartitionRecord(created_micros=micros)}
        put_partitions(batch, created)
        # By its time, a restore as of an earlier instant leaves it out.
        self._write_state(batch, replace(self._state, commit_micros=micros))
        self.partitions.remember(created)
        return True

    def put_segment(self, segment: Segment) -> None:
        """Replaces records by a segment and records how far the changelog is rewritten, atomically."""
        batch = self._store.batch()
        state = self.log.put_segment(batch, self._state, segment)
        if state != self._state:
            self._write_state(batch, state)
            if segment.record is not None:
                self._deleted_log.add([KeyRange(segment.record[0], segment.last_key + b"\0")], segment.size)

    @property
    def builds(self) -> Mapping[int, IndexBuild]:
        """The progress of the build of each index that is not ready, by index id."""
        return self._builds

    def set_indexes(self, indexes: Collection[int]) -> None:
        """Makes the bucket have exactly the indexes of the table. Called after opening, and whenever they change.

        Deletes the entries and the build progress of other indexes. In a bucket without rows, every index is ready.
        """
        before = self._state
        kept = [index for index in before.ready_indexes if index in indexes]
        ready = tuple(sorted(indexes)) if before.rows == 0 else tuple(kept)
        state = replace(before, indexes=tuple(sorted(indexes)), ready_indexes=ready)
        if state != before and not self.is_read_only:
            batch = self._store.batch()
            for index in sorted({*before.indexes, *indexes}):
                if index not in indexes:
                    batch.delete_entry_range(*entry_range(index))
                if index not in indexes or index in ready:
                    batch.delete_meta(build_key(index))
            self._write_state(batch, state)
        self._builds = {index: load_index_build(self._store, index) for index in indexes if index not in ready}

    def put_index_entries(self, index: int, keys: pa.Array, values: pa.Array, build: IndexBuild) -> None:
        """Puts entries of an index that is being built and records the progress of the build, atomically."""
        batch = self._store.batch()
        batch.put_entries(keys.to_pylist(), values.to_pylist())
        batch.put_meta(build_key(index), build.to_bytes())
        self._store.write(batch)
        self._builds[index] = build

    def finish_index_build(self, index: int) -> None:
        """Marks an index as ready: it has an entry for every row."""
        batch = self._store.batch()
        batch.delete_meta(build_key(index))
        self._write_state(batch, replace(self._state, ready_indexes=_with(self._state.ready_indexes, [index])))
        del self._builds[index]

    def _write_state(self, batch: StoreBatch, state: BucketState, step: WriteStep | None = None) -> None:
        if self._state.clean and not state.clean:
            self._begin_writing()
        batch.put_meta(STATE_KEY, state.to_bytes())
        writer = None if step is None else self.writers.record(batch, step, state.log_offset)
        self._store.write(batch)
        self._state = state
        if step is not None and writer is not None:
            self.writers.cache(step.identity.writer, writer)

    def _begin_writing(self) -> None:
        """Makes durable that the bucket is being written, before the first write after it was opened.

        Readers may see writes before their sync. If a power failure could undo the first writes together with their
        epoch, later changes would get the same offsets.
        """
        batch, state = self._store.batch(), replace(self._state, clean=False)
        batch.put_meta(STATE_KEY, state.to_bytes())
        self._store.write(batch)
        self._state = state
        self._store.sync()

    def snapshot(self, durable_offset: int) -> BucketSnapshot:
        """Returns the bucket at this instant, durable up to an offset. Drop it before the bucket is closed."""
        return BucketSnapshot(self._state, durable_offset, self._store.snapshot_rows())

    def cursor(
        self,
        codec: RowCodec,
        decoder: Decoder,
        keys: KeyCodec,
        key_range: KeyRange = _ALL_KEYS,
        *,
        reverse: bool = False,
    ) -> BucketCursor:
        """Returns a cursor over the rows of a key range at this instant; in descending key order with `reverse`."""
        return BucketCursor(self._store, codec, decoder, keys, self._state.longest_row, key_range, reverse=reverse)

    def ranges_cursor(self, decoder: Decoder, ranges: KeyRanges, *, reverse: bool = False) -> RangesCursor:
        """Returns a cursor over the rows of some key ranges at this instant; in descending key order with `reverse`."""
        return RangesCursor(self._store, decoder, ranges, self._state.longest_row, reverse=reverse)

    def row_lookup(self) -> RowLookup:
        """Returns what looks up the rows of index entries at this instant."""
        return RowLookup(self._store)

    def entry_cursor(self, ranges: KeyRanges, *, reverse: bool = False) -> EntryCursor:
        """Returns a cursor over the index entries in some ranges at this instant; in reverse order with `reverse`."""
        return EntryCursor(self._store, self._state.longest_row, ranges, reverse=reverse)

    @property
    def approximate_rows(self) -> int:
        """About how many rows the bucket has. Takes microseconds."""
        rows = self._state.rows
        return self._store.estimate_rows() if rows is None else rows

    @property
    def row_bytes(self) -> int:
        """About how many bytes a stored row has."""
        return min(self._store.estimate_row_bytes(), self.longest_row)

    @property
    def late_readers(self) -> StoreReaders:
        """Creates cursors as late as possible without changing what they show."""
        return self._store.readers

    def sync(self, offset: int) -> None:
        """Makes the changes before `offset`, all of them already applied, durable."""
        self.log.sync(offset)
        self._synced_offset = offset

    def read_stored_rows(self, count: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yields the keys and the stored bytes of all rows in key order, so many at a time. Raises DataLoss."""
        yield from self._store.read_rows(count)

    def check_metadata(self) -> int:
        """Reads the metadata of the bucket, and returns the number of entries. Blocks. Raises DataLoss at damage."""
        return self._store.count_meta()

    def family_bytes(self) -> FamilyBytes:
        """Returns the bytes of the bucket's SST files, by column family. Takes microseconds."""
        return self._store.family_bytes()

    def rocks_stats(self) -> RocksStats:
        """Returns RocksDB's own statistics. Takes tens of microseconds."""
        return self._store.rocks_stats()

    def changelog_usage(self) -> ChangelogUsage:
        """Returns how much of the changelog is retained, and by which hold. Takes milliseconds for gigabytes."""
        return self.log.usage()

    @property
    def unflushed_bytes(self) -> int:
        """The memory of writes that are not in SST files yet. Takes microseconds."""
        return self._store.unflushed_bytes

    @property
    def unflushed_log_bytes(self) -> int:
        """About the bytes of the write-ahead log of these writes. Takes microseconds."""
        return self._store.unflushed_log_bytes

    def flush(self) -> None:
        """Moves unflushed writes into SST files."""
        self.flushes += 1
        self._store.flush()

    @property
    def lacks_space(self) -> bool:
        """Whether a flush or a compaction has failed since the bucket was opened."""
        return self._store.lacks_space

    def stop_waiting(self) -> None:
        """Ends calls that wait for disk space; the bucket then has to be reopened. Safe in any thread."""
        self._store.stop_waiting()

    def compact_small_files(self) -> int:
        """Merges runs of many small SST files into one file each; returns how many runs. Blocks."""
        return self._store.compact_small_files()

    @property
    def readers(self) -> int:
        """How many cursors read the bucket."""
        return self._store.readers.count

    def checkpoint(self, path: Path) -> None:
        """Makes a copy of the bucket at this instant in the directory `path`, which must not exist, for `Checkpoint`.

        The copy shares the SST files with the bucket, and keeps those that the bucket deletes later.
        """
        self._store.checkpoint(path)

    def close(self, *, flush: bool = True) -> None:
        """Closes the bucket cleanly, so that the next start continues the epoch. All cursors must have been closed.

        Without `flush`, few unflushed writes stay in the write-ahead log.
        """
        try:
            if not self._state.clean and self.is_writable:
                self._state = replace(self._state, clean=True)
                self._write_state(self._store.batch(), self._state)
                # The watermark is up to date unless changes came after a sync.
                if self._synced_offset != self._state.log_offset:
                    self.sync(self._state.log_offset)
                else:
                    self._store.sync()
        finally:
            self.log.close()
            self._store.close(flush=flush)

    def abandon(self) -> None:
        """Closes a bucket that accepts no writes and has no readers, without writing anything. Idempotent."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        self.log.close()
        with suppress(ScanKvError):
            # The store cannot flush its memory, but the write-ahead log has the same writes.
            self._store.close()

    def hand_holds_to(self, other: Bucket) -> None:
        """Hands the retention holds to the bucket object that replaces this one over the same files.

        Cursors of a read-only bucket may continue: RocksDB closes the files after the last of them.
        """
        other.log.holds = self.log.holds
        other._deleted_rows, other._deleted_entries = self._deleted_rows, self._deleted_entries
        if self.is_read_only:
            self.log.close()


def _try_to_sync_logs(path: Path) -> bool:
    """Makes the write-ahead logs of a bucket durable; returns whether that succeeded."""
    try:
        make_logs_durable(path)
    except (ScanKvError, OSError) as error:
        _log.warning("the write-ahead logs in %s cannot be synced: %s", path, error)
        return False
    return True


def _in_key_order(keys: Binary, values: Binary) -> tuple[list[bytes], list[bytes]]:
    """Returns the rows of a batch in key order, which RocksDB takes in with a third less processor time."""
    if len(keys) >= _MANY_ROWS:
        order = pc.sort_indices(as_array(keys))
        keys, values = as_array(keys).take(order), as_array(values).take(order)
    return keys.to_pylist(), values.to_pylist()


def _with(indexes: tuple[int, ...], added: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*indexes, *added}))
