"""Reads the changelog of a bucket as of one instant, forward or backward, and proves that no change is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import decode_record, record_key
from streaming_server.storage.files.formats import locate
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from rocksdict import RdictIter

    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.changelog.records import LogRecord
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_readers import StoreReader


class RecordReader:
    """A `LogReader` of the records in which the changes have offsets within a range.

    It shows the changelog as of its creation, whatever is appended, trimmed or rewritten later. Offsets have no gaps,
    so each record must begin where its neighbor ends: the end is proven when the last change has been read.

    Create it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Args:
        store: The store of the bucket.
        span: The changes that the changelog has now.
        keys: Offsets, as `row_key` encodes them; or any other bytes in their order.
        definition: The table, with the schemas of all records.
        reverse: Whether to read the last record first.
    """

    def __init__(
        self, store: RocksStore, span: LogSpan, keys: KeyRange, definition: TableDefinition, *, reverse: bool
    ) -> None:
        self._store = store
        self._span = span
        self._definition = definition
        self._reverse = reverse
        self._first = span.first if keys.start is None else span.count_before(keys.start)
        self._end = max(self._first, span.end if keys.end is None else span.count_before(keys.end))
        self._iterator: RdictIter | None = None
        self._use: StoreReader | None = None
        self._is_placed = False
        if self._first == self._end:
            return
        # The iterator only borrows its options, so they are kept, and freed after it.
        self._options = scan_options(None if reverse else record_key(span.offset_of(self._end)))
        self._use = store.readers.add(self._create_iterator)

    def _create_iterator(self) -> None:
        self._iterator = self._store.log.iter(self._options)

    def read(self) -> LogRecord | None:
        """Returns the next record, without changes outside of the range; None at the proven end. Raises DataLoss."""
        if self._first == self._end or self._use is None:
            return None
        self._use.begin()
        assert self._iterator is not None
        stored: tuple[bytes, bytes] | None = None
        try:
            self._move()
            if self._iterator.valid():
                stored = cast("bytes", self._iterator.key()), cast("bytes", self._iterator.value())
            else:
                self._iterator.status()
        except Exception as error:
            raise self._store.failure(error) from error
        try:
            if stored is None:
                raise self._gap()
            return self._cut(decode_record(*stored, self._definition))
        except DataLoss as error:
            raise locate(error, self._store.location) from error

    def _move(self) -> None:
        assert self._iterator is not None
        if not self._is_placed:
            first = self._end - 1 if self._reverse else self._first
            self._iterator.seek_for_prev(record_key(self._span.offset_of(first)))
            self._is_placed = True
        elif self._reverse:
            self._iterator.prev()
        else:
            self._iterator.next()

    def _cut(self, record: LogRecord) -> LogRecord:
        """Returns the changes of a record that are still to be read. Raises DataLoss if changes before it are missing.

        Rule: the record must have the next change, or in reverse the last one.
        """
        count = count_of(record.offset)
        first, end = max(count, self._first), min(count + len(record.changes), self._end)
        if first >= end or (end != self._end if self._reverse else first != self._first):
            raise self._gap()
        if self._reverse:
            self._end = first
        else:
            self._first = end
        return record.between(record.offset - count + first, record.offset - count + end)

    def _gap(self) -> DataLoss:
        at = self._end - 1 if self._reverse else self._first
        return DataLoss(f"the changelog ends, or has a gap, at change {at:,}")

    def close(self) -> None:
        """Frees the iterator, and with it the files that it pins. Closing twice is allowed."""
        if self._use is not None:
            self._use.close()
        self._iterator = None
        self._first = self._end
