"""The full table, followed by its changes from exactly that point on, as one source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from streaming_server.scan.chunk_source import WAITING, View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.columns import ColumnDefinition
    from streaming_server.scan.changes.change_rows import ChangeRows
    from streaming_server.scan.changes.log_source import LogSource
    from streaming_server.scan.changes.log_token import LaterView, LogPosition
    from streaming_server.scan.chunk_source import Chunk, ChunkSource, ScanPosition, Waiting


class FullSource:
    """The rows of a view as changes, then the changes of a `LogSource` that starts where the view ends.

    The changelog is retained from the opening on, however long reading the rows takes.

    Args:
        table: The rows of one view; after an interruption, the remaining rows.
        rows: Builds the chunks of the stream.
        log: The changes that follow.
        views: The views that the rows come from, except the first.
        scanned: How far earlier streams have read the rows. None: not at all.
    """

    def __init__(
        self,
        table: ChunkSource,
        rows: ChangeRows,
        log: LogSource,
        views: tuple[LaterView, ...],
        scanned: ScanPosition | None,
    ) -> None:
        self.view = View(log.offsets, log.view.micros, table.view.rows)
        self._table: ChunkSource | None = table
        self._rows = rows
        self._log = log
        self._views = views
        self._scanned = self._scanned_before = scanned
        self._rows_scanned = 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of the chunks from now on."""
        return self._rows.schema

    @property
    def schema_id(self) -> int:
        """The version of the table's schema that the chunks have."""
        return self._rows.schema_id

    @property
    def columns(self) -> Sequence[ColumnDefinition]:
        """The columns of the table that the chunks have."""
        return self._rows.columns

    @property
    def rows_scanned(self) -> int:
        """Rows and changes read from storage so far."""
        table = 0 if self._table is None else self._table.rows_scanned
        return self._rows_scanned + table + self._log.rows_scanned

    @property
    def offsets(self) -> Mapping[int, int]:
        """For each bucket the offset of the next change."""
        return self._log.offsets

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Does a part of the work of `next_chunk`. See `ChunkSource`."""
        return self._table is None or self._table.prefetch(max_rows, max_bytes)

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | Waiting | None:
        """Returns the next rows, then changes, like `LogSource.next_chunk`; WAITING once after the last row.

        Raises what both sources raise.
        """
        if self._table is not None:
            chunk = self._table.next_chunk(max_rows, max_bytes)
            if chunk is not None:
                self._scanned_before, self._scanned = self._scanned, self._table.position()
                return self._rows.chunk_of_rows(chunk)
            self._rows_scanned += self._table.rows_scanned
            self._table.close()
            self._table = None
            return WAITING  # so that a heartbeat marks the end of the rows before the first change
        return self._log.next_chunk(max_rows, max_bytes)

    async def wait(self, seconds: float) -> None:
        """See `LogSource.wait`."""
        await self._log.wait(seconds)

    @property
    def scanning(self) -> bool:
        """Whether rows are still to come."""
        return self._table is not None

    def watermark(self) -> int | None:
        """See `LogSource.watermark`. None while rows are still to come."""
        return None if self._table is not None else self._log.watermark()

    def give_back(self, bucket: int, last: int | None) -> None:
        """See `LogSource.give_back`. Rows have no offsets, so all rows of the last chunk are given back."""
        if self._table is None:
            self._log.give_back(bucket, last)
        else:
            self._scanned = self._scanned_before

    def position(self) -> LogPosition:
        """Returns how far rows and changes were read."""
        scanning = self._table is not None
        scanned = self._scanned if scanning else None
        return replace(self._log.position(), scanned=scanned, views=self._views, scanning=scanning)

    def abort(self, error: ScanKvError) -> None:
        """Releases everything now. The next call of `next_chunk` raises `error`."""
        if self._table is not None:
            self._table.abort(error)
        self._log.abort(error)

    def close(self) -> None:
        """Releases everything. Closing twice is allowed."""
        if self._table is not None:
            self._table.close()
        self._log.close()
