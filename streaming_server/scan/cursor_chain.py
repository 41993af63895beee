"""Reads several cursors one after another as one cursor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from streaming_server.scan.chunk_source import BatchMessage, Cursor, StoredRows

T = TypeVar("T")


class CursorChain:
    """A `Cursor` over several ranges of one bucket, each with a cursor of its own.

    Each cursor proves the end of its range, so the end of the last cursor proves the end of the chain.

    Args:
        cursors: Functions that create the cursors in reading order, each when it is needed. All cursors must show the
            same instant.
        existing: The cursors that exist already. The chain closes them.

    Attributes:
        rows_scanned: Rows read so far.
    """

    def __init__(self, cursors: Sequence[Callable[[], Cursor]], existing: Sequence[Cursor] = ()) -> None:
        self._cursors = cursors
        self._held = existing
        self._made = 1
        self._current = cursors[0]()
        self.rows_scanned = self._finished_rows = 0
        self._last: bytes | None = None

    @property
    def message(self) -> BatchMessage | None:
        """`message` of the current cursor."""
        return self._current.message

    @property
    def stored(self) -> StoredRows | None:
        """`stored` of the current cursor."""
        return self._current.stored

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which the chain has read, None before the first row."""
        key = self._current.last_key
        return self._last if key is None else key

    def prefetch(self, max_rows: int, max_bytes: int) -> bool | None:
        """Does a part of the work of `next_batch`. See `Cursor`."""
        while (is_ready := self._current.prefetch(max_rows, max_bytes)) is None and self._continue():
            pass
        return is_ready

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows, possibly none; None at the end of the last cursor. Raises DataLoss."""
        return self._next(lambda cursor: cursor.next_batch(max_rows, max_bytes))

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | pa.StructArray | None:
        """Returns the next rows, as the cursors do; None at the end of the last cursor. Raises DataLoss."""
        return self._next(lambda cursor: cursor.next_rows(max_rows, max_bytes))

    def _next(self, read: Callable[[Cursor], T | None]) -> T | None:
        while (found := read(self._current)) is None:
            if not self._continue():
                return None
        self.rows_scanned = self._finished_rows + self._current.rows_scanned
        return found

    def _continue(self) -> bool:
        """Continues with the next cursor. Returns whether one exists."""
        if self._made == len(self._cursors):
            return False
        self._last = self.last_key
        self._finished_rows += self._current.rows_scanned
        self._current.close()
        self._current = self._cursors[self._made]()
        self._made += 1
        return True

    @classmethod
    def of_iterators(cls, makers: Iterable[Callable[[], Cursor]]) -> CursorChain:
        """Chains cursors that show the instant of their creation, so all of them are created now. Raises DataLoss."""
        existing: list[Cursor] = []
        try:
            existing.extend(maker() for maker in makers)
        except BaseException:
            for cursor in existing:
                cursor.close()
            raise
        return cls([partial(_same, cursor) for cursor in existing], existing)

    def close(self) -> None:
        """Closes the cursors that exist and creates no others. Closing twice is allowed."""
        for cursor in (self._current, *self._held):
            cursor.close()
        self._made = len(self._cursors)


def _same(cursor: Cursor) -> Cursor:
    return cursor
