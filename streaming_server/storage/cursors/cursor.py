"""One scan of one bucket: reads RocksDB in steps, gives Arrow batches, and cannot end short unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from scankv.model.errors import DataLoss
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.cursors.range_reader import RangeReader, values_projection

if TYPE_CHECKING:
    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec

_ALL_KEYS: Final = KeyRange()
_ONE_IN: Final = 64


class BucketCursor:
    """The rows of one bucket in key order, as of the moment the cursor was made; or of a range, or against key order.

    It reads in steps of bounded time, however many rows were deleted between those that there are: see `RangeReader`.

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
        self._reader: RangeReader[bytes] | None = None
        self._open = False
        if key_range.is_empty:
            return
        projection = values_projection(self._key_of)
        self._reader = RangeReader(store, store.rows, projection, key_range, longest=longest_row, reverse=reverse)
        self._open = True
        BucketCursor.open_cursors += 1

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which it has read, decoded or not; None before the first. Takes a few microseconds.

        It is that of the last row given, or lies behind it, where there are no rows up to it.
        Raises DataLoss when the row is damaged.
        """
        return None if self._reader is None else self._reader.last_key

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The next rows, at most `max_rows`, perhaps none: `last_key` has moved nevertheless. None at the end.

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
        if self._reader is None:
            return None
        values = self._read(self._reader, max_rows, max_bytes)
        self.rows_scanned += len(values)
        return None if self._reader.ended and not values else values

    def _read(self, reader: RangeReader[bytes], max_rows: int, max_bytes: int) -> list[bytes]:
        """Reads in steps so small that even rows of the greatest length would stay within the budget."""
        values: list[bytes] = []
        room, wanted = max_bytes, max_rows
        while wanted > 0 and room > max_bytes // 2:
            step = min(max(room // self.longest_row, 1), wanted)
            part = reader.read(step)
            values = values + part if values else part
            if len(part) < step or step == wanted or _estimated_bytes(part) > max_bytes // 2:
                break
            wanted -= step
            room -= sum(map(len, part))
        return values

    def _key_of(self, value: bytes) -> bytes:
        try:
            return self._row_keys.key_of(value)
        except DataLoss as error:
            raise self._here(error) from error

    def _here(self, error: DataLoss) -> DataLoss:
        return DataLoss(f"{self._store.location}: {error.message}")

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        if self._reader is not None:
            self._reader.close()
        BucketCursor.open_cursors -= self._open
        self._open = False


def _estimated_bytes(rows: list[bytes]) -> int:
    """About how long many rows are together, by some of them; of few rows, nothing. A sum is 5 % of a scan."""
    return _ONE_IN * sum(map(len, rows[: len(rows) // _ONE_IN * _ONE_IN : _ONE_IN])) if len(rows) > 1024 else 0
