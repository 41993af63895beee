"""A cursor over the rows of a covering index, which are in memory already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.storage.rows.row_codec import Decoder


class CoveredRowsCursor:
    """A `Cursor` over rows that the entries of a covering index contain in full. It holds no files.

    Args:
        decoder: Decodes the rows.
        keys: The encoded keys, in reading order.
        rows: The rows as the index entries store them, in the same order.

    Attributes:
        rows_scanned: The number of rows returned so far.
        message, stored: None, because the rows are not stored as Arrow.
    """

    message: None = None
    stored: None = None

    def __init__(self, decoder: Decoder, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        self.rows_scanned = 0
        self._decoder = decoder
        self._keys = keys
        self._rows = rows

    @property
    def last_key(self) -> bytes | None:
        """The encoded key of the last row returned, None before the first."""
        return self._keys[self.rows_scanned - 1] if self.rows_scanned else None

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Returns True, because each step of `next_batch` is short."""
        return True

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows, None at the end. Raises DataLoss for a row that cannot be decoded."""
        values = self.next_rows(max_rows, max_bytes)
        return None if values is None else self._decoder.decode(pa.array(values, pa.binary()))

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """Returns the next rows in stored form; None at the end. Only the last row may exceed `max_bytes`."""
        values: list[bytes] = []
        for row in self._rows[self.rows_scanned : self.rows_scanned + max_rows]:
            values.append(row)
            max_bytes -= len(row)
            if max_bytes <= 0:
                break
        self.rows_scanned += len(values)
        return values or None

    def close(self) -> None:
        """Releases the rows."""
        self._keys, self._rows = self._keys[: self.rows_scanned], ()
