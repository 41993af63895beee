"""The cursors of a view, made as late as possible, so that a scan of many buckets begins with the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.errors import ScanKvError
    from streaming_server.scan.chunk_source import Cursor


class LateReaders(Protocol):
    """Creates the cursors of one bucket before the bucket changes: see `StoreReaders`."""

    def promise(self, cursors: BucketCursors, bucket: int) -> None:
        """Has `cursors.create(bucket)` called before the bucket changes. Call it at the instant of the view."""

    def create(self, cursors: BucketCursors) -> None:
        """Has the cursor created now, unless that was done."""

    def remove(self, cursors: BucketCursors) -> None:
        """Gives the promise up if the cursor does not exist yet. The bucket may then be closed."""


class BucketCursors:
    """The cursors of a view, by bucket: those that exist, and those that are made when they are first read.

    A bucket that is not read yet has no objects here, only entries in dictionaries. So it costs a scan little.

    Bound to the event loop, except that a writer of a bucket creates its cursor in its own thread.

    Args:
        make: Makes the cursor of a bucket.
    """

    def __init__(self, make: Callable[[int], Cursor]) -> None:
        self._make = make
        self._made: dict[int, Cursor] = {}
        self._promised: dict[int, LateReaders] = {}
        self._failures: dict[int, ScanKvError] = {}

    def create(self, bucket: int) -> None:
        """Makes the cursor of a bucket. Raises DataLoss."""
        self._made[bucket] = self._make(bucket)

    def create_later(self, bucket: int, readers: LateReaders) -> None:
        """Makes the cursor of a bucket when it is first read, or before the bucket changes.

        Args:
            bucket: The number of the bucket.
            readers: The readers of this bucket alone.
        """
        readers.promise(self, bucket)
        self._promised[bucket] = readers

    def fail(self, bucket: int, error: ScanKvError) -> None:
        """Has an error raised instead of a cursor that could not be made later. For `LateReaders`."""
        self._failures[bucket] = error

    @property
    def made(self) -> dict[int, Cursor]:
        """The cursors that exist, by bucket."""
        return self._made

    def __getitem__(self, bucket: int) -> Cursor:
        """Returns the cursor of a bucket that is not free yet. Raises ScanKvError if it cannot be made."""
        cursor = self._made.get(bucket)
        if cursor is None:
            self._promised[bucket].create(self)
            if bucket in self._failures:
                raise self._failures[bucket]
            cursor = self._made[bucket]
        return cursor

    def rows_scanned(self, bucket: int) -> int:
        """Returns the number of rows read from a bucket so far."""
        cursor = self._made.get(bucket)
        return 0 if cursor is None else cursor.rows_scanned

    def free(self, bucket: int) -> None:
        """Closes the cursor of a bucket if it exists, and never makes it otherwise. Freeing twice is allowed."""
        readers = self._promised.pop(bucket, None)
        if readers is not None:
            readers.remove(self)
        cursor = self._made.pop(bucket, None)
        if cursor is not None:
            cursor.close()

    def close(self) -> None:
        """Frees all cursors, and what makes them. Closing twice is allowed."""
        promised, self._promised = self._promised, {}
        for readers in promised.values():
            readers.remove(self)
        while self._made:
            self._made.popitem()[1].close()
        # It refers to bases, whose files could not be removed while a closed scan is still known.
        self._make = _make_none


def _make_none(_: int) -> Cursor:
    raise AssertionError("the cursors are closed")
