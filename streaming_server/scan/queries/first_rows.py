"""First rows: the result of a top-N whose order is that of the view that is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.limits import MAX_CHUNK_ROWS
from streaming_server.scan.queries.top_n import MAX_KEPT_BYTES, TopNCollector, too_large

if TYPE_CHECKING:
    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.chunk_source import Chunk
    from streaming_server.scan.queries.top_n import TopNSpec
    from streaming_server.scan.read_plan import ReadPlan

_SMALL_ROWS: Final = 256
_SMALL_BYTES: Final = 256 * 1024


class FirstRows:
    """The first rows of a view in its order, decoded. Use it from one thread at a time.

    Args:
        spec: The requested rows.
        definition: The table.
    """

    most_rows: Final = MAX_CHUNK_ROWS
    is_due: Final = False

    def __init__(self, spec: TopNSpec, definition: TableDefinition) -> None:
        self._n = spec.n
        self._schema = definition.schema.select(spec.columns)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    @property
    def is_small(self) -> bool:
        """Whether `result` takes less than a millisecond."""
        return self._n <= _SMALL_ROWS and self._bytes <= _SMALL_BYTES

    def add(self, chunk: Chunk) -> None:
        """Adds the next rows. Raises RequestTooLarge if all of them take too much memory."""
        self._batches.append(chunk.batch)
        self._bytes += chunk.batch.nbytes
        if self._bytes > MAX_KEPT_BYTES:
            raise too_large(self._n, MAX_KEPT_BYTES)

    def settle(self) -> None:
        """Does nothing: no row is superfluous."""

    def result(self) -> pa.RecordBatch:
        """Returns the rows."""
        if not self._batches:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        # A source that filters rows may return more of them than the limit.
        return pa.concat_batches(self._batches).slice(0, self._n)

    def first_rows(self) -> tuple[pa.RecordBatch, ScanKvError | None]:
        """Returns the rows, as `TopNCollector.first_rows` does."""
        return self.result(), None


def collector_of(spec: TopNSpec, plan: ReadPlan, definition: TableDefinition) -> FirstRows | TopNCollector:
    """Returns what makes a top-N of the rows that a plan of `bind_top_n` reads."""
    return FirstRows(spec, definition) if plan.ordered else TopNCollector(spec, definition)
