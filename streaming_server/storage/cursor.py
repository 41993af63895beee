"""One scan of one bucket: an iterator pair over RocksDB that gives Arrow batches and cannot end short unnoticed."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from streaming_server.storage.rocks import scan_options
from table_model.errors import DataLoss, ScanKvError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocksdict import RdictIter

    from streaming_server.storage.rocks import RocksStore
    from streaming_server.storage.row_codec import RowCodec, RowDecoder
    from table_model.key_codec import KeyCodec


class BucketCursor:
    """The rows of one bucket in key order, as of the moment the cursor was made.

    RocksDB's fast value iterator ends at a damaged block as if it were the end of the data. So the cursor holds a
    second, slower iterator of the same moment, the *sentinel*: at the end it seeks to the last row seen, steps once,
    and must find nothing and report no error.

    Make it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Attributes:
        longest_row: Bytes of the longest row the bucket has held, which bounds what one step can read.
        rows_scanned: Rows read so far.
    """

    def __init__(
        self, store: RocksStore, codec: RowCodec, decoder: RowDecoder, keys: KeyCodec, longest_row: int
    ) -> None:
        self.longest_row = max(longest_row, 1)
        self.rows_scanned = 0
        self._store = store
        self._decoder = decoder
        self._key_decoder = codec.decoder(codec.definition.primary_key)
        self._keys = keys
        self._last: bytes | None = None
        # Iterators only borrow their options: these live as long as they do, and are never changed.
        self._options = scan_options()
        try:
            self._values: Iterator[bytes] = store.row_values(self._options)
            self._sentinel: RdictIter | None = store.rows.iter(self._options)
        except Exception as error:
            raise store.failure(error) from error

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The next rows: at least one, at most `max_rows`; None at the end.

        All rows but the last are within `max_bytes` stored bytes. Raises DataLoss when a row cannot be decoded or the
        end is not the end.
        """
        values = self._read(max_rows, max_bytes)
        if not values:
            self._verify_end()
            return None
        self.rows_scanned += len(values)
        self._last = values[-1]
        try:
            return self._decoder.decode(pa.array(values, pa.binary()))
        except DataLoss as error:
            raise DataLoss(f"{self._store.place}: {error.message}") from error

    def _read(self, max_rows: int, max_bytes: int) -> list[bytes]:
        """Reads in steps so small that even rows of the greatest length would stay within the budget."""
        values: list[bytes] = []
        room, wanted = max_bytes, max_rows
        while wanted > 0 and room > max_bytes // 2:
            step = min(max(room // self.longest_row, 1), wanted)
            part = list(islice(self._values, step))
            values += part
            if len(part) < step or step == wanted:
                break
            wanted -= step
            room -= sum(map(len, part))
        return values

    def _verify_end(self) -> None:
        """Proves that the value iterator stopped because there is nothing more."""
        sentinel = self._sentinel
        assert sentinel is not None
        try:
            if self._last is None:
                sentinel.seek_to_first()
            else:
                key = self._key_of(self._last)
                sentinel.seek(key)
                if not sentinel.valid() or sentinel.key() != key:
                    sentinel.status()
                    self._short()
                sentinel.next()
            sentinel.status()
            if sentinel.valid():
                self._short()
        except ScanKvError:
            raise
        except Exception as error:
            raise self._store.failure(error) from error

    def _short(self) -> NoReturn:
        raise DataLoss(
            f"{self._store.place} is damaged: reading stopped after {self.rows_scanned} rows, before the end"
        )

    def _key_of(self, value: bytes) -> bytes:
        row = self._key_decoder.decode(pa.array([value], pa.binary()))
        key: bytes = self._keys.encode(row.columns)[0].as_py()
        return key

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._values = iter(())
        self._sentinel = None
