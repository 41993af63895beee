"""The one interface between what is read and the stream that carries it."""

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

    StoredRows: TypeAlias = Callable[[pa.Array], pa.Array]
    """Gives rows as they are stored, of a batch whose rows lie elsewhere as Arrow: those of some places in it."""


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """A batch as an Arrow IPC message, and the CRC32C of its bytes."""

    data: pa.Buffer
    crc32c: int

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> BatchMessage:
        """Serialises a batch."""
        data = batch.serialize()
        return cls(data, google_crc32c.value(data))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in the source's order; none where rows were read and none of them is asked for.

    Attributes:
        bucket: Where they come from; 0 when the source has them of several buckets in one order.
        batch: The rows.
        message: The same as an Arrow IPC message, where there is one already; None: serialise them.
        stored: Gives some of the rows as they are stored, where these are no column of the batch. None: they are, if
            they were asked for.
        changes: Of a stream of changes, what is said of each row.
    """

    bucket: int
    batch: pa.RecordBatch
    message: BatchMessage | None = None
    stored: StoredRows | None = None
    changes: ChangeColumns | None = None


class Waiting(enum.Enum):
    """What a source gives that has nothing to give yet."""

    WAITING = enum.auto()


WAITING: Final = Waiting.WAITING


@dataclass(frozen=True, slots=True)
class View:
    """Which state of a table is read.

    Attributes:
        log_offsets: For each bucket, the offset of the first change that is not in it.
        micros: When it was taken, in microseconds since 1970.
        rows: About how many rows it has. None: not known.
    """

    log_offsets: Mapping[int, int]
    micros: int
    rows: int | None


def total_rows(counts: Iterable[int | None]) -> int | None:
    """How many rows some buckets have together; None where that is not known of one of them."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source has been read: everything of the buckets before `bucket`, and of it up to and with `key`.

    Of a source with one order over all buckets, everything up to and with `key`, whatever the bucket.
    """

    bucket: int
    key: bytes


class Cursor(Protocol):
    """Reads one bucket for a source. The rows are of the moment when it was made."""

    @property
    def rows_scanned(self) -> int:
        """Rows read so far."""

    @property
    def message(self) -> BatchMessage | None:
        """The batch just given as an Arrow IPC message, where it lies there as one. Raises DataLoss."""

    @property
    def stored(self) -> StoredRows | None:
        """Gives rows of the batch just given as they are stored, where they lie as Arrow. Raises DataLoss."""

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which it has read, None before the first. Raises DataLoss for a damaged row."""

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The next rows that are asked for, perhaps none; None at the end, which is proven.

        Takes a few milliseconds at most: where many rows were deleted, `last_key` moves without any row.
        """

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | pa.StructArray | None:
        """The next rows, perhaps none; None at the end, which is proven.

        All of them as they are stored; or, where they lie as Arrow, those asked for as structs, see `ordered_forms`.
        """

    def close(self) -> None:
        """Frees what it holds. Closing twice is allowed."""


class ChunkSource(Protocol):
    """Gives the rows of one consistent view, chunk by chunk; used from one thread at a time."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every chunk."""

    @property
    def schema_id(self) -> int:
        """The version of the table's schema that the chunks have."""

    @property
    def view(self) -> View:
        """What is read."""

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """The next chunk: of at most so many rows and about so many stored bytes; None at the end.

        Takes a few milliseconds at most. None is a proof, not an absence: a source that cannot tell that it has given
        everything raises DataLoss.
        """

    def position(self) -> Position | None:
        """How far the chunks given so far reach; None where that is not known, and there were no rows yet."""

    def abort(self, error: ScanKvError) -> None:
        """Frees what the source holds now; whoever asks for the next chunk gets the error."""

    def close(self) -> None:
        """Frees what the source holds. Closing twice is allowed."""
