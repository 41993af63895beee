"""One scan of one bucket that knows its keys: a seek for each, in key order, all as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streaming_server.storage.cursor import BucketCursor
from streaming_server.storage.range_reader import found_too_much
from streaming_server.storage.rocks import scan_options
from table_model.errors import DataLoss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocksdict import RdictIter

    from streaming_server.storage.rocks import RocksStore
    from streaming_server.storage.row_codec import Decoder

_STEP_POINTS: Final = 256
"""Keys looked up at once: a seek takes up to some 10 microseconds, and the event loop is held meanwhile."""


class PointsCursor:
    """The rows with some keys of one bucket, as of the moment the cursor was made. Reads like a `BucketCursor`.

    A lookup of many keys at once would be of the moment when it is made, and hold all that it finds. An iterator is of
    the moment of its making, and holds one row. Unlike the fast one of a range, it tells a key that is not there from
    one that cannot be read.

    Make it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Attributes:
        rows_scanned: Rows found so far.
        message, stored: None: rows do not lie there as Arrow.
    """

    message: None = None
    stored: None = None

    def __init__(
        self,
        store: RocksStore,
        decoder: Decoder,
        points: Sequence[bytes],
        *,
        reverse: bool = False,
        strict: bool = False,
    ) -> None:
        """Begins before the first key.

        Args:
            store: Where the bucket lies.
            decoder: Decodes the rows.
            points: The encoded keys, ascending, each once.
            reverse: Whether the last key is read first.
            strict: Whether there is a row with every key, as an index says: one that is missing is damage.
        """
        self.rows_scanned = 0
        self._store = store
        self._decoder = decoder
        self._strict = strict
        self._points = points[::-1] if reverse else points
        self._looked_up = 0
        # As in `BucketCursor`: freed after the iterator, never changed.
        # A key that is there is found without skipping anything: so none is where anything has to be skipped, and a
        # lookup among deleted keys takes no longer than any.
        self._options = scan_options(max_skips=1)
        try:
            self._iterator: RdictIter | None = store.rows.iter(self._options)
        except Exception as error:
            raise store.failure(error) from error
        store.readers += 1
        BucketCursor.open_cursors += 1

    @property
    def last_key(self) -> bytes | None:
        """The encoded key that was looked up last, found or not; None before the first."""
        return self._points[self._looked_up - 1] if self._looked_up else None

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The rows of the next keys, at most `max_rows`; None when all were looked up.

        A batch has no rows where none of the keys has one. Rows are within `max_bytes` stored bytes but for the last.
        Raises DataLoss for a key that cannot be read, for a row that cannot be decoded, and where it is strict for a
        key without a row.
        """
        values = self.next_rows(max_rows, max_bytes)
        if values is None:
            return None
        try:
            return self._decoder.decode(pa.array(values, pa.binary()))
        except DataLoss as error:
            raise DataLoss(f"{self._store.place}: {error.message}") from error

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """The next rows as they are stored, otherwise as `next_batch`. A damaged row goes unnoticed."""
        if self._looked_up == len(self._points):
            return None
        values: list[bytes] = []
        room = max_bytes
        for key in self._points[self._looked_up : self._looked_up + min(max_rows, _STEP_POINTS)]:
            value = self._get(key)
            self._looked_up += 1
            if value is not None:
                values.append(value)
                room -= len(value)
            elif self._strict:
                raise rows_missing(self._store.place)
            if room <= 0:
                break
        self.rows_scanned += len(values)
        return values

    def _get(self, key: bytes) -> bytes | None:
        # The iterator is kept in no variable: an error's traceback would hold it, and its files, after `close`.
        assert self._iterator is not None
        try:
            self._iterator.seek(key)
            if self._iterator.valid():
                return self._iterator.value() if self._iterator.key() == key else None
            found_too_much(self._iterator)
        except Exception as error:
            raise self._store.failure(error) from error
        return None

    def close(self) -> None:
        """Frees the iterator, and with it the files it pins. Closing twice is allowed."""
        self._store.readers -= self._iterator is not None
        BucketCursor.open_cursors -= self._iterator is not None
        self._iterator = None


def rows_missing(place: str) -> DataLoss:
    """The error for index entries without their rows in a bucket."""
    return DataLoss(f"an index and the rows of {place} disagree; run `scankv check`")
