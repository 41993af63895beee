"""A second `ChangeLog` for the contract tests, and a model of a replicated log: it keeps single changes in memory.

Owners follow one another on one `MemoryTopic`. It keeps the records of all of them in the order in which they arrived,
as a partition of a replicated log does, and never refuses one. So an owner that has been replaced may still send. Two
rules make that harmless. An owner begins with a *fence*, a record that makes readers ignore later records of earlier
owners. And it takes a record for durable only if the position of the record is the next one, or if it has read what
came in between and found no fence.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import groupby, islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss, Unavailable
from streaming_server.storage.changelog.change_log import ChangelogUsage, State
from streaming_server.storage.changelog.log_state import LogState
from streaming_server.storage.changelog.offsets import count_of, epoch_of
from streaming_server.storage.changelog.range_markers import MarkerReached, MarkerRecord, RangeMarker
from streaming_server.storage.changelog.records import Changes, LogRecord, RowKind
from streaming_server.storage.changelog.retention_holds import RetentionHolds
from streaming_server.storage.rocks.store_batch import StoreBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.changelog.segments import Segment


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


@dataclass(frozen=True)
class _Commit:
    """What one call of `append` has added.

    Attributes:
        entries: Its changes, or its marker.
        size: Their bytes.
        micros: The service time.
    """

    entries: Sequence[_Change | _Marker]
    size: int
    micros: int


class MemoryTopic:
    """The records of all owners of one log, in the order in which they arrived."""

    def __init__(self) -> None:
        # Each with the position of the fence of its owner. A fence has no commit.
        self._records: list[tuple[int, _Commit | None]] = []
        self.first = 0

    def fence(self) -> int:
        """Adds the fence of a new owner, and returns its position."""
        self._records.append((len(self._records), None))
        return len(self._records) - 1

    def send(self, fence: int, commit: _Commit) -> int:
        """Adds a record of the owner with this fence, even if another has replaced it; returns its position."""
        self._records.append((fence, commit))
        return len(self._records) - 1

    def is_fence(self, position: int) -> bool:
        """Whether the record at a position is a fence."""
        return self._records[position][1] is None

    def replay(self) -> tuple[list[_Commit], tuple[int, ...]]:
        """Returns the commits that count, and how many changes each fence comes after."""
        commits: list[_Commit] = []
        starts: list[int] = []
        latest = end = 0
        for position, (fence, commit) in enumerate(self._records):
            if commit is None:
                latest = position
                starts.append(end)
            elif fence == latest:
                commits.append(commit)
                end += len(commit.entries)
        return commits, tuple(starts)


class MemoryLog:
    """A `ChangeLog` whose batches are `MemoryBatch`es.

    Args:
        state: Returns the current state.
        topic: Where its records go.
        clock: Returns monotonic seconds, by which holds expire.
        service_micros: Returns the service time.
    """

    def __init__(
        self,
        state: Callable[[], LogState],
        topic: MemoryTopic | None = None,
        clock: Callable[[], float] = time.monotonic,
        service_micros: Callable[[], int] = lambda: 0,
    ) -> None:
        self.holds = RetentionHolds(clock)
        self._state = state
        self._topic = topic or MemoryTopic()
        self._service_micros = service_micros
        self._fence = self._sent = self._durable = 0
        self._is_replaced = False
        self._unsent: list[tuple[int, _Commit]] = []
        self._changes: dict[int, _Change | _Marker] = {}
        # Of each commit: the changes up to its end, their bytes, and the service time.
        self._marks: list[tuple[int, int, int]] = []

    @property
    def span(self) -> LogSpan:
        """See `ReadableLog`."""
        return self._state().log_span

    @property
    def durable_offset(self) -> int:
        """See `ChangeLog`."""
        return self._durable

    def recover(self, state: State, known: LogState | None = None) -> State:
        """See `ChangeLog`. Begins a new epoch, because nothing shows whether an earlier owner still writes."""
        self._fence = self._sent = self._topic.fence()
        commits, starts = self._topic.replay()
        for commit in commits:
            self._keep(commit)
        end = self._marks[-1] if self._marks else (0, 0, 0)
        first = self._topic.first
        self._changes = {count: change for count, change in self._changes.items() if count >= first}
        recovered = replace(
            state,
            epoch=len(starts) - 1,
            epoch_starts=starts,
            count=end[0],
            log_first=first,
            log_bytes=end[1],
            log_micros=end[2],
        )
        self._durable = recovered.log_offset
        return recovered

    def _keep(self, commit: _Commit) -> None:
        count, size, _ = self._marks[-1] if self._marks else (0, 0, 0)
        self._changes.update(enumerate(commit.entries, count))
        self._marks.append((count + len(commit.entries), size + commit.size, commit.micros))

    def append(
        self, batch: StoreBatch, state: State, changes: Changes | RangeMarker, *, schema_id: int, commit_micros: int
    ) -> State:
        """See `ChangeLog`."""
        assert isinstance(batch, MemoryBatch)
        self._check_owner()
        offset, epoch, count = state.log_offset, state.epoch, state.count
        entries: list[_Change | _Marker] = []
        if isinstance(changes, RangeMarker):
            entries.append(_Marker(MarkerRecord(offset, epoch, schema_id, commit_micros, changes)))
        else:
            for place in range(len(changes)):
                one = Changes(changes.kinds[place : place + 1], changes.rows.slice(place, 1))
                record = LogRecord(offset + place, epoch, schema_id, np.array([commit_micros]), one)
                entries.append(_Change(record, one.rows.nbytes))
        size = 1 if isinstance(changes, RangeMarker) else int(changes.rows.nbytes)
        commit = _Commit(entries, size, self._service_micros())
        batch.effects.append(lambda: self._keep(commit))
        batch.effects.append(lambda: self._unsent.append((count, commit)))
        end = count + len(entries)
        last_marker = end if isinstance(changes, RangeMarker) else state.last_marker
        return replace(
            state,
            count=end,
            clean=False,
            log_bytes=state.log_bytes + size,
            log_micros=commit.micros,
            last_marker=last_marker,
        )

    def sync(self, offset: int) -> None:
        """See `ChangeLog`."""
        self._check_owner()
        while self._unsent and self._unsent[0][0] < count_of(offset):
            _, commit = self._unsent.pop(0)
            position = self._topic.send(self._fence, commit)
            between = range(self._sent + 1, position)
            self._is_replaced = any(self._topic.is_fence(each) for each in between)
            self._check_owner()
            self._sent = position
        self._durable = offset

    def _check_owner(self) -> None:
        if self._is_replaced:
            raise Unavailable("another owner of the log has replaced this one")

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
        return [_joined(list(same)) for _, same in groupby(records, lambda record: (record.epoch, record.schema_id))]

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """See `ReadableLog`."""
        found = (self._changes.get(count) for count in range(count_of(start), count_of(end)))
        markers = takewhile(lambda each: isinstance(each, _Marker), found)
        return [each.record for each in islice(markers, most) if isinstance(each, _Marker)]

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """See `ReadableLog`."""
        span = self.span
        counts = range(span.first, span.end)
        return span.offset_of(span.first + bisect_left(counts, micros, key=lambda count: self._changes[count].micros))

    def reader(self, keys: KeyRange, definition: TableDefinition, *, reverse: bool = False) -> MemoryReader:
        """See `ReadableLog`."""
        span = self.span
        first = span.first if keys.start is None else span.count_before(keys.start)
        end = span.end if keys.end is None else span.count_before(keys.end)
        counts = range(first, end)
        return MemoryReader([self._changes.get(count) for count in (reversed(counts) if reverse else counts)])

    def trim(self, batch: StoreBatch, state: State, offset: int) -> State:
        """See `ChangeLog`."""
        held = self.holds.oldest()
        return self._remove_before(batch, state, min(count_of(offset), count_of(held[1]) if held else state.count))

    def clear(self, batch: StoreBatch, state: State) -> State:
        """See `ChangeLog`."""
        for owner in self.holds.owners:
            self.holds.release(owner)
        return self._remove_before(batch, state, state.count)

    def _remove_before(self, batch: StoreBatch, state: State, count: int) -> State:
        assert isinstance(batch, MemoryBatch)
        first = max(state.log_first, min(count, state.count))

        def effect() -> None:
            self._topic.first = first
            self._changes = {count: change for count, change in self._changes.items() if count >= first}

        batch.effects.append(effect)
        return replace(state, log_first=first)

    @property
    def is_rewrite_due(self) -> bool:
        """See `ChangeLog`. Never: the log has no records."""
        return False

    def next_segment(self, end: int, definition: TableDefinition) -> Segment | None:
        """See `ChangeLog`."""
        return None

    def put_segment(self, batch: StoreBatch, state: State, segment: Segment) -> State:
        """See `ChangeLog`."""
        return state

    def offset_of_bytes(self, size: int, *, round_down: bool = False) -> int:
        """See `ChangeLog`. Rounds to the end of a commit."""
        sizes = [mark[1] for mark in self._marks]
        found = bisect_left(sizes, size)
        if round_down:
            found -= found == len(sizes) or sizes[found] > size
        count = 0 if found < 0 else self._marks[found][0] if found < len(self._marks) else self._state().count
        return self._within(count)

    def bytes_before(self, offset: int) -> int:
        """See `ChangeLog`."""
        return next((size for count, size, _ in self._marks if count >= count_of(offset)), self._state().log_bytes)

    def offset_of_age(self, before: int, now: int) -> int:
        """See `ChangeLog`."""
        return self._within(max((count for count, _, micros in self._marks if micros <= before), default=0))

    def _within(self, count: int) -> int:
        span = self.span
        return span.offset_of(min(max(count, span.first), span.end))

    def set_age_precision(self, seconds: float) -> None:
        """See `ChangeLog`. Does nothing: ages are exact."""

    def usage(self) -> ChangelogUsage:
        """See `ChangeLog`."""
        span, held = self.span, self.holds.oldest()
        kept = self._state().log_bytes - self.bytes_before(span.offset_of(span.first))
        if held is None or count_of(held[1]) >= span.end:
            return ChangelogUsage(kept)
        return ChangelogUsage(kept, held[0], min(kept, self._state().log_bytes - self.bytes_before(held[1])))

    def close(self) -> None:
        """See `ChangeLog`."""
        self._is_replaced = True

    def lose(self, count: int) -> None:
        """Removes one change, as damage does."""
        del self._changes[count]


class MemoryReader:
    """A `LogReader` that returns one change at a time. None stands for a change that is missing."""

    def __init__(self, changes: Sequence[_Change | _Marker | None]) -> None:
        self._changes = list(changes)

    def read(self) -> LogRecord | None:
        """See `LogReader`."""
        if not self._changes:
            return None
        change = self._changes.pop(0)
        if not isinstance(change, _Change):
            raise DataLoss("the changelog has a gap")
        return change.record

    def close(self) -> None:
        """See `LogReader`."""
        self._changes = []


def _joined(records: list[LogRecord]) -> LogRecord:
    assert all(epoch_of(before.offset) == epoch_of(after.offset) for before, after in pairwise(records))
    first = records[0]
    kinds = np.concatenate([record.changes.kinds for record in records])
    times = np.concatenate([record.commit_micros for record in records])
    rows = pa.concat_batches([record.changes.rows for record in records])
    return LogRecord(first.offset, first.epoch, first.schema_id, times, Changes(kinds, rows))


class MemoryOwner:
    """An owner of a `MemoryLog`, and the state that its bucket would store.

    Args:
        topic: Where its records go. None: a new one.
        clock: Returns monotonic seconds, by which holds expire.
        service_micros: Returns the service time.

    Attributes:
        topic: Where its records go.
        log: The log.
        state: Its current state.
    """

    def __init__(
        self,
        topic: MemoryTopic | None = None,
        clock: Callable[[], float] = time.monotonic,
        service_micros: Callable[[], int] = lambda: 0,
    ) -> None:
        self.topic = topic or MemoryTopic()
        self._clocks = clock, service_micros
        self.restart()

    def restart(self) -> None:
        """Begins as a new owner, with what is durable."""
        self.log = MemoryLog(lambda: self.state, self.topic, *self._clocks)
        self.state = self.log.recover(LogState())

    def append(self, changes: Changes | RangeMarker, schema_id: int, micros: int) -> None:
        """Appends the changes of a commit, or a marker."""
        batch = MemoryBatch()
        state = self.log.append(batch, self.state, changes, schema_id=schema_id, commit_micros=micros)
        self._write(batch, state)

    def trim(self, offset: int) -> int:
        """Trims the changes before an offset; returns the count of the first change that is kept."""
        batch = MemoryBatch()
        self._write(batch, self.log.trim(batch, self.state, offset))
        return self.state.log_first

    def clear(self) -> None:
        """Removes all changes."""
        batch = MemoryBatch()
        self._write(batch, self.log.clear(batch, self.state))

    def _write(self, batch: MemoryBatch, state: LogState) -> None:
        batch.apply()
        self.state = state


class MemoryTail:
    """A `LogTail` over a `MemoryLog`. Writes become durable when the test calls `sync`."""

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self._owner = MemoryOwner()
        self.log = self._owner.log
        self.durable_offset = 0
        self.listeners: set[Callable[[], None]] = set()

    def write(self, *rows: tuple[Any, ...], kinds: list[RowKind] | None = None, schema_id: int = 1) -> None:
        """Appends changes in one commit, inserts by default. They are not durable yet."""
        schema = self._definition.schema_at(schema_id).arrow
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
        kinds = kinds or [RowKind.INSERT] * len(rows)
        changes = Changes(np.array(kinds, np.uint8), pa.RecordBatch.from_arrays(columns, schema=schema))
        self._owner.append(changes, schema_id, 0)

    def mark(self, start: bytes, end: bytes) -> None:
        """Appends a range marker. It is not durable yet."""
        self._owner.append(RangeMarker(start, end), 1, 0)

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
        return self._owner.trim(self.log.span.end)

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
