"""The changelog of one bucket, stored in RocksDB."""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from scankv.model.errors import DataLoss, NewerFormat
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import (
    MarkerReached,
    MarkerRecord,
    RangeMarker,
    decode_marker,
    encode_marker,
)
from streaming_server.storage.changelog.records import (
    MAX_CHANGES_PER_RECORD,
    RowKind,
    decode_header,
    decode_record,
    encode_records,
    encode_segment,
    record_key,
)
from streaming_server.storage.changelog.retention_holds import RetentionHolds
from streaming_server.storage.files.formats import locate
from streaming_server.storage.rocks.store import scan_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.changelog.records import Changes, LogRecord, RecordHeader
    from streaming_server.storage.rocks.store import RocksStore, StoreBatch


MARK_BYTES: Final = 1 << 20
"""A mark is written after this many bytes of records."""

_MARK: Final = b"log-mark/"
# bytes, microseconds of service time
_MARKED: Final = struct.Struct(">QQ")
_LARGE_ENOUGH: Final = 1024
"""A record of this many changes reads fast enough to stay as it is."""
MAX_RECORD_BYTES: Final = 1 << 20
"""Records are not joined to a segment of more bytes, which a reader would have to read at once."""


@dataclass(frozen=True, slots=True)
class LogMark:
    """A measurement of the changelog, by which retention finds offsets of a size or an age.

    The first `count` changes took `size` bytes, and all of them were written at or before `micros` of service time.
    """

    count: int
    size: int
    micros: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Adjacent records, and the one record that replaces them.

    Attributes:
        end: The number of changes up to and including the last one of these records.
        record: The key and value of the replacement. None: the records stay as they are.
        last_key: The key of the last of these records.
    """

    end: int
    record: tuple[bytes, bytes] | None
    last_key: bytes = b""


@dataclass(frozen=True, slots=True)
class ChangelogUsage:
    """How much of a changelog is retained, and by which hold.

    Attributes:
        bytes: Bytes of its changes, as they were written.
        holder: The owner of the retention hold that reaches furthest back. Empty: no hold exists.
        held_bytes: Bytes of the changes from that hold on.
    """

    bytes: int = 0
    holder: str = ""
    held_bytes: int = 0


class BucketLog:
    """A `ChangeLog` in the column family `log` of a bucket's store.

    Each read creates an iterator and drops it, so a reader that waits pins no files. Reads may run concurrently with
    writes: changes before the `end` given to `read` never change.

    Args:
        store: The store of the bucket.
        span: Returns the changes that exist now, as the state of the bucket records them.

    Attributes:
        holds: The retention holds on the changelog.
    """

    def __init__(self, store: RocksStore, span: Callable[[], LogSpan]) -> None:
        self._store = store
        self._span = span
        self.holds = RetentionHolds()

    @property
    def span(self) -> LogSpan:
        """See `ChangeLog`."""
        return self._span()

    def append(self, batch: StoreBatch, changes: Changes | RangeMarker, *, schema_id: int, commit_micros: int) -> int:
        """See `ChangeLog`."""
        span = self.span
        epoch, count = len(span.epoch_starts) - 1, span.end
        records: Iterable[tuple[bytes, bytes]]
        if isinstance(changes, RangeMarker):
            marker = encode_marker(changes, epoch=epoch, count=count, schema_id=schema_id, commit_micros=commit_micros)
            records = [marker]
        else:
            records = encode_records(
                changes, epoch=epoch, count=count, schema_id=schema_id, commit_micros=commit_micros
            )
        size = 0
        for key, record in records:
            batch.put_log(key, record)
            size += len(record)
        return size

    def read(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """See `ChangeLog`."""
        records: list[LogRecord] = []
        count, size = count_of(start), 0
        for key, value in self._records_between(start, end):
            try:
                header = decode_header(key, value)
                # A record that would be cut off is left for the next read, so that no record is decoded twice.
                if records and (header.is_marker or count - count_of(start) + header.count > max_changes):
                    return records
                if header.is_marker:
                    if count_of(header.offset) < count:
                        continue  # As below.
                    if count_of(header.offset) > count:
                        break
                    raise MarkerReached.at(decode_marker(key, value), self._store.location)
                record = decode_record(key, value, definition).between(start, end)
            except NewerFormat as error:
                raise locate(error, self._store.location) from error
            except DataLoss as error:
                raise self._damage(error.message) from error
            if not records and not len(record.changes):
                continue  # The start is the end of an epoch, and this record is the last one of that epoch.
            if count_of(record.offset) != count or not len(record.changes):
                break
            records.append(record)
            count += len(record.changes)
            size += len(value)
            if count - count_of(start) >= max_changes or size >= max_bytes:
                return _truncate(records, max_changes)
        if count < count_of(end):
            raise self._damage(f"its changelog ends, or has a gap, at change {count:,}")
        return records

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """See `ChangeLog`."""
        markers: list[MarkerRecord] = []
        count = count_of(start)
        for key, value in self._records_between(start, end):
            try:
                header = decode_header(key, value)
                if not markers and count_of(header.offset) < count:
                    continue  # The start is the end of an epoch, and this record is the last one of that epoch.
                if not header.is_marker or count_of(header.offset) != count or len(markers) == most:
                    break
                markers.append(decode_marker(key, value))
            except NewerFormat as error:
                raise locate(error, self._store.location) from error
            except DataLoss as error:
                raise self._damage(error.message) from error
            count += header.count
        return markers

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """See `ChangeLog`. Takes one seek for each halving of the log."""
        span = self.span
        counts = range(span.first, span.end)
        count = span.first + bisect_left(counts, micros, key=self._commit_micros_of)
        if count == span.first:
            return span.offset_of(count)
        # The record before begins earlier, but its last changes may have been committed later.
        key, value = self._record_with(count - 1)
        if decode_header(key, value).is_marker:
            return span.offset_of(count)
        before = decode_record(key, value, definition)
        found = count_of(before.offset) + int(np.searchsorted(before.commit_micros, micros))
        return span.offset_of(max(found, span.first))

    def hold(self, owner: str, offset: int, seconds: float | None = None) -> None:
        """See `ChangeLog`."""
        self.holds.hold(owner, offset, seconds)

    def release(self, owner: str) -> None:
        """See `ChangeLog`."""
        self.holds.release(owner)

    def trim(self, batch: StoreBatch, offset: int) -> int:
        """See `ChangeLog`."""
        held = self.holds.oldest()
        span = self.span
        count = min(count_of(offset), span.end, *([count_of(held[1])] if held else []))
        if count <= span.first:
            return span.first
        kept = self._record_with(count)[0] if count < span.end else record_key(span.offset_of(count))
        batch.delete_log(b"", kept)
        batch.delete_meta_range(_MARK, _mark_key(count))
        return count

    def offset_of_bytes(self, size: int, *, round_down: bool = False) -> int:
        """Returns the offset at which the bytes ever written to the log reach a size; rounded up or down to a mark."""
        span, count = self.span, self.span.first
        for mark in self._marks():
            if mark.size >= size:
                count = count if round_down else mark.count
                return span.offset_of(min(max(count, span.first), span.end))
            count = mark.count
        return span.offset_of(min(max(count, span.first), span.end) if round_down else span.end)

    def bytes_before(self, offset: int, total: int) -> int:
        """Returns the bytes ever written to the log before an offset; rounded up to the next mark, or to the total.

        Args:
            offset: The offset.
            total: Bytes ever written to the log.
        """
        return next((mark.size for mark in self._marks() if mark.count >= count_of(offset)), total)

    def bytes_from(self, offset: int, total: int) -> int:
        """Returns about how many bytes the changes from an offset on took, of `total` bytes ever written.

        Assumes that all changes between two marks have the same length. Trimming removes the marks of trimmed changes.
        """
        span, count = self.span, count_of(offset)
        known = [(mark.count, mark.size) for mark in self._marks()]
        after = next((each for each in known if each[0] >= count), (span.end, total))
        least = (0, 0) if span.first == 0 else (span.first, max(0, after[1] - MARK_BYTES))
        before = max((each for each in known if each[0] <= count), default=least)
        share = (count - before[0]) / max(1, after[0] - before[0])
        return total - before[1] - int(share * (after[1] - before[1]))

    def offset_of_age(self, before: int, now: int) -> int:
        """Returns the offset after the changes that were all written before a time; rounded down to a mark.

        Rule: retention never looks at commit times, because they follow the wall clock.

        Args:
            before: The time, in microseconds of service time.
            now: The current service time.
        """
        span, count = self.span, 0
        for mark in self._marks():
            if mark.micros <= before:
                count = mark.count
            elif mark.micros <= now:
                break
            # A mark later than now was written before the stored service time was lost.
        return span.offset_of(min(max(count, span.first), span.end))

    def usage(self, total: int) -> ChangelogUsage:
        """Returns how much of the changelog is retained, and by which hold. Takes milliseconds for gigabytes.

        Args:
            total: Bytes ever written to the log.
        """
        span, held = self.span, self.holds.oldest()
        kept = self.bytes_from(span.offset_of(span.first), total) if span.first < span.end else 0
        if held is None or count_of(held[1]) >= span.end:
            return ChangelogUsage(kept, "", 0)
        return ChangelogUsage(kept, held[0], min(kept, self.bytes_from(held[1], total)))

    def next_segment(self, start: int, end: int, definition: TableDefinition) -> Segment | None:
        """Plans the segment that replaces the next records between two offsets. Changes nothing.

        Takes up to about 50 ms, for 4,096 records.

        Args:
            start: The offset at which the records begin.
            end: The offset at which they end, excluded.
            definition: The current definition of the table.

        Returns:
            The segment. None: too few records exist so far.

        Raises:
            DataLoss: A record is damaged.
        """
        run: list[tuple[bytes, bytes]] = []
        changes = size = 0
        first: RecordHeader | None = None
        for key, value in self._records_between(start, end):
            header = decode_header(key, value)
            same = first is None or (header.epoch, header.schema_id, header.origin) == (
                first.epoch,
                first.schema_id,
                first.origin,
            )
            if run and (not same or header.is_marker or changes + header.count > MAX_CHANGES_PER_RECORD):
                break
            if run and size + len(value) > MAX_RECORD_BYTES:
                break
            first = first or header
            run.append((key, value))
            changes += header.count
            size += len(value)
            if header.is_marker or header.count >= _LARGE_ENOUGH:
                break
        else:
            # These changes are few, and later changes may fit into the same segment.
            return None
        assert first is not None
        after = count_of(first.offset) + changes
        if len(run) == 1:
            return Segment(after, None)
        records = [decode_record(key, value, definition) for key, value in run]
        return Segment(after, encode_segment(records), run[-1][0])

    def put_segment(self, batch: StoreBatch, segment: Segment) -> None:
        """Adds the replacement of the records of a segment to a batch of writes."""
        if segment.record is not None:
            key, value = segment.record
            batch.delete_log(key, segment.last_key + b"\0")
            batch.put_log(key, value)

    def _marks(self) -> Iterator[LogMark]:
        options = scan_options(_mark_key(2**63))
        iterator = None
        try:
            iterator = self._store.meta.iter(options)
            iterator.seek(_MARK)
            while iterator.valid():
                key, value = cast("bytes", iterator.key()), cast("bytes", iterator.value())
                yield LogMark(int.from_bytes(key[len(_MARK) :], "big"), *_MARKED.unpack(value))
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._store.failure(error) from error
        finally:
            del iterator  # before its options, which it only borrows

    def _records_between(self, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields the keys and values of the records with changes in an offset range. Ends early at damage."""
        if count_of(start) >= count_of(end):
            return
        options = scan_options(record_key(end))
        iterator = None
        try:
            iterator = self._store.log.iter(options)
            iterator.seek_for_prev(record_key(start))
            while iterator.valid():
                yield cast("bytes", iterator.key()), cast("bytes", iterator.value())
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._store.failure(error) from error
        finally:
            del iterator  # before its options, which it only borrows

    def _record_with(self, count: int) -> tuple[bytes, bytes]:
        """Returns the key and value of the record that has change number `count`. Raises DataLoss if it is missing."""
        span = self.span
        for key, value in self._records_between(span.offset_of(count), span.offset_of(span.end)):
            header = decode_header(key, value)
            if count_of(header.offset) <= count < count_of(header.offset) + header.count:
                return key, value
            break
        raise self._damage(f"the changelog has no change {count:,}")

    def _commit_micros_of(self, count: int) -> int:
        return decode_header(*self._record_with(count)).commit_micros

    def _damage(self, what: str) -> DataLoss:
        return DataLoss(f"{self._store.location} is damaged: {what}")


def put_mark(batch: StoreBatch, mark: LogMark) -> None:
    """Adds a mark of the log to a batch of writes."""
    batch.put_meta(_mark_key(mark.count), _MARKED.pack(mark.size, mark.micros))


def _mark_key(count: int) -> bytes:
    return _MARK + count.to_bytes(8, "big")


def _truncate(records: list[LogRecord], max_changes: int) -> list[LogRecord]:
    """Returns the first changes of some records. The row before an update and the row after it stay together."""
    over = sum(len(record.changes) for record in records) - max_changes
    if over <= 0:
        return records
    last = records.pop()
    kept = len(last.changes) - over
    if last.changes.kinds[kept - 1] == RowKind.UPDATE_BEFORE and max_changes > 1:
        kept -= 1
    return [*records, last.between(last.offset, last.offset + kept)] if kept else records
