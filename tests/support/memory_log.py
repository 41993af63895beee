"""A second `ChangeLog` for the contract tests: it keeps single changes in memory, without records or disk."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import groupby, islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.log_span import LogSpan
from streaming_server.storage.changelog.offsets import count_of, epoch_of
from streaming_server.storage.changelog.range_markers import MarkerReached, MarkerRecord, RangeMarker
from streaming_server.storage.changelog.records import Changes, LogRecord, RowKind
from streaming_server.storage.rocks.store import StoreBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scankv.model.tables.schema import TableDefinition


class MemoryBatch(StoreBatch):
    """A batch whose writes take effect when it is applied."""

    def __init__(self) -> None:
        self.effects: list[Callable[[], None]] = []

    def apply(self) -> None:
        """Applies the writes."""
        for effect in self.effects:
            effect()


@dataclass(frozen=True)
class _Change:
    """One change in its own record. The kinds of two changes show whether they are a pair."""

    record: LogRecord
    nbytes: int

    @property
    def kind(self) -> int:
        return int(self.record.changes.kinds[0])

    @property
    def micros(self) -> int:
        return int(self.record.commit_micros[0])


@dataclass(frozen=True)
class _Marker:
    """A range marker, which takes the place of one change."""

    record: MarkerRecord

    @property
    def micros(self) -> int:
        return self.record.commit_micros


class MemoryLog:
    """A `ChangeLog` whose batches are `MemoryBatch`es."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changes: dict[int, _Change | _Marker] = {}
        self._holds: dict[str, tuple[int, float]] = {}
        self._span = LogSpan(0, 0, (0,))

    @property
    def span(self) -> LogSpan:
        """See `ChangeLog`."""
        return self._span

    def append(self, batch: StoreBatch, changes: Changes | RangeMarker, *, schema_id: int, commit_micros: int) -> int:
        """See `ChangeLog`."""
        assert isinstance(batch, MemoryBatch)

        def effect() -> None:
            end, epoch = self._span.end, len(self._span.epoch_starts) - 1
            if isinstance(changes, RangeMarker):
                marker = MarkerRecord(self._span.offset_of(end), epoch, schema_id, commit_micros, changes)
                self._changes[end] = _Marker(marker)
                self._span = replace(self._span, end=end + 1)
                return
            for place in range(len(changes)):
                one = Changes(changes.kinds[place : place + 1], changes.rows.slice(place, 1))
                offset = self._span.offset_of(end) + place
                record = LogRecord(offset, epoch, schema_id, np.array([commit_micros]), one)
                self._changes[end + place] = _Change(record, one.rows.nbytes)
            self._span = replace(self._span, end=end + len(changes))

        batch.effects.append(effect)
        return 1 if isinstance(changes, RangeMarker) else int(changes.rows.nbytes)

    def read(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """See `ChangeLog`."""
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
        return [_joined(list(same)) for _, same in groupby(records, lambda record: (record.epoch, record.schema_id))]

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """See `ChangeLog`."""
        found = (self._changes.get(count) for count in range(count_of(start), count_of(end)))
        markers = takewhile(lambda each: isinstance(each, _Marker), found)
        return [each.record for each in islice(markers, most) if isinstance(each, _Marker)]

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """See `ChangeLog`."""
        counts = range(self._span.first, self._span.end)
        return self._span.offset_of(
            self._span.first + bisect_left(counts, micros, key=lambda count: self._changes[count].micros)
        )

    def hold(self, owner: str, offset: int, seconds: float | None = None) -> None:
        """See `ChangeLog`."""
        self._holds[owner] = count_of(offset), float("inf") if seconds is None else self._clock() + seconds

    def release(self, owner: str) -> None:
        """See `ChangeLog`."""
        self._holds.pop(owner, None)

    def trim(self, batch: StoreBatch, offset: int) -> int:
        """See `ChangeLog`."""
        assert isinstance(batch, MemoryBatch)
        held = [count for count, until in self._holds.values() if until > self._clock()]
        first = max(self._span.first, min([count_of(offset), self._span.end, *held]))

        def effect() -> None:
            self._changes = {count: change for count, change in self._changes.items() if count >= first}
            self._span = replace(self._span, first=first)

        batch.effects.append(effect)
        return first

    def lose_from(self, count: int) -> None:
        """Begins a new epoch without the changes from one on."""
        self._changes = {number: change for number, change in self._changes.items() if number < count}
        self._span = LogSpan(min(self._span.first, count), count, (*self._span.epoch_starts, count))

    def lose(self, count: int) -> None:
        """Removes one change, as damage does."""
        del self._changes[count]


def _joined(records: list[LogRecord]) -> LogRecord:
    assert all(epoch_of(before.offset) == epoch_of(after.offset) for before, after in pairwise(records))
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
        batch = MemoryBatch()
        kinds = kinds or [RowKind.INSERT] * len(rows)
        changes = Changes(np.array(kinds, np.uint8), pa.RecordBatch.from_arrays(columns, schema=schema))
        self.log.append(batch, changes, schema_id=schema_id, commit_micros=0)
        batch.apply()

    def mark(self, start: bytes, end: bytes) -> None:
        """Appends a range marker. It is not durable yet."""
        batch = MemoryBatch()
        self.log.append(batch, RangeMarker(start, end), schema_id=1, commit_micros=0)
        batch.apply()

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
        batch = MemoryBatch()
        first = self.log.trim(batch, self.log.span.end)
        batch.apply()
        return first

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
        self.log.hold(owner, offset)

    def release_log(self, owner: str) -> None:
        """See `LogTail`."""
        self.log.release(owner)

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
