"""One scan of one bucket: an iterator pair over RocksDB that gives Arrow batches and cannot end short unnoticed."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from streaming_server.storage.rocks import scan_options
from streaming_server.storage.sentinel import Sentinel
from table_model.errors import DataLoss
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.storage.rocks import RocksStore
    from streaming_server.storage.row_codec import Decoder, RowCodec
    from table_model.key_codec import KeyCodec

_ALL_KEYS: Final = KeyRange()
_FIRST_STEP_ROWS: Final = 64
_ONE_IN: Final = 64


class BucketCursor:
    """The rows of one bucket in key order, as of the moment the cursor was made; or of a range, or against key order.

    RocksDB's fast value iterator ends at a damaged block as if it were the end of the data. So the cursor holds a
    `Sentinel` of the same moment, which must agree at the end that there are no more rows.

    The upper end of the range is RocksDB's, in both directions. A lower end would be too, but rocksdict cannot set it,
    so in reverse the cursor looks at the keys itself: each step reads at most as many rows as came before it (64 at
    first), and what lies below the range is dropped.

    Make it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Attributes:
        longest_row: Bytes of the longest row the bucket has held, which bounds what one step can read.
        rows_scanned: Rows of the range read so far, decoded or not.
        open_cursors: How many cursors of this process are open.
        message, stored: None: rows do not lie there as Arrow.
    """

    open_cursors: ClassVar[int] = 0
    message: None = None
    stored: None = None

    def __init__(
        self,
        store: RocksStore,
        codec: RowCodec,
        decoder: Decoder,
        keys: KeyCodec,
        longest_row: int,
        key_range: KeyRange = _ALL_KEYS,
        *,
        reverse: bool = False,
    ) -> None:
        self.longest_row = max(longest_row, 1)
        self.rows_scanned = 0
        self._store = store
        self._decoder = decoder
        self._row_keys = codec.row_keys(keys)
        self._range = key_range
        self._reverse = reverse
        self._floor = key_range.start if reverse else None
        self._last: bytes | None = None
        self._proven = key_range.is_empty
        self._open = False
        self._values: Iterator[bytes] = iter(())
        self._sentinel: Sentinel | None = None
        # Iterators only borrow their options: these are freed after them, as the last attribute, and never changed.
        self._options = scan_options(key_range.end)
        if key_range.is_empty:
            return
        try:
            self._values = store.row_values(self._options, None if reverse else key_range.start, reverse=reverse)
            self._sentinel = Sentinel(store, store.rows, self._options, key_range, reverse=reverse)
        except Exception as error:
            raise store.failure(error) from error
        self._open = True
        BucketCursor.open_cursors += 1

    @property
    def last_key(self) -> bytes | None:
        """The encoded key of the last row read, decoded or not; None before the first. Takes a few microseconds.

        Raises DataLoss when the row is damaged.
        """
        return None if self._last is None else self._key_of(self._last)

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The next rows: at least one, at most `max_rows`; None at the end.

        All rows but the last are within `max_bytes` stored bytes. Raises DataLoss when a row cannot be decoded or the
        end is not the end.
        """
        values = self.next_rows(max_rows, max_bytes)
        if values is None:
            return None
        try:
            return self._decoder.decode(pa.array(values, pa.binary()))
        except DataLoss as error:
            raise self._here(error) from error

    def skim(self, max_rows: int, max_bytes: int) -> int | None:
        """Reads on as `next_batch` does, but decodes nothing: how many rows that were; None at the end.

        Raises DataLoss when the end is not the end. A damaged row goes unnoticed.
        """
        values = self.next_rows(max_rows, max_bytes)
        return None if values is None else len(values)

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """The next rows as they are stored, otherwise as `next_batch`. A damaged row goes unnoticed."""
        values = self._read(max_rows, max_bytes)
        if values:
            self.rows_scanned += len(values)
            self._last = values[-1]
            return values
        if not self._proven:
            self._prove_end()
        return None

    def _read(self, max_rows: int, max_bytes: int) -> list[bytes]:
        """Reads in steps so small that even rows of the greatest length would stay within the budget."""
        values: list[bytes] = []
        room, wanted = max_bytes, max_rows
        while wanted > 0 and room > max_bytes // 2:
            step = min(max(room // self.longest_row, 1), wanted)
            if self._floor is not None:
                step = min(step, max(self.rows_scanned + len(values), _FIRST_STEP_ROWS))
            part = list(islice(self._values, step))
            if self._floor is not None and part:
                self._cut_at(self._floor, part)
            values += part
            if len(part) < step or step == wanted or _estimated_bytes(part) > max_bytes // 2:
                break
            wanted -= step
            room -= sum(map(len, part))
        return values

    def _cut_at(self, floor: bytes, part: list[bytes]) -> None:
        """Drops rows below `floor` from a step in descending order; to have seen one proves the end of the range."""
        if self._key_of(part[-1]) >= floor:
            return
        del part[bisect_left(part, True, key=lambda row: self._key_of(row) < floor) :]
        self._values = iter(())
        self._proven = True

    def _prove_end(self) -> None:
        """Proves that the value iterator stopped because there is nothing more in the range."""
        assert self._sentinel is not None
        self._sentinel.prove_end(self.last_key, self.rows_scanned)

    def _key_of(self, value: bytes) -> bytes:
        try:
            return self._row_keys.key_of(value)
        except DataLoss as error:
            raise self._here(error) from error

    def _here(self, error: DataLoss) -> DataLoss:
        return DataLoss(f"{self._store.place}: {error.message}")

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._values = iter(())
        if self._sentinel is not None:
            self._sentinel.close()
        BucketCursor.open_cursors -= self._open
        self._open = False


def _estimated_bytes(rows: list[bytes]) -> int:
    """About how long many rows are together, by some of them; of few rows, nothing. A sum is 5 % of a scan."""
    return _ONE_IN * sum(map(len, rows[: len(rows) // _ONE_IN * _ONE_IN : _ONE_IN])) if len(rows) > 1024 else 0
