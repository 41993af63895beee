"""The tail of a changelog in memory, for unit tests of streams. It keeps single changes, in one epoch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import groupby, islice, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.log_span import LogSpan
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import MarkerReached, MarkerRecord, RangeMarker
from streaming_server.storage.changelog.records import Changes, LogRecord, RowKind
from streaming_server.storage.changelog.retention_holds import RetentionHolds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scankv.model.tables.schema import TableDefinition


@dataclass(frozen=True)
class _Change:
    """One change in its own record. The kinds of two changes show whether they are a pair."""

    record: LogRecord
    nbytes: int

    @property
    def kind(self) -> int:
        return int(self.record.changes.kinds[0])


@dataclass(frozen=True)
class _Marker:
    """A range marker, which takes the place of one change."""

    record: MarkerRecord


class MemoryLog:
    """The changes, with their holds. Attribute `span`: Which there are."""

    def __init__(self) -> None:
        self.holds = RetentionHolds(time.monotonic)
        self.span = LogSpan(0, 0, (0,))
        self._changes: dict[int, _Change | _Marker] = {}

    def append(self, changes: Changes, schema_id: int) -> None:
        """Appends the changes of a commit."""
        for place in range(len(changes)):
            one = Changes(changes.kinds[place : place + 1], changes.rows.slice(place, 1))
            self._keep(_Change(LogRecord(self.span.end, 0, schema_id, np.array([0]), one), one.rows.nbytes))

    def mark(self, marker: RangeMarker) -> None:
        """Appends a range marker."""
        self._keep(_Marker(MarkerRecord(self.span.end, 0, 1, 0, marker)))

    def _keep(self, change: _Change | _Marker) -> None:
        self._changes[self.span.end] = change
        self.span = LogSpan(self.span.first, self.span.end + 1, (0,))

    def trim(self) -> int:
        """Removes all changes that are not held, and returns the first remaining one."""
        held = self.holds.oldest()
        first = max(self.span.first, held[1] if held else self.span.end)
        self.span = LogSpan(first, self.span.end, (0,))
        self._changes = {count: change for count, change in self._changes.items() if count >= first}
        return first

    def lose(self, count: int) -> None:
        """Removes one change, as damage does."""
        del self._changes[count]

    def read(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """See `ReadableLog`."""
        found: list[_Change] = []
        for count in range(count_of(start), count_of(end)):
            is_half = bool(found) and found[-1].kind == RowKind.UPDATE_BEFORE
            if len(found) == max_changes:
                if is_half and len(found) > 1:
                    found.pop()
                break
            if sum(change.nbytes for change in found) >= max_bytes and not is_half:
                break
            if count not in self._changes:
                raise DataLoss(f"the changelog has no change {count}")
            change = self._changes[count]
            if isinstance(change, _Marker):
                if not found:
                    raise MarkerReached.at(change.record, "the log in memory")
                break
            found.append(change)
        records = [change.record for change in found]
        return [_joined(list(same)) for _, same in groupby(records, lambda record: record.schema_id)]

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """See `ReadableLog`."""
        found = (self._changes.get(count) for count in range(count_of(start), count_of(end)))
        markers = takewhile(lambda each: isinstance(each, _Marker), found)
        return [each.record for each in islice(markers, most) if isinstance(each, _Marker)]


def _joined(records: list[LogRecord]) -> LogRecord:
    first = records[0]
    kinds = np.concatenate([record.changes.kinds for record in records])
    times = np.concatenate([record.commit_micros for record in records])
    rows = pa.concat_batches([record.changes.rows for record in records])
    return LogRecord(first.offset, first.epoch, first.schema_id, times, Changes(kinds, rows))


class MemoryTail:
    """A `LogTail` over a `MemoryLog`. Writes become durable when the test calls `sync`."""

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self.log = MemoryLog()
        self.durable_offset = 0
        self.listeners: set[Callable[[], None]] = set()

    def write(self, *rows: tuple[Any, ...], kinds: list[RowKind] | None = None, schema_id: int = 1) -> None:
        """Appends changes in one commit, inserts by default. They are not durable yet."""
        schema = self._definition.schema_at(schema_id).arrow
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
        kinds = kinds or [RowKind.INSERT] * len(rows)
        changes = Changes(np.array(kinds, np.uint8), pa.RecordBatch.from_arrays(columns, schema=schema))
        self.log.append(changes, schema_id)

    def mark(self, start: bytes, end: bytes) -> None:
        """Appends a range marker. It is not durable yet."""
        self.log.mark(RangeMarker(start, end))

    def sync(self) -> None:
        """Makes all writes durable."""
        self.durable_offset = self.log.span.end
        for listener in list(self.listeners):
            listener()

    def put(self, *keys: int) -> None:
        """Writes rows that have only a key, and makes them durable."""
        self.write(*((key,) for key in keys))
        self.sync()

    def trim(self) -> int:
        """Trims all changes that are not held, and returns the first remaining one."""
        return self.log.trim()

    def read_log(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """See `LogTail`."""
        return self.log.read(start, end, definition, max_changes=max_changes, max_bytes=max_bytes)

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """See `LogTail`."""
        return self.log.read_markers(start, end, most=most)

    def has_markers_since(self, offset: int) -> bool:
        """See `LogTail`."""
        span = self.log.span
        return any(self.log.read_markers(count, span.end, most=1) for count in range(count_of(offset), span.end))

    def retain_log(self, owner: str, offset: int) -> None:
        """See `LogTail`."""
        self.log.holds.hold(owner, offset)

    def release_log(self, owner: str) -> None:
        """See `LogTail`."""
        self.log.holds.release(owner)

    def is_quiet_at(self, offset: int) -> bool:
        """See `LogTail`."""
        return self.log.span.end == offset

    def on_durable(self, listener: Callable[[], None]) -> Callable[[], None]:
        """See `LogTail`."""
        self.listeners.add(listener)
        return lambda: self.listeners.discard(listener)


class StopsAt:
    """A `LogStops`. The stop at a time is known once `settle` is called at that time.

    Attributes:
        offsets: The offsets of the stop; None as long as they are not known.
        left: How long until they are known, in seconds.
        then: The offsets that become known then.
    """

    def __init__(self, offsets: Mapping[int, int] | None = None, left: float | None = None) -> None:
        self.offsets = offsets
        self.left = left
        self.then: Mapping[int, int] = {}

    def seconds_left(self) -> float | None:
        """See `LogStops`."""
        return self.left

    async def settle(self) -> None:
        """See `LogStops`."""
        self.offsets, self.left = self.then, None
