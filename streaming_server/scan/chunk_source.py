"""The one interface between what is read and the stream that carries it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one bucket: a batch of at least one row."""

    bucket: int
    batch: pa.RecordBatch


class ChunkSource(Protocol):
    """Gives the rows of one consistent view, chunk by chunk; used from one thread at a time."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every chunk."""

    @property
    def schema_id(self) -> int:
        """The version of the table's schema that the chunks have."""

    @property
    def log_offsets(self) -> Mapping[int, int]:
        """For each bucket of the view, the offset of the first change that is not in it."""

    @property
    def row_estimate(self) -> int:
        """About how many rows there are."""

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """The next chunk of at most so many rows and about so many stored bytes, or None at the end.

        Takes a few milliseconds at most. None is a proof, not an absence: a source that cannot tell that it has given
        everything raises DataLoss.
        """

    def close(self) -> None:
        """Frees what the source holds. Closing twice is allowed."""
