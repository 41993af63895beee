"""The changelog of one bucket: what can be asked of it, and how RocksDB answers."""

from __future__ import annotations

import struct
import threading
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

import numpy as np

from scankv.model.errors import DataLoss, PositionExpired, PositionOutOfRange
from streaming_server.storage.changelog.offsets import count_of, epoch_of, make_offset
from streaming_server.storage.changelog.records import (
    MAX_CHANGES_PER_RECORD,
    RowKind,
    decode_header,
    decode_record,
    encode_records,
    encode_segment,
    record_key,
)
from streaming_server.storage.rocks.store import scan_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.records import Changes, LogRecord, RecordHeader
    from streaming_server.storage.rocks.store import RocksStore, StoreBatch


MARK_BYTES: Final = 1 << 20
"""After so many bytes of records a mark is made: how many changes and bytes there had been, and when."""

_MARK: Final = b"log-mark/"
# bytes, microseconds of service time
_MARKED: Final = struct.Struct(">QQ")
_LARGE_ENOUGH: Final = 1024
"""Changes of a record that reads fast enough to stay as it is."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Which changes a log has. Immutable.

    Attributes:
        first: The count of changes before the oldest one that is kept.
        end: The count of changes there have been.
        epoch_starts: The count at which each epoch began, from epoch 0 on.
    """

    first: int
    end: int
    epoch_starts: tuple[int, ...]

    def offset_of(self, count: int) -> int:
        """The offset of change number `count`."""
        return make_offset(bisect_right(self.epoch_starts, count) - 1, count)

    def resolve(self, offset: int, *, location: str, clamp: bool = False) -> int:
        """The offset that stands for a position: the same, but for one at the end of an epoch, which begins the next.

        Args:
            offset: Where somebody wants to read on.
            location: What errors call the bucket.
            clamp: Whether a position that is not there stands for the nearest that is.

        Raises:
            PositionExpired: The changes from there on are no longer all there.
            PositionOutOfRange: It is beyond the end, or in what a crash undid.
        """
        epoch, count = epoch_of(offset), count_of(offset)
        if not 0 <= epoch < len(self.epoch_starts) or not self.epoch_starts[epoch] <= count <= self._end_of(epoch):
            if not clamp:
                raise self._refused(PositionOutOfRange, "is none that its changelog ever had", offset, location)
            known = 0 <= epoch < len(self.epoch_starts)
            count = min(max(count, self.epoch_starts[epoch]), self._end_of(epoch)) if known else self.end
        if count < self.first:
            if not clamp:
                raise self._refused(PositionExpired, "is no longer in its changelog", offset, location)
            count = self.first
        return self.offset_of(count)

    def _end_of(self, epoch: int) -> int:
        return self.epoch_starts[epoch + 1] if epoch + 1 < len(self.epoch_starts) else self.end

    def _refused(
        self, error: type[PositionExpired | PositionOutOfRange], what: str, offset: int, location: str
    ) -> PositionExpired | PositionOutOfRange:
        earliest, latest = self.offset_of(self.first), self.offset_of(self.end)
        return error(
            f"{location}: offset {offset} {what}, which reaches from {earliest} to {latest}: start within it, or use "
            "clamp",
            wanted=offset,
            earliest=earliest,
            latest=latest,
        )


