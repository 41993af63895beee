"""The rows of a live table or a pinned view, one bucket after another."""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import TYPE_CHECKING

from scankv.model.errors import ScanKvError
from streaming_server.scan.chunk_source import Chunk, ScanPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from streaming_server.scan.bucket_cursors import BucketCursors
    from streaming_server.scan.chunk_source import View


class KvSource:
    """A `ChunkSource` over the cursors of a view.

    It reads one bucket after another. So one key describes how far a scan has come, whatever the number of buckets.

    Args:
        schema: The schema of the chunks.
        schema_id: The version of the table's schema that the chunks have.
        view: The view that is read.
        buckets: The buckets still to be read, ascending.
        cursors: Their cursors, all of one instant.
        position: Where the source resumes. None: at the beginning.
        on_error: Called with each error of a cursor and its bucket. Returns the error to raise.
    """

    def __init__(
        self,
        schema: pa.Schema,
        schema_id: int,
        view: View,
        buckets: Iterable[int],
        cursors: BucketCursors,
        position: ScanPosition | None,
        on_error: Callable[[int, ScanKvError], ScanKvError],
    ) -> None:
        self.schema = schema
        self.schema_id = schema_id
        self.view = view
        self._left = deque(buckets)
        self._cursors = cursors
        self._position = position
        self._finished_rows = 0
        self._on_error = on_error
        self._aborted: ScanKvError | None = None

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""
        return self._finished_rows + (self._cursors.rows_scanned(self._left[0]) if self._left else 0)

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Does a part of the work of `next_chunk`. See `ChunkSource`."""
        if self._aborted is not None:
            raise copy(self._aborted)
        while self._left:
            bucket = self._left[0]
            try:
                is_ready = self._cursors[bucket].prefetch(max_rows, max_bytes)
            except ScanKvError as error:
                raise self._on_error(bucket, error) from error.__cause__
            if is_ready is not None:
                return is_ready
            self._free_first()
        return True

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """Returns the next chunk, None at the proven end. Raises DataLoss, and the error given to `abort`."""
        if self._aborted is not None:
            raise copy(self._aborted)
        while self._left:
            bucket = self._left[0]
            try:
                cursor = self._cursors[bucket]
                batch = cursor.next_batch(max_rows, max_bytes)
                key, message = cursor.last_key, cursor.message
                stored = None if batch is None else cursor.stored
            except ScanKvError as error:
                raise self._on_error(bucket, error) from error.__cause__
            if batch is not None:
                assert key is not None
                self._position = ScanPosition(bucket, key)
                return Chunk(bucket, batch, message, stored)
            self._free_first()
        return None

    def position(self) -> ScanPosition:
        """Returns how far the chunks returned so far reach."""
        assert self._position is not None
        return self._position

    def abort(self, error: ScanKvError) -> None:
        """Closes the cursors now. The next call of `next_chunk` raises `error`."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Closes the cursors."""
        self._finished_rows = self.rows_scanned
        self._left.clear()
        self._cursors.close()

    def _free_first(self) -> None:
        bucket = self._left.popleft()
        self._finished_rows += self._cursors.rows_scanned(bucket)
        self._cursors.free(bucket)
