"""The rows of a live table: one cursor a bucket, all made at one instant, read in turn."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from streaming_server.scan.chunk_source import Chunk
from table_model.errors import ScanKvError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from streaming_server.storage.cursor import BucketCursor


class LiveKvSource:
    """A `ChunkSource` over the cursors of a view, interleaving the buckets chunk by chunk.

    Args:
        schema: The schema of the chunks.
        schema_id: The version of the table's schema that they have.
        cursors: A cursor for each bucket, made at one instant.
        log_offsets: The log offset of each bucket at that instant.
        row_estimate: The rows of the view.
        on_error: Told of every error a cursor raises, with its bucket; gives the error to raise.
    """

    def __init__(
        self,
        schema: pa.Schema,
        schema_id: int,
        cursors: Mapping[int, BucketCursor],
        log_offsets: Mapping[int, int],
        row_estimate: int,
        on_error: Callable[[int, ScanKvError], ScanKvError],
    ) -> None:
        self.schema = schema
        self.schema_id = schema_id
        self.log_offsets = log_offsets
        self.row_estimate = row_estimate
        self._cursors = dict(cursors)
        self._turns = deque(cursors)
        self._finished_rows = 0
        self._on_error = on_error
        self._aborted: ScanKvError | None = None

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""
        return self._finished_rows + sum(cursor.rows_scanned for cursor in self._cursors.values())

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """The next chunk; buckets take turns. Raises DataLoss for damage, and the error given to `abort`."""
        if self._aborted is not None:
            raise self._aborted
        while self._turns:
            bucket = self._turns.popleft()
            batch = self._next_batch(bucket, max_rows, max_bytes)
            if batch is not None:
                self._turns.append(bucket)
                return Chunk(bucket, batch)
            self._free(bucket)
        return None

    def _next_batch(self, bucket: int, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        try:
            return self._cursors[bucket].next_batch(max_rows, max_bytes)
        except ScanKvError as error:
            raise self._on_error(bucket, error) from error.__cause__

    def _free(self, bucket: int) -> None:
        cursor = self._cursors.pop(bucket)
        self._finished_rows += cursor.rows_scanned
        cursor.close()

    def abort(self, error: ScanKvError) -> None:
        """Frees the cursors now; whoever asks for the next chunk gets the error."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Frees the cursors."""
        for bucket in list(self._cursors):
            self._free(bucket)
        self._turns.clear()
