"""One bucket on disk: rows, changelog and state in one RocksDB directory, changed together or not at all."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.durable_watermark import DurableWatermark
from streaming_server.storage.bucket.index_build import IndexBuild, build_key, entry_range, load_index_build
from streaming_server.storage.bucket.writer_states import DEFAULT_WRITER_LIMITS, WriterStates
from streaming_server.storage.changelog.bucket_log import MARK_BYTES, BucketLog, LogMark, LogSpan, put_mark
from streaming_server.storage.changelog.offsets import count_of, make_offset
from streaming_server.storage.changelog.records import LogRecord, decode_record
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.entry_cursor import EntryCursor
from streaming_server.storage.cursors.ranges_cursor import RangesCursor
from streaming_server.storage.rocks.store import RocksResources, RocksStore, make_logs_durable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_ranges import KeyRanges
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.bucket.writer_states import WriteAnswer, WriteIdentity, WriterLimits, WriteStep
    from streaming_server.storage.changelog.bucket_log import Segment
    from streaming_server.storage.changelog.records import Changes
    from streaming_server.storage.files.disk_use import FamilyBytes
    from streaming_server.storage.rocks.store import RowsSnapshot, StoreBatch
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec

_STATE_KEY = b"state"
_ALL_KEYS = KeyRange()

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketState:
    """What a bucket knows about itself; stored in the WriteBatch of every change.

    Attributes:
        epoch: Grows by one with each unclean start.
        count: How many changes the bucket has had, over all epochs.
        epoch_starts: The count at which each epoch began, from epoch 0 on.
        rows: Live rows, exact. None: not known, because rows were written without reading those that were there.
        longest_row: Bytes of the longest row there ever was, or of the longest key that was deleted.
        commit_micros: Commit time of the last commit; the next one is never before it.
        clean: False from the first write after a start until an orderly close.
        log_first: The count of changes before the oldest one that the changelog has.
        log_rewritten: The count of changes before the first one that has yet to be made part of a segment.
        log_bytes: Bytes of all changelog records ever, as they were written.
        log_marked: The same when the last mark was made, see `BucketLog`.
        log_micros: The service time of the last of them, in microseconds.
        log_marked_micros: The service time of the last mark.
        indexes: The ids of the indexes that may have entries here, ascending.
        ready_indexes: The ids of those that have the entries of all rows, ascending. No other one may be read.
    """

    epoch: int = 0
    count: int = 0
    epoch_starts: tuple[int, ...] = (0,)
    rows: int | None = 0
    longest_row: int = 0
    commit_micros: int = 0
    clean: bool = True
    indexes: tuple[int, ...] = ()
    ready_indexes: tuple[int, ...] = ()
    log_first: int = 0
    log_rewritten: int = 0
    log_bytes: int = 0
    log_marked: int = 0
    log_micros: int = 0
    log_marked_micros: int = 0

    @property
    def log_offset(self) -> int:
        """The offset that the next change gets."""
        return make_offset(self.epoch, self.count)

    @property
    def log_span(self) -> LogSpan:
        """Which changes the changelog has."""
        return LogSpan(self.log_first, self.count, self.epoch_starts)

    def to_bytes(self) -> bytes:
        """The stored form: JSON, so that fields can be added and a person can read it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BucketState:
        """The state that `to_bytes` gave."""
        fields: dict[str, Any] = json.loads(data)
        # JSON has no tuples. Buckets written before there were indexes lack fields.
        tuples: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **tuples})

    def after_unclean_stop(self) -> BucketState:
        """The state to go on with when the bucket was not closed in order: a new epoch."""
        return replace(self, epoch=self.epoch + 1, epoch_starts=(*self.epoch_starts, self.count), clean=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """Writes to the entries of one index: those to put, and the keys of those to delete. No key is in both."""

    index: int
    put_keys: pa.Array
    put_values: pa.Array
    delete_keys: pa.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChange:
    """Writes to one bucket, ready to be applied: stored rows to put, keys to delete, and the changes for the log.

    With them what they do to the entries of every index of the table. Without `changes`, where the table has no
    changelog, each key is one; without `rows_added` nobody knows which of the rows are new.
    """

    put_keys: pa.Array
    put_values: pa.Array
    delete_keys: pa.Array
    changes: Changes | None
    rows_added: int | None
    schema_id: int
    entries: tuple[EntryChange, ...] = ()

    @property
    def count(self) -> int:
        """How many changes it is."""
        return len(self.put_keys) + len(self.delete_keys) if self.changes is None else len(self.changes)

    @property
    def longest_row(self) -> int:
        """Bytes of the longest row put."""
        return longest_of(self.put_values)


@dataclass(frozen=True, slots=True)
class ChangelogUsage:
    """What there is of a changelog.

    Attributes:
        bytes: Bytes of its changes, as they were written.
        holder: Who holds the oldest ones that are held. Empty: nobody holds any.
        held_bytes: Bytes of the changes from there on.
    """

    bytes: int = 0
    holder: str = ""
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BucketSnapshot:
    """A bucket as of one instant, for reading single keys. Thread-safe.

    Attributes:
        state: Its state.
        durable_offset: How far it was durable.
        rows: Its rows. None: they cannot be read any more.
    """

    state: BucketState
    durable_offset: int
    rows: RowsSnapshot | None

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored rows of some encoded keys, None where there was none."""
        assert self.rows is not None
        return self.rows.get(keys)


class Bucket:
    """One bucket of a table, open.

    Not thread-safe: hold the bucket's mutex for everything but `sync`, which may run beside all else, one at a time,
    and `flush`, `compact_small_files` and `checkpoint`, which may run beside all but `close`.

    Attributes:
        location: What errors call it.
        flushes: How often it was flushed on demand since small files were made one.
        durable_when_opened: The offset up to which it was durable when it was opened.
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
        after: BucketState | None = None,
        mark_seconds: float = 60.0,
    ) -> None:
        """Opens the bucket in directory `path`, making it when it is not there.

        Args:
            path: RocksDB's directory; the durable watermark lies beside it, with the suffix `.durable`.
            location: What errors call the bucket, as `bucket 3 of game.scores`.
            compression: `none`, `lz4` or `zstd`, for blocks written from now on.
            resources: Shared by all buckets of the process.
            clock: The server's.
            writer_limits: What bounds its writers.
            read_only: Why it is only to be read, for which it needs no space. None: it is to be written as well.
            after: Its state when this process has closed it, because a write or sync failed. None: it was not open.
            mark_seconds: How precisely the ages of changes are known.

        Raises:
            DataLoss: The bucket is damaged: RocksDB cannot open it, or acknowledged changes are missing.
            DiskFull: There is no space to open it for writing.
        """
        self.location = location
        self._after = after
        self._is_abandoned = False
        self.flushes = 0
        self._durable_offset: int | None = None
        # Before it is read, so that what was read is what is durable.
        self._logs_are_durable = read_only is None or _try_to_sync_logs(path)
        self._store = RocksStore(
            path, location, compression=compression, resources=resources, read_only=read_only is not None
        )
        self._store.refusal = read_only
        self.log = BucketLog(self._store, lambda: self._state.log_span)
        self.writers = WriterStates(self._store, writer_limits, clock)
        self._clock = clock
        self._mark_micros = int(mark_seconds * 1_000_000)
        self._builds: dict[int, IndexBuild] = {}
        try:
            self._watermark = self._open_watermark(path)
            try:
                self._state = self._recover()
                # RocksDB has written what its logs had into new files, and synced them, unless it only reads.
                durable = self._state.log_offset if self._logs_are_durable else self._watermark.read()
                self.durable_when_opened = durable or 0
            except BaseException:
                self._watermark.close()
                raise
        except BaseException:
            self._store.close()
            raise

    def _open_watermark(self, path: Path) -> DurableWatermark:
        try:
            return DurableWatermark(path.with_suffix(".durable"))
        except DataLoss as error:
            raise DataLoss(f"{self.location} is damaged: its durable watermark cannot be read") from error

    def _recover(self) -> BucketState:
        state = load_state(self._store)
        durable = self._watermark.read()
        if durable is None:
            raise DataLoss(f"{self.location} is damaged: its durable watermark cannot be read")
        if state.count < count_of(durable):
            raise DataLoss(
                f"{self.location} has lost acknowledged changes: {count_of(durable):,} were durable, "
                f"and {state.count:,} are left"
            )
        # What this process has written before, it knows; otherwise a crash may have undone what others have read.
        return state if state.clean or state == self._after else state.after_unclean_stop()

    @property
    def state(self) -> BucketState:
        """The state as of the last change applied, durable or not."""
        return self._state

    @property
    def is_read_only(self) -> bool:
        """Whether it can only be read."""
        return self._store.is_read_only

    @property
    def is_writable(self) -> bool:
        """Whether it takes writes. One that does not is to be opened again."""
        return self._store.refusal is None

    @property
    def refusal(self) -> ScanKvError | None:
        """Why it takes no writes; None: it takes them."""
        return self._store.refusal

    @property
    def sequence(self) -> int:
        """How many writes it has had, as RocksDB counts them: after it was opened again, fewer if some are lost."""
        return self._store.sequence

    @property
    def longest_row(self) -> int:
        """Bytes of the longest row there ever was."""
        return self._state.longest_row

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored rows of some encoded keys, None where there is none."""
        return self._store.get_rows(keys)

    def commit_time(self) -> int:
        """The time, in microseconds since 1970, of a commit that is made now: never before that of the last one."""
        return max(self._state.commit_micros, self._clock.commit_micros())

    def apply(self, change: BucketChange, step: WriteStep | None = None, commit_micros: int | None = None) -> None:
        """Applies a change atomically: rows, changelog, entries and state. One without changes takes no offset.

        It is committed at `commit_micros`, which `commit_time` of each bucket of a transaction gave before; None: now.

        It is visible to reads at once and durable after the next `sync`. With `step`, which `find_answer` has not
        refused, it is noted as a part of that request: also a change that changes nothing. Rows put without being
        changes, because only what is hidden beside them is another, are as durable after the next `sync`.
        """
        if change.count == 0 and not len(change.put_keys):
            if step is not None:
                self._write_state(self._store.batch(), self._state, step)
            return
        rows, added = self._state.rows, change.rows_added
        micros = self.commit_time() if commit_micros is None else max(self._state.commit_micros, commit_micros)
        state = replace(
            self._state,
            count=self._state.count + change.count,
            rows=None if rows is None or added is None else rows + added,
            longest_row=max(self._state.longest_row, change.longest_row, longest_of(change.delete_keys)),
            commit_micros=micros,
            clean=False,
            indexes=_with(self._state.indexes, (entries.index for entries in change.entries)),
        )
        batch = self._store.batch()
        batch.put_rows(change.put_keys.to_pylist(), change.put_values.to_pylist())
        batch.delete_rows(change.delete_keys.to_pylist())
        for entries in change.entries:
            batch.put_entries(entries.put_keys.to_pylist(), entries.put_values.to_pylist())
            batch.delete_entries(entries.delete_keys.to_pylist())
        if change.changes is None:
            # The changelog has none of them: it begins, and ends, behind them.
            state = replace(state, log_first=state.count, log_rewritten=state.count)
        else:
            state = self._logged(batch, state, change.changes, change.schema_id)
        self._write_state(batch, state, step)

    def find_answer(self, identity: WriteIdentity) -> WriteAnswer | None:
        """How far a request has been applied; None when not at all, and it may be applied now.

        Raises:
            WriterFenced: Its writer was opened anew since.
            WriterExpired: It is too old, or its writer has not been heard of for too long, to tell.
            TooManyWriters: The writer is new, and there are as many as there may be.
        """
        return self.writers.find_answer(identity)

    def open_writer(self, writer: str, epoch: int, next_sequence: int) -> None:
        """Begins a new epoch of a writer, which fences those before; durable after the next sync of the store."""
        batch = self._store.batch()
        state = self.writers.open(batch, writer, epoch, next_sequence)
        self._store.write(batch)
        self.writers.cache(writer, state)

    def _logged(self, batch: StoreBatch, state: BucketState, changes: Changes, schema_id: int) -> BucketState:
        """Writes changes to the log as part of a batch; the state with what they take."""
        size = self.log.append(batch, changes, schema_id=schema_id, commit_micros=state.commit_micros)
        before, now = self._state, self._clock.service_micros()
        state = replace(state, log_bytes=before.log_bytes + size, log_micros=now)
        # Of the changes before these: nothing tells whether others will come soon.
        if before.log_bytes > before.log_marked and abs(now - before.log_marked_micros) >= self._mark_micros:
            state = _marked(batch, state, LogMark(before.count, before.log_bytes, before.log_micros))
        if state.log_bytes - state.log_marked >= MARK_BYTES:
            state = _marked(batch, state, LogMark(state.count, state.log_bytes, now))
        return state

    def trim_log(self, offset: int) -> None:
        """Removes changes before an offset, but none that is held."""
        batch = self._store.batch()
        first = self.log.trim(batch, offset)
        if first > self._state.log_first:
            rewritten = max(self._state.log_rewritten, first)
            self._write_state(batch, replace(self._state, log_first=first, log_rewritten=rewritten))

    def put_segment(self, segment: Segment) -> None:
        """Replaces the records of a segment by it, and notes how far the changelog is rewritten: both or nothing."""
        batch = self._store.batch()
        self.log.put_segment(batch, segment)
        self._write_state(batch, replace(self._state, log_rewritten=segment.behind))

    @property
    def builds(self) -> Mapping[int, IndexBuild]:
        """How far each index is built that the bucket knows and that is not ready, by its id."""
        return self._builds

    def set_indexes(self, indexes: Collection[int]) -> None:
        """Takes notice of which indexes the table has: to be called after opening, and whenever they change.

        The entries of others go, and what was noted of their building. A bucket without rows has all of them ready.
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
        """Puts entries of an index that is being built, and notes that it has come so far: both or nothing."""
        batch = self._store.batch()
        batch.put_entries(keys.to_pylist(), values.to_pylist())
        batch.put_meta(build_key(index), build.to_bytes())
        self._store.write(batch)
        self._builds[index] = build

    def finish_index_build(self, index: int) -> None:
        """Makes an index ready, which has an entry for every row."""
        batch = self._store.batch()
        batch.delete_meta(build_key(index))
        self._write_state(batch, replace(self._state, ready_indexes=_with(self._state.ready_indexes, [index])))
        del self._builds[index]

    def _write_state(self, batch: StoreBatch, state: BucketState, step: WriteStep | None = None) -> None:
        batch.put_meta(_STATE_KEY, state.to_bytes())
        writer = None if step is None else self.writers.record(batch, step, state.log_offset)
        self._store.write(batch)
        self._state = state
        if step is not None and writer is not None:
            self.writers.cache(step.identity.writer, writer)

    def snapshot(self, durable_offset: int) -> BucketSnapshot:
        """The bucket as of now, of which so much is durable; let it go before the bucket is closed."""
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
        """A cursor over the rows of a key range as of now, against key order with `reverse`."""
        return BucketCursor(self._store, codec, decoder, keys, self._state.longest_row, key_range, reverse=reverse)

    def ranges_cursor(
        self, decoder: Decoder, ranges: KeyRanges, *, reverse: bool = False, strict: bool = False
    ) -> RangesCursor:
        """A cursor over the rows of some key ranges as of now; against key order with `reverse`.

        With `strict`, a single key without a row is DataLoss.
        """
        longest = self._state.longest_row
        return RangesCursor(self._store, decoder, ranges, longest, reverse=reverse, strict=strict)

    def entry_cursor(self, ranges: KeyRanges, *, reverse: bool = False) -> EntryCursor:
        """A cursor over the index entries in some ranges as of now, against their order with `reverse`."""
        return EntryCursor(self._store, self._state.longest_row, ranges, reverse=reverse)

    def sync(self, offset: int) -> None:
        """Makes every change below `offset`, which must be applied already, durable, and marks it so."""
        if self._store.is_read_only:
            if not self._logs_are_durable:
                self._store.check_writable()
            return
        self._store.sync()
        self._watermark.write(offset)
        self._durable_offset = offset

    def changes(self, definition: TableDefinition, limit: int) -> Iterator[LogRecord]:
        """The first `limit` records of the changelog, oldest first."""
        for key, value in islice(self._store.read_log_records(), limit):
            yield decode_record(key, value, definition)

    def family_bytes(self) -> FamilyBytes:
        """Bytes of its table files, by what they hold. Takes microseconds."""
        return self._store.family_bytes()

    def changelog_usage(self) -> ChangelogUsage:
        """How much of its changelog is kept, and for whom. Blocks for some milliseconds where that is gigabytes."""
        span, total, held = self.log.span, self._state.log_bytes, self.log.holds.oldest()
        kept = self.log.bytes_from(span.offset_of(span.first), total) if span.first < span.end else 0
        if held is None or count_of(held[1]) >= span.end:
            return ChangelogUsage(kept, "", 0)
        return ChangelogUsage(kept, held[0], min(kept, self.log.bytes_from(held[1], total)))

    def flush(self) -> None:
        """Moves unflushed writes into table files."""
        self.flushes += 1
        self._store.flush()

    def compact_small_files(self) -> int:
        """Makes table files one where many small ones lie side by side; how many places that were. Blocks."""
        return self._store.compact_small_files()

    @property
    def readers(self) -> int:
        """How many cursors read it."""
        return self._store.readers

    def checkpoint(self, path: Path) -> None:
        """Makes a copy of the bucket as of now in the directory `path`, which must not exist, for `Checkpoint` to read.

        Shares the table files with the bucket, and keeps those that the bucket deletes later.
        """
        self._store.checkpoint(path)

    def close(self) -> None:
        """Closes the bucket in order: the next start continues the epoch. All cursors must be closed before."""
        try:
            if not self._state.clean and self.is_writable:
                self._state = replace(self._state, clean=True)
                self._write_state(self._store.batch(), self._state)
                # Closing the store syncs it, too. Where no change came since the last sync, there is nothing to mark.
                if self._durable_offset != self._state.log_offset:
                    self.sync(self._state.log_offset)
        finally:
            self._watermark.close()
            self._store.close()

    def abandon(self) -> None:
        """Closes a bucket that no longer takes writes and has no readers. Idempotent."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        self._watermark.close()
        with suppress(ScanKvError):
            # It cannot write what it has in memory, which its write-ahead log has as well.
            self._store.close()

    def hand_holds_to(self, other: Bucket) -> None:
        """Has another one, of the same files, keep the changes that this one keeps.

        What still reads this one, which can only be read, goes on: RocksDB closes it behind the last of them.
        """
        other.log.holds = self.log.holds
        if self.is_read_only:
            self._watermark.close()


def _try_to_sync_logs(path: Path) -> bool:
    """Makes a bucket's logs durable; whether that could be done."""
    try:
        make_logs_durable(path)
    except (ScanKvError, OSError) as error:
        _log.warning("the write-ahead logs in %s cannot be synced: %s", path, error)
        return False
    return True


def longest_of(values: pa.Array) -> int:
    """Bytes of the longest of some values, 0 where there is none."""
    return int(np.diff(np.frombuffer(values.buffers()[1], np.int32)).max()) if len(values) else 0


def _marked(batch: StoreBatch, state: BucketState, mark: LogMark) -> BucketState:
    put_mark(batch, mark)
    return replace(state, log_marked=mark.size, log_marked_micros=mark.micros)


def _with(indexes: tuple[int, ...], added: Iterable[int]) -> tuple[int, ...]:
    """The indexes and some more, each once, ascending."""
    return tuple(sorted({*indexes, *added}))


def load_state(store: RocksStore) -> BucketState:
    """The state that a bucket's directory holds. Raises DataLoss when it cannot be read."""
    try:
        stored = store.meta.get(_STATE_KEY)
        return BucketState() if stored is None else BucketState.from_bytes(stored)
    except (ValueError, TypeError, KeyError) as error:
        raise DataLoss(f"{store.location} is damaged: its state cannot be read") from error
    except Exception as error:
        raise store.failure(error) from error
