"""The interfaces between cursors, sources and streams: chunks of rows, and the view that they belong to."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from scankv.model.changes.change_columns import ChangeColumns
    from scankv.model.errors import ScanKvError
    from scankv.model.keys.key_range import KeyRange

    StoredRows: TypeAlias = Callable[[pa.Array], pa.Array]
    """Returns the rows at some positions of a batch in stored form, if storage has the batch as Arrow."""


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """A batch as an Arrow IPC message, with the CRC32C of its bytes."""

    data: pa.Buffer
    crc32c: int

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> BatchMessage:
        data = batch.serialize()
        return cls(data, google_crc32c.value(data))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in the order of their source. A chunk without rows means that rows were read and none of them matched.

    Attributes:
        bucket: The bucket of the rows; 0 if the source merges several buckets into one order.
        batch: The rows.
        message: The batch as an Arrow IPC message, if the source has one already. None: serialize the batch.
        stored: Returns some of the rows in stored form, if the batch has no column of stored rows. None: the batch has
            such a column if it was requested.
        changes: In a stream of changes, the change columns of the rows.
        cleared: In a stream of changes, the deletions of key ranges before the next chunk, with their offsets. A chunk
            has either these or rows.
    """

    bucket: int
    batch: pa.RecordBatch
    message: BatchMessage | None = None
    stored: StoredRows | None = None
    changes: ChangeColumns | None = None
    cleared: tuple[tuple[KeyRange, int], ...] = ()


class Waiting(enum.Enum):
    """The result of a source that has no data yet."""

    WAITING = enum.auto()


WAITING: Final = Waiting.WAITING


@dataclass(frozen=True, slots=True)
class View:
    """The state of a table that is read.

    Attributes:
        log_offsets: For each bucket, the offset of the first change that is not in the view.
        micros: When the view was taken, in microseconds since 1970 UTC.
        rows: The approximate number of rows. None: unknown.
    """

    log_offsets: Mapping[int, int]
    micros: int
    rows: int | None


def total_rows(counts: Iterable[int | None]) -> int | None:
    """Sums the row counts of some buckets; None if one of them is unknown."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))


@dataclass(frozen=True, slots=True)
class ScanPosition:
    """A position in a source: all buckets before `bucket` were read, and `bucket` up to and including `key`.

    A source with one order over all buckets has read everything up to and including `key`, whatever the bucket.
    """

    bucket: int
    key: bytes


class Cursor(Protocol):
    """Reads one bucket for a source, as of the instant when the cursor was created."""

    @property
    def rows_scanned(self) -> int:
        """The number of rows read so far."""

    @property
    def message(self) -> BatchMessage | None:
        """The current batch as an Arrow IPC message. None: storage has no such message. Raises DataLoss."""

    @property
    def stored(self) -> StoredRows | None:
        """Returns rows of the current batch in stored form. None: the rows are not stored as Arrow. Raises DataLoss."""

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which the cursor has read, None before the first row. Raises DataLoss."""

    def prefetch(self, max_rows: int, max_bytes: int) -> bool | None:
        """Does a part of the work of `next_batch`, which takes about a millisecond.

        The next call of another method must be `prefetch` or `next_batch`, with the same arguments, or `close`.

        Returns:
            Whether the rest of the work takes about a millisecond. None: no more rows exist, which `next_batch` proves.

        Raises:
            DataLoss: As for `next_batch`.
        """

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows that match, possibly none; None at the proven end.

        Takes a few milliseconds at most. Where many rows were deleted, `last_key` advances without any row.
        """

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | pa.StructArray | None:
        """Returns the next rows, possibly none; None at the proven end.

        Returns either all rows, in stored form, or, if storage has the rows as Arrow, the matching rows as structs. See
        `row_representations`.
        """

    def close(self) -> None:
        """Releases its resources. Closing twice is allowed."""


class ChunkSource(Protocol):
    """Returns the rows of one consistent view, chunk by chunk. Use it from one thread at a time."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every chunk."""

    @property
    def schema_id(self) -> int:
        """The version of the table's schema that the chunks have."""

    @property
    def view(self) -> View:
        """The view that is read."""

    @property
    def rows_scanned(self) -> int:
        """The number of rows read from storage so far."""

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Does a part of the work of `next_chunk`, and returns whether the rest takes about a millisecond.

        So a caller on the event loop can let other tasks run before the chunk is complete. The next call of another
        method must be `prefetch` or `next_chunk`, with the same arguments, or `abort` or `close`.

        Raises:
            DataLoss, ScanKvError: As for `next_chunk`.
        """

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """Returns the next chunk, of at most `max_rows` rows and about `max_bytes` stored bytes; None at the end.

        Takes a few milliseconds at most. None is a proof: a source that cannot prove that it has returned everything
        raises DataLoss.
        """

    def position(self) -> ScanPosition | None:
        """Returns how far the chunks returned so far reach. None: unknown, because no row was found yet."""

    def abort(self, error: ScanKvError) -> None:
        """Releases its resources now. The next call of `next_chunk` raises `error`."""

    def close(self) -> None:
        """Releases its resources. Closing twice is allowed."""