class ChangeLog(Protocol):
    """The changes of one bucket, in order and without gaps."""

    @property
    def span(self) -> LogSpan:
        """Which changes there are, now."""

    def append(self, batch: StoreBatch, changes: Changes, *, schema_id: int, commit_micros: int) -> int:
        """Writes the changes of a commit behind all others, as part of a batch of writes; the bytes that they take."""

    def read(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """The changes from offset `start` on, in order, before offset `end`.

        At least one where there is one; at most `max_changes`, and after `max_bytes` stored bytes no further record.

        Raises:
            DataLoss: Changes are missing or damaged.
        """

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """The offset of the first change that was committed at or after this time; the end where there is none."""

    def hold(self, owner: str, offset: int, seconds: float | None = None) -> None:
        """Keeps changes from an offset on, until `release` or for so many seconds, instead of the owner's last hold."""

    def release(self, owner: str) -> None:
        """Ends the hold of an owner, if there is one."""

    def trim(self, batch: StoreBatch, offset: int) -> int:
        """Removes changes before an offset, but none that is held, as part of a batch; the count that is then first.

        Whoever applies the batch makes it the first of `span`. Changes in one record with a later one may stay.
        """


@dataclass(frozen=True, slots=True)
class LogMark:
    """The first `count` changes took `size` bytes, and were all written at or before `micros` of service time."""

    count: int
    size: int
    micros: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Some records that follow each other, and the one that takes their place.

    Attributes:
        behind: The count of changes behind them.
        record: Its key and value; None where they stay.
        last_key: The key of the last of them.
    """

    behind: int
    record: tuple[bytes, bytes] | None
    last_key: bytes = b""


class RetentionHolds:
    """Who needs the changes of one bucket from where on. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins without holds; `clock` gives seconds."""
        self._clock = clock
        self._holds: dict[str, tuple[int, float | None]] = {}
        # Readers hold and release while the log is trimmed in a thread.
        self._lock = threading.Lock()

    def hold(self, owner: str, offset: int, seconds: float | None = None) -> None:
        """See `ChangeLog.hold`."""
        until = None if seconds is None else self._clock() + seconds
        with self._lock:
            self._holds[owner] = offset, until

    def release(self, owner: str) -> None:
        """See `ChangeLog.release`."""
        with self._lock:
            self._holds.pop(owner, None)

    @property
    def owners(self) -> set[str]:
        """Who holds something."""
        with self._lock:
            return {*self._holds}

    def oldest(self) -> tuple[str, int] | None:
        """The owner that holds the most, and from where on. None when nothing is held."""
        now = self._clock()
        with self._lock:
            self._holds = {o: (at, until) for o, (at, until) in self._holds.items() if until is None or until > now}
            if not self._holds:
                return None
            owner = min(self._holds, key=lambda owner: count_of(self._holds[owner][0]))
            return owner, self._holds[owner][0]


class BucketLog:
    """A `ChangeLog` in the column family `log` of a bucket's store.

    Reading makes an iterator for each step and keeps none, so a reader that waits pins no files. Reads may run beside
    writes: what is below the end given to `read` no longer changes.

    Args:
        store: Where the bucket lies.
        span: Which changes there are, as the bucket's state has it.
    """

    def __init__(self, store: RocksStore, span: Callable[[], LogSpan]) -> None:
        self._store = store
        self._span = span
        self.holds = RetentionHolds()

    @property
    def span(self) -> LogSpan:
        """See `ChangeLog`."""
        return self._span()

    def append(self, batch: StoreBatch, changes: Changes, *, schema_id: int, commit_micros: int) -> int:
        """See `ChangeLog`."""
        span = self.span
        records = encode_records(
            changes,
            epoch=len(span.epoch_starts) - 1,
            count=span.end,
            schema_id=schema_id,
            commit_micros=commit_micros,
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
        for key, value in self._stored(start, end):
            try:
                # What would be cut off is left for the next read, so that no record is decoded twice.
                if records and count - count_of(start) + decode_header(key, value).count > max_changes:
                    return records
                record = decode_record(key, value, definition).between(start, end)
            except DataLoss as error:
                raise self._here(error.message) from error
            if not records and not len(record.changes):
                continue  # The start is the end of an epoch: this is the last record of it.
            if count_of(record.offset) != count or not len(record.changes):
                break
            records.append(record)
            count += len(record.changes)
            size += len(value)
            if count - count_of(start) >= max_changes or size >= max_bytes:
                return _first(records, max_changes)
        if count < count_of(end):
            raise self._here(f"its changelog ends, or has a gap, at change {count}")
        return records

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """See `ChangeLog`. Takes a seek for each halving of the log."""
        span = self.span
        counts = range(span.first, span.end)
        count = span.first + bisect_left(
            counts, micros, key=lambda n: decode_header(*self._record_with(n)).commit_micros
        )
        if count == span.first:
            return span.offset_of(count)
        # The record before begins earlier, but its last changes may have been committed later.
        before = decode_record(*self._record_with(count - 1), definition)
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

    def offset_of_bytes(self, size: int) -> int:
        """The offset behind so many bytes, of all that were ever written to the log; rounded up to the next mark."""
        span = self.span
        for mark in self._marks():
            if mark.size >= size:
                count = mark.count
                return span.offset_of(min(max(count, span.first), span.end))
        return span.offset_of(span.end)

    def bytes_before(self, offset: int, total: int) -> int:
        """How many bytes were ever written to the log before an offset; rounded up to the next mark, or to the total.

        Args:
            offset: The offset.
            total: How many were ever written, in all.
        """
        return next((mark.size for mark in self._marks() if mark.count >= count_of(offset)), total)

    def bytes_from(self, offset: int, total: int) -> int:
        """About how many bytes the changes from an offset on took, of `total` that were ever written.

        Between two marks, of which trimming removes the earlier ones, all changes are taken to be of equal length.
        """
        span, count = self.span, count_of(offset)
        known = [(mark.count, mark.size) for mark in self._marks()]
        after = next((each for each in known if each[0] >= count), (span.end, total))
        least = (0, 0) if span.first == 0 else (span.first, max(0, after[1] - MARK_BYTES))
        before = max((each for each in known if each[0] <= count), default=least)
        share = (count - before[0]) / max(1, after[0] - before[0])
        return total - before[1] - int(share * (after[1] - before[1]))

    def offset_of_age(self, before: int, now: int) -> int:
        """The offset behind the changes that were all written before a time; rounded down to a mark.

        Rule: retention does not look at commit times, which say what the wall clock said.

        Args:
            before: The time, in microseconds of service time.
            now: The service time of now.
        """
        span, count = self.span, 0
        for mark in self._marks():
            if mark.micros <= before:
                count = mark.count
            elif mark.micros <= now:
                break
            # Marks of a time that is yet to come were made before service time was lost.
        return span.offset_of(min(max(count, span.first), span.end))

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

    def next_segment(self, start: int, end: int, definition: TableDefinition) -> Segment | None:
        """What to make of the records from offset `start` on and before `end`; None where more have to come first.

        Takes up to some 50 ms, for 4,096 records. Raises DataLoss.
        """
        run: list[tuple[bytes, bytes]] = []
        changes = 0
        first: RecordHeader | None = None
        for key, value in self._stored(start, end):
            head = decode_header(key, value)
            same = first is None or (head.epoch, head.schema_id, head.origin) == (
                first.epoch,
                first.schema_id,
                first.origin,
            )
            if run and (not same or changes + head.count > MAX_CHANGES_PER_RECORD):
                break
            first = first or head
            run.append((key, value))
            changes += head.count
            if head.count >= _LARGE_ENOUGH:
                break
        else:
            # They are few, and the next ones may go with them.
            return None
        assert first is not None
        behind = count_of(first.offset) + changes
        if len(run) == 1:
            return Segment(behind, None)
        records = [decode_record(key, value, definition) for key, value in run]
        return Segment(behind, encode_segment(records), run[-1][0])

    def put_segment(self, batch: StoreBatch, segment: Segment) -> None:
        """Replaces the records of a segment by it, as part of a batch of writes."""
        if segment.record is not None:
            key, value = segment.record
            batch.delete_log(key, segment.last_key + b"\0")
            batch.put_log(key, value)

    def _stored(self, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the records with changes from `start` on and before `end`. Ends early at damage."""
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
        """Key and value of the record that has a change. Raises DataLoss where there is none."""
        span = self.span
        for key, value in self._stored(span.offset_of(count), span.offset_of(span.end)):
            head = decode_header(key, value)
            if count_of(head.offset) <= count < count_of(head.offset) + head.count:
                return key, value
            break
        raise self._here(f"the changelog has no change {count}")

    def _here(self, what: str) -> DataLoss:
        return DataLoss(f"{self._store.location} is damaged: {what}")


def put_mark(batch: StoreBatch, mark: LogMark) -> None:
    """Puts a mark of the log as part of a batch of writes."""
    batch.put_meta(_mark_key(mark.count), _MARKED.pack(mark.size, mark.micros))


def _mark_key(count: int) -> bytes:
    return _MARK + count.to_bytes(8, "big")


def _first(records: list[LogRecord], max_changes: int) -> list[LogRecord]:
    """The first changes of some records; a row before and the row after it stay together."""
    over = sum(len(record.changes) for record in records) - max_changes
    if over <= 0:
        return records
    last = records.pop()
    kept = len(last.changes) - over
    if last.changes.kinds[kept - 1] == RowKind.UPDATE_BEFORE and max_changes > 1:
        kept -= 1
    return [*records, last.between(last.offset, last.offset + kept)] if kept else records
