"""Reads the rows of a changelog's range markers again, for a stream of changes that has reached the markers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from scankv.model.errors import ScanKvError
from scankv.model.expressions import evaluate
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.expressions import BoundPredicate
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.arrays.arrow_buffers import Mask
    from streaming_server.storage.changelog.range_markers import MarkerRecord

MOST_MARKERS: Final = 256
"""The most adjacent markers whose ranges are read at once. Finding them takes a few milliseconds."""


class RangeCursor(Protocol):
    """Reads the rows of some key ranges of a bucket, as of one instant."""

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows, possibly none; None at the proven end. Raises DataLoss."""

    def close(self) -> None:
        """Releases its resources. Closing twice is allowed."""


@dataclass(frozen=True, slots=True)
class OpenedRanges:
    """The rows of some key ranges, ready to be read. All of them are durable.

    Attributes:
        cursor: Reads complete rows, with the time of the last write as the last column if `unexpired` needs it.
        definition: The table as of the opening, which has the schema of the rows.
        unexpired: The predicate that is true for the rows that have not expired. None: rows do not expire.
        keys_of: Returns the encoded primary keys of rows.
        on_error: Called with each error of the cursor. Returns the error with its location.
    """

    cursor: RangeCursor
    definition: TableDefinition
    unexpired: BoundPredicate | None
    keys_of: Callable[[pa.RecordBatch], pa.Array]
    on_error: Callable[[ScanKvError], ScanKvError]


class RangeOpener(Protocol):
    """Opens key ranges of the buckets of a table."""

    async def open(self, bucket: int, ranges: KeyRanges) -> OpenedRanges:
        """Returns the rows of some ranges as of now, once they are durable. Raises ScanKvError."""


@dataclass(frozen=True, slots=True)
class RescannedRows:
    """Some rows of a rescan.

    Attributes:
        rows: The rows, complete.
        expired: Which of the rows have expired. None: no row has.
        definition: The table, with the schema of the rows.
        last_key: The encoded key of the last row, if more rows follow.
        is_last: Whether no more rows follow.
    """

    rows: pa.RecordBatch
    expired: Mask | None
    definition: TableDefinition
    last_key: bytes
    is_last: bool


class RangeRescan:
    """The rows of the ranges of adjacent markers, as of an instant after the last marker. Bound to the event loop.

    Memory: two chunks of rows. Pins files on disk while rows are left, until `close`.

    Args:
        markers: The markers, at least one.
        ranges: Opens the ranges.
        bucket: The bucket of the markers.
        on_opened: Called when `next_rows` may return rows for the first time.
        after: The rows up to this key were returned before. None: no row was.

    Attributes:
        start: The offset of the first marker.
        end: The offset after the last one.
        micros: The commit time of the first one.
    """

    def __init__(
        self,
        markers: Sequence[MarkerRecord],
        ranges: RangeOpener,
        bucket: int,
        on_opened: Callable[[], None],
        after: bytes | None = None,
    ) -> None:
        self.start, self.micros = markers[0].offset, markers[0].commit_micros
        self.end = markers[-1].offset + len(markers[-1].marker)
        keys = union_of([each.marker.keys for each in markers], after)
        self._task = asyncio.create_task(ranges.open(bucket, keys))
        self._task.add_done_callback(lambda _: on_opened())
        self._next: pa.RecordBatch | None = None

    @property
    def is_open(self) -> bool:
        """Whether the rows are open, or cannot be opened."""
        return self._task.done()

    def next_rows(self, max_rows: int, max_bytes: int) -> RescannedRows | None:
        """Returns the next rows; without rows only at the end. None: they are not open yet, or none was found so far.

        Takes a few milliseconds at most.

        Raises:
            ScanKvError: The rows cannot be opened or read.
        """
        if not self._task.done():
            return None
        opened = self._task.result()
        try:
            rows = opened.cursor.next_batch(max_rows, max_bytes)
        except ScanKvError as error:
            raise opened.on_error(error) from error.__cause__
        if rows is not None and not rows.num_rows:
            return None
        # One batch is held back, so that the last one is known to be the last.
        before, self._next = self._next, rows
        if rows is None:
            nothing = pa.RecordBatch.from_pylist([], opened.definition.schema.arrow)
            last = (nothing, None) if before is None else _split(before, opened)
            return RescannedRows(*last, opened.definition, b"", is_last=True)
        if before is None:
            return None
        last_key = opened.keys_of(before.slice(before.num_rows - 1))[0].as_py()
        return RescannedRows(*_split(before, opened), opened.definition, last_key, is_last=False)

    def close(self) -> None:
        """Releases everything. Closing twice is allowed."""
        self._next = None
        if not self._task.done():
            self._task.cancel()
        elif not self._task.cancelled() and self._task.exception() is None:
            self._task.result().cursor.close()


def _split(rows: pa.RecordBatch, opened: OpenedRanges) -> tuple[pa.RecordBatch, Mask | None]:
    """Returns the rows without the time of their last write, and which of them have expired. None: no row has."""
    schema = opened.definition.schema.arrow
    visible = pa.RecordBatch.from_arrays(rows.columns[: len(schema)], schema=schema)
    if opened.unexpired is None:
        return visible, None
    alive: Mask = evaluate(opened.unexpired, rows).to_numpy(zero_copy_only=False)
    return visible, None if alive.all() else ~alive


def union_of(ranges: Sequence[KeyRange], after: bytes | None = None) -> KeyRanges:
    """Returns the keys that are in any of some ranges. With `after`, only the keys after that one."""
    merged: list[KeyRange] = []
    for each in sorted(ranges, key=lambda one: one.start or b""):
        last = merged[-1] if merged else None
        if last is None or (last.end is not None and (each.start or b"") > last.end):
            merged.append(each)
        elif last.end is not None and (each.end is None or each.end > last.end):
            merged[-1] = KeyRange(last.start, each.end)
    if after is not None:
        rest = KeyRange(after + b"\0")
        merged = [each & rest for each in merged]
    return KeyRanges.of(*merged)
