"""The changelog of one bucket, stored in RocksDB."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, DiskFailed, DiskFull
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.changelog.change_log import ChangelogUsage, State
from streaming_server.storage.changelog.log_marks import MARK_BYTES, LogMark, LogMarks
from streaming_server.storage.changelog.offsets import count_of, epoch_of
from streaming_server.storage.changelog.range_markers import RangeMarker, encode_marker
from streaming_server.storage.changelog.records import MAX_CHANGES_PER_RECORD, encode_records, record_key
from streaming_server.storage.changelog.retention_holds import RetentionHolds
from streaming_server.storage.changelog.segments import Segment, plan_segment
from streaming_server.storage.changelog.stored_log import StoredLog
from streaming_server.storage.files.durable_watermark import DurableWatermark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.changelog.log_state import LogState
    from streaming_server.storage.changelog.records import Changes
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_batch import StoreBatch

_log: Final = logging.getLogger(__name__)


class BucketLog(StoredLog):
    """A `ChangeLog` in the store of its bucket. RocksDB's lock on the directory excludes other owners.

    Args:
        store: The store of the bucket. The log is durable when its write-ahead log is.
        state: Returns the current state of the bucket.
        watermark: The file of the durable watermark.
        clock: The clock of the server.
        age_seconds: How precisely the ages of changes are known, in seconds.
        has_synced_store: Whether everything in the store was durable when it was opened.

    Attributes:
        holds: The retention holds on the changelog.

    Raises:
        DataLoss: The durable watermark cannot be read.
    """

    def __init__(
        self,
        store: RocksStore,
        state: Callable[[], LogState],
        *,
        watermark: Path,
        clock: ServerClock,
        age_seconds: float,
        has_synced_store: bool = True,
    ) -> None:
        super().__init__(store, lambda: state().log_span)
        self.holds = RetentionHolds()
        self._state = state
        self._marks = LogMarks(store)
        self._clock = clock
        self._has_synced_store = has_synced_store
        self._durable_offset = 0
        self.set_age_precision(age_seconds)
        try:
            self._watermark = DurableWatermark(watermark)
        except DataLoss as error:
            raise self._damage("its durable watermark cannot be read") from error

    @property
    def durable_offset(self) -> int:
        """See `ChangeLog`."""
        return self._durable_offset

    def recover(self, state: State, known: LogState | None = None) -> State:
        """See `ChangeLog`."""
        durable = self._watermark.read()
        if durable is None:
            raise self._damage("its durable watermark cannot be read")
        if state.count < count_of(durable):
            raise DataLoss(
                f"{self._store.location} has lost acknowledged changes: {count_of(durable):,} were durable, "
                f"and {state.count:,} are left"
            )
        # A crash may have undone changes that others have read, unless this process knows the state it closed with.
        is_new_epoch = not state.clean and state != known
        recovered = state.in_epoch(max(state.epoch + 1, epoch_of(durable))) if is_new_epoch else state
        # Opening for writing copies the write-ahead logs into new files and syncs them. Reading alone does not.
        has_all = self._has_synced_store or recovered.count <= count_of(durable)
        self._durable_offset = recovered.log_offset if has_all else durable
        if is_new_epoch and has_all and not self._store.is_read_only:
            # Before a position in the epoch is handed out, so that the epoch is not used again if the bucket is lost.
            self._watermark.write(recovered.log_offset)
            self._watermark.sync()
        return recovered

    def append(
        self, batch: StoreBatch, state: State, changes: Changes | RangeMarker, *, schema_id: int, commit_micros: int
    ) -> State:
        """See `ChangeLog`."""
        epoch, count = len(state.epoch_starts) - 1, state.count
        is_marker = isinstance(changes, RangeMarker)
        records: Iterable[tuple[bytes, bytes]]
        if isinstance(changes, RangeMarker):
            marker = encode_marker(changes, epoch=epoch, count=count, schema_id=schema_id, commit_micros=commit_micros)
            records = [marker]
        else:
            records = encode_records(
                changes, epoch=epoch, count=count, schema_id=schema_id, commit_micros=commit_micros
            )
        end, size, now = count + len(changes), state.log_bytes, self._clock.service_micros()
        for key, record in records:
            batch.put_log(key, record)
            size += len(record)
        marked, marked_micros = state.log_marked, state.log_marked_micros
        # The mark covers only the changes before these, because more may follow soon.
        if state.log_bytes > marked and abs(now - marked_micros) >= self._age_micros:
            self._marks.put(batch, LogMark(count, state.log_bytes, state.log_micros))
            marked, marked_micros = state.log_bytes, state.log_micros
        if size - marked >= MARK_BYTES:
            self._marks.put(batch, LogMark(end, size, now))
            marked, marked_micros = size, now
        return replace(
            state,
            count=end,
            clean=False,
            log_bytes=size,
            log_micros=now,
            log_marked=marked,
            log_marked_micros=marked_micros,
            last_marker=end if is_marker else state.last_marker,
        )

    def sync(self, offset: int) -> None:
        """See `ChangeLog`. Advances the durable watermark."""
        if self._store.is_read_only:
            if not self._has_synced_store:
                self._store.check_writable()
            return
        self._store.sync()
        try:
            self._watermark.write(offset)
        except (DiskFull, DiskFailed, OSError) as error:
            # The changes are durable nevertheless. A watermark that is too low only detects less damage.
            _log.warning("the durable watermark of %s cannot be written: %s", self._store.location, error)
        self._durable_offset = offset

    def trim(self, batch: StoreBatch, state: State, offset: int) -> State:
        """See `ChangeLog`."""
        held, count = self.holds.oldest(), count_of(offset)
        return self._remove_before(batch, state, count if held is None else min(count, count_of(held[1])))

    def clear(self, batch: StoreBatch, state: State) -> State:
        """See `ChangeLog`."""
        for owner in self.holds.owners:
            self.holds.release(owner)
        return self._remove_before(batch, state, state.count)

    def _remove_before(self, batch: StoreBatch, state: State, count: int) -> State:
        span = state.log_span
        count = min(count, span.end)
        if count <= span.first:
            return state
        kept = self._record_with(count)[0] if count < span.end else record_key(span.offset_of(count))
        batch.delete_log(b"", kept)
        self._marks.trim(batch, count)
        return replace(state, log_first=count, log_rewritten=max(state.log_rewritten, count))

    @property
    def is_rewrite_due(self) -> bool:
        """See `ChangeLog`."""
        state = self._state()
        return state.count - state.log_rewritten > MAX_CHANGES_PER_RECORD

    def next_segment(self, end: int, definition: TableDefinition) -> Segment | None:
        """See `ChangeLog`."""
        state = self._state()
        start = state.log_span.offset_of(state.log_rewritten)
        return plan_segment(self._records_between(start, end), definition)

    def put_segment(self, batch: StoreBatch, state: State, segment: Segment) -> State:
        """See `ChangeLog`."""
        if segment.end <= state.log_first:
            return state
        if segment.record is not None:
            key, value = segment.record
            batch.delete_log(key, segment.last_key + b"\0")
            batch.put_log(key, value)
        return replace(state, log_rewritten=segment.end)

    def offset_of_bytes(self, size: int, *, round_down: bool = False) -> int:
        """See `ChangeLog`. Rounds to a mark."""
        span = self.span
        return span.offset_of(self._marks.count_of_bytes(size, span, round_down=round_down))

    def bytes_before(self, offset: int) -> int:
        """See `ChangeLog`. Rounds up to the next mark, or to the end."""
        return self._marks.bytes_before(count_of(offset), self._state().log_bytes)

    def space_before(self, count: int) -> tuple[KeyRange, int]:
        """See `ChangeLog`."""
        first, end = self.span.offset_of(self.span.first), self.span.offset_of(count)
        return KeyRange(None, record_key(end)), self.bytes_before(end) - self.bytes_before(first)

    def offset_of_age(self, before: int, now: int) -> int:
        """See `ChangeLog`. Rounds down to a mark, unless all changes are so old."""
        state = self._state()
        span = state.log_span
        return span.offset_of(span.end if state.log_micros <= before else self._marks.count_of_age(before, now, span))

    def set_age_precision(self, seconds: float) -> None:
        """See `ChangeLog`."""
        self._age_micros = int(seconds * 1_000_000)

    def usage(self) -> ChangelogUsage:
        """See `ChangeLog`."""
        state, held = self._state(), self.holds.oldest()
        span, total = state.log_span, state.log_bytes
        kept = self._marks.bytes_from(span.first, total, span) if span.first < span.end else 0
        if held is None or count_of(held[1]) >= span.end:
            return ChangelogUsage(kept, "", 0)
        return ChangelogUsage(kept, held[0], min(kept, self._marks.bytes_from(count_of(held[1]), total, span)))

    def close(self) -> None:
        """See `ChangeLog`. Leaves the store open."""
        self._watermark.close()
