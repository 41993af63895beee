"""Reads the changelog of one bucket from RocksDB."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, cast

import numpy as np

from scankv.model.errors import DataLoss, NewerFormat
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import MarkerReached, MarkerRecord, decode_marker
from streaming_server.storage.changelog.record_reader import RecordReader
from streaming_server.storage.changelog.records import RowKind, decode_header, decode_record, record_key
from streaming_server.storage.files.formats import locate
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.changelog.records import LogRecord
    from streaming_server.storage.rocks.store import RocksStore


class StoredLog:
    """A `ReadableLog` in the column family `log` of a bucket's store.

    Each read creates an iterator and drops it, so a reader that waits pins no files. Reads may run concurrently with
    writes: changes before the `end` given to `read` never change.

    Args:
        store: The store of the bucket.
        span: Returns the changes that exist now, as the state of the bucket records them.
    """

    def __init__(self, store: RocksStore, span: Callable[[], LogSpan]) -> None:
        self._store = store
        self._span = span

    @property
    def span(self) -> LogSpan:
        """See `ReadableLog`."""
        return self._span()

    def read(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """See `ReadableLog`."""
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
        """See `ReadableLog`."""
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

    def reader(self, keys: KeyRange, definition: TableDefinition, *, reverse: bool = False) -> RecordReader:
        """See `ReadableLog`. It pins files on disk until it is closed."""
        return RecordReader(self._store, self.span, keys, definition, reverse=reverse)

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """See `ReadableLog`. Takes one seek for each halving of the log."""
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
