"""A cursor that is made when it is first read, so that a scan of many buckets begins with the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from streaming_server.scan.chunk_source import BatchMessage, Cursor, StoredRows


class Promise(Protocol):
    """Something that is made later, and shows what a bucket has now."""

    def begin(self) -> None:
        """Makes it, if that was not done. Raises ScanKvError if it cannot be made."""

    def close(self) -> None:
        """Does not make it any more. Closing twice is allowed."""


class LateCursor:
    """A `Cursor` that shows the instant at which it was promised.

    Args:
        promise: Has a bucket call a function later: see `ReadableBucket.promise`.
        make: Makes the cursor.
    """

    __slots__ = ("_cursor", "_make", "_promise")

    def __init__(self, promise: Callable[[Callable[[], None]], Promise], make: Callable[[], Cursor]) -> None:
        self._cursor: Cursor | None = None
        self._make = make
        self._promise = promise(self._make_cursor)

    def _make_cursor(self) -> None:
        self._cursor = self._make()

    @property
    def _made(self) -> Cursor:
        if self._cursor is None:
            self._promise.begin()
            assert self._cursor is not None
        return self._cursor

    @property
    def rows_scanned(self) -> int:
        """The number of rows read so far."""
        return 0 if self._cursor is None else self._cursor.rows_scanned

    @property
    def message(self) -> BatchMessage | None:
        """`message` of the cursor."""
        return self._made.message

    @property
    def stored(self) -> StoredRows | None:
        """`stored` of the cursor."""
        return self._made.stored

    @property
    def last_key(self) -> bytes | None:
        """`last_key` of the cursor."""
        return self._made.last_key

    def prefetch(self, max_rows: int, max_bytes: int) -> bool | None:
        """Does a part of the work of `next_batch`. See `Cursor`."""
        return self._made.prefetch(max_rows, max_bytes)

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows, possibly none; None at the proven end. Raises DataLoss."""
        return self._made.next_batch(max_rows, max_bytes)

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | pa.StructArray | None:
        """Returns the next rows, as the cursor does. Raises DataLoss."""
        return self._made.next_rows(max_rows, max_bytes)

    def close(self) -> None:
        """Closes the cursor if it was made. Closing twice is allowed."""
        self._promise.close()
        if self._cursor is not None:
            self._cursor.close()
