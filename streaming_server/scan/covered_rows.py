"""Rows that are in memory already, read like those of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.storage.rows.row_codec import Decoder


class KnownRows:
    """A `Cursor` over rows that the entries of an index have in full. It holds no files.

    Args:
        decoder: Decodes the rows.
        keys: Their encoded keys, in the order in which they are read.
        rows: The rows as they are stored in the entries, in the same order.

    Attributes:
        rows_scanned: Rows given so far.
        message, stored: None: the rows are not there as Arrow.
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
        """The encoded key of the last row given, None before the first."""
        return self._keys[self.rows_scanned - 1] if self.rows_scanned else None

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The next rows, None at the end. Raises DataLoss for a row that cannot be decoded."""
        values = self.next_rows(max_rows, max_bytes)
        return None if values is None else self._decoder.decode(pa.array(values, pa.binary()))

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """The next rows as they are stored, within `max_bytes` but for the last; None at the end."""
        values: list[bytes] = []
        for row in self._rows[self.rows_scanned : self.rows_scanned + max_rows]:
            values.append(row)
            max_bytes -= len(row)
            if max_bytes <= 0:
                break
        self.rows_scanned += len(values)
        return values or None

    def close(self) -> None:
        """Lets go of the rows."""
        self._keys, self._rows = self._keys[: self.rows_scanned], ()
