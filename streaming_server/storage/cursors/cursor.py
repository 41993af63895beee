"""A cursor over the rows of one bucket, which reads in bounded steps and never ends early unnoticed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from scankv.model.errors import DataLoss
from scankv.model.keys.key_range import KeyRange
from streaming_server.arrays.arrow_buffers import binary_from_values
from streaming_server.storage.cursors.range_reader import STEP_SECONDS, RangeReader, values_projection
from streaming_server.storage.files.formats import locate
from streaming_server.storage.rows.row_codec import RowDecoder

if TYPE_CHECKING:
    from collections.abc import Generator

    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec

_ALL_KEYS: Final = KeyRange()
_ONE_IN: Final = 64

SLICE_SECONDS: Final = 0.001
"""The approximate processor time of one call of `BucketCursor.prefetch`."""
SHORT_SECONDS: Final = SLICE_SECONDS / 4
"""A step that has taken longer leaves the next step to another turn of the event loop."""
_PIECE_ROWS: Final = 8192
"""The most rows that are decoded at once for `BucketCursor.prefetch`, which takes about half a millisecond."""
_NARROW: Final = 8
"""If a decoder returns at most one in so many stored bytes, `BucketCursor.prefetch` reads up to as many times more."""
_NARROW_READ: Final = 2
"""How many times more it then decodes at once, which takes less memory than decoding all columns of half of them."""


class BucketCursor:
    """Reads the rows of one bucket, or of a key range of it, as of the instant when the cursor was created.

    The rows come in key order, or in descending key order with `reverse`. Each step takes a bounded time, however many
    deleted rows lie between the live ones: see `RangeReader`.

    Create the cursor under the bucket's mutex; then use it from one thread at a time. It pins files on disk until
    `close`.

    Attributes:
        longest_row: Bytes of the longest row ever written to the bucket, which bounds what one step can read.
        rows_scanned: Rows of the range read so far, decoded or not.
        open_cursors: How many cursors of this process are open.
        message, stored: None, because the rows are not stored as Arrow.
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
        # What `prefetch` has read of the next batch: stored rows, and before these, how many rows that it has decoded.
        self._prefetching: Generator[None, None, list[bytes]] | None = None
        self._values: list[bytes] | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._decoded_rows = 0
        self._is_narrow = False
        if key_range.is_empty:
            return
        projection = values_projection(self._key_of)
        self._reader = RangeReader(store, store.rows, projection, key_range, longest=longest_row, reverse=reverse)
        self._open = True
        BucketCursor.open_cursors += 1

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which the cursor has read. None: before the first row. Takes a few microseconds.

        This is the key of the last row returned, or a later one when no rows lie between the two. Raises DataLoss when
        that row is damaged.
        """
        return None if self._reader is None else self._reader.last_key

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows, at most `max_rows`; None at the end.

        The batch may be empty even though `last_key` has advanced. All rows but the last together take at most
        `max_bytes` stored bytes, or after `prefetch` up to eight times as many: see `_NARROW`.
        Raises DataLoss when a row cannot be decoded, or when the end-of-range check fails.
        """
        if self._pieces and self._values is None:
            self._values = []
        values = self.next_rows(max_rows, max_bytes)
        pieces, self._pieces = self._pieces, []
        self._decoded_rows = 0
        if values or not pieces:
            if values is None:
                return None
            pieces.append(self._decode(values))
        return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)

    def prefetch(self, max_rows: int, max_bytes: int) -> bool | None:
        """Does a part of the work of `next_batch`, which takes about a millisecond.

        The next call of another method must be `prefetch` or `next_batch`, with the same arguments, or `close`.

        Returns:
            Whether the rest of the work takes about a millisecond. None: no more rows exist.

        Raises:
            DataLoss: As for `next_batch`.
        """
        if self._reader is None:
            return None
        began = time.thread_time()
        if self._values is None:
            left, room = max_rows - self._decoded_rows, max_bytes * (_NARROW_READ if self._is_narrow else 1)
            self._prefetching = self._prefetching or self._steps(self._reader, left, room, SLICE_SECONDS)
            try:
                next(self._prefetching)
            except StopIteration as done:
                self._prefetching, self._values = None, done.value
            except BaseException:
                self._prefetching = None
                raise
            else:
                return False
            if not self._values and not self._pieces and self._reader.ended:
                self._values = None
                return None
            # Decoding few columns takes much less time than reading the rows.
            decodes = self._is_narrow and len(self._values) <= _PIECE_ROWS
        else:
            decodes = len(self._values) > _PIECE_ROWS
        if decodes:
            self._decode_piece(self._values)
        if decodes and not self._values and self._has_room(max_rows):
            self._values = None
            return False
        return len(self._values) <= _PIECE_ROWS and time.thread_time() - began < SHORT_SECONDS

    def _decode_piece(self, values: list[bytes]) -> None:
        """Decodes the next of the rows that `prefetch` has read."""
        piece, self._values = values[:_PIECE_ROWS], values[_PIECE_ROWS:]
        self._pieces.append(self._decode(piece))
        self._decoded_rows += len(piece)
        self.rows_scanned += len(piece)

    def _has_room(self, max_rows: int) -> bool:
        """Whether to read further rows for the batch of which all rows read so far are decoded."""
        assert self._reader is not None
        is_full = self._decoded_rows >= max_rows or _NARROW_READ * len(self._pieces) >= _NARROW
        return self._is_narrow and not is_full and not self._reader.ended

    def skim(self, max_rows: int, max_bytes: int) -> int | None:
        """Reads like `next_batch`, but decodes nothing; returns how many rows it read, or None at the end.

        Raises DataLoss when the end-of-range check fails. Does not notice a damaged row.
        """
        values = self.next_rows(max_rows, max_bytes)
        return None if values is None else len(values)

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """Like `next_batch`, but returns the rows as they are stored. Does not notice a damaged row."""
        if self._reader is None:
            return None
        values, self._values = self._values, None
        if values is None:
            values = self._read(self._reader, max_rows, max_bytes)
        self.rows_scanned += len(values)
        return None if self._reader.ended and not values else values

    def _read(self, reader: RangeReader[bytes], max_rows: int, max_bytes: int) -> list[bytes]:
        """Reads the rows of the next batch."""
        steps = self._prefetching or self._steps(reader, max_rows, max_bytes, STEP_SECONDS)
        self._prefetching = None
        while True:
            try:
                next(steps)
            except StopIteration as done:
                values: list[bytes] = done.value
                return values

    def _steps(
        self, reader: RangeReader[bytes], max_rows: int, max_bytes: int, seconds: float
    ) -> Generator[None, None, list[bytes]]:
        """Reads the rows of the next batch, and yields after about each `seconds`. Returns the rows.

        It reads in steps so small that even the longest rows would stay within the budget. A step that takes long is
        the last.
        """
        values: list[bytes] = []
        budget, wanted = max_bytes, max_rows
        until = time.thread_time() + seconds
        while wanted > 0 and budget > max_bytes // 2:
            step = min(max(budget // self.longest_row, 1), wanted)
            part = reader.read(step, seconds)
            left = STEP_SECONDS - seconds
            while left > 0 and len(part) < step and not reader.ended:
                yield
                until = time.thread_time() + seconds
                part += reader.read(step - len(part), seconds)
                left -= seconds
            values = values + part if values else part
            if len(part) < step or step == wanted or _estimate_bytes(part) > max_bytes // 2:
                break
            wanted -= step
            budget -= sum(map(len, part))
            if time.thread_time() >= until:
                yield
                until = time.thread_time() + seconds
        return values

    def _decode(self, values: list[bytes]) -> pa.RecordBatch:
        try:
            stored = binary_from_values(values)
            batch = self._decoder.decode(stored)
        except DataLoss as error:
            raise self._damage(error) from error
        # A predicate may take milliseconds for the rows of one read.
        self._is_narrow = isinstance(self._decoder, RowDecoder) and _NARROW * batch.nbytes <= stored.nbytes
        return batch

    def _key_of(self, value: bytes) -> bytes:
        try:
            return self._row_keys.key_of(value)
        except DataLoss as error:
            raise self._damage(error) from error

    def _damage(self, error: DataLoss) -> DataLoss:
        return locate(error, self._store.location)

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        if self._reader is not None:
            self._reader.close()
        self._prefetching = self._values = None
        self._pieces = []
        BucketCursor.open_cursors -= self._open
        self._open = False


def _estimate_bytes(rows: list[bytes]) -> int:
    """Estimates the size of many rows by a sample; 0 for few rows. Adding up all lengths would take 5 % of a scan."""
    return _ONE_IN * sum(map(len, rows[: len(rows) // _ONE_IN * _ONE_IN : _ONE_IN])) if len(rows) > 1024 else 0
