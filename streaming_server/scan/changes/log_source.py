"""The changes of a table as they are committed: reads the changelogs of its buckets, and waits for more."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from streaming_server.scan.changes.log_plan import check_has_changes
from streaming_server.scan.changes.log_token import NO_RESCANS, LogPosition, NetPosition, RescanPosition
from streaming_server.scan.changes.range_rescan import MOST_MARKERS, RangeRescan
from streaming_server.scan.chunk_source import WAITING, View, Waiting
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import MarkerReached
from streaming_server.storage.cursors.cursor import SHORT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.columns import ColumnDefinition
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.changes.already_applied import AlreadyAppliedFilter
    from streaming_server.scan.changes.change_rows import ChangeRows
    from streaming_server.scan.changes.net_changes import NetChanges, NetChangesFactory
    from streaming_server.scan.changes.range_rescan import RangeOpener
    from streaming_server.scan.chunk_source import Chunk
    from streaming_server.storage.changelog.range_markers import MarkerRecord
    from streaming_server.storage.changelog.records import LogRecord


class LogTail(Protocol):
    """The part of the changelog of one bucket that a stream may read.

    That is the durable part, or for streams that ask for it, everything that is applied.
    """

    @property
    def durable_offset(self) -> int:
        """The offset after the last change that the stream may read."""

    def read_log(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """Reads the changes from `start` up to, but excluding, `end`, as `ChangeLog.read`.

        Raises:
            PositionExpired, DataLoss: The changes cannot be read.
        """

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """Reads the range markers from an offset on, as `ChangeLog.read_markers`. Raises the errors of `read_log`."""

    def has_markers_since(self, offset: int) -> bool:
        """Whether the changelog has a range marker at an offset or after it."""

    def retain_log(self, owner: str, offset: int) -> None:
        """Places a retention hold on the changes from an offset on, until `release_log`."""

    def release_log(self, owner: str) -> None:
        """Releases the hold."""

    def is_quiet_at(self, offset: int) -> bool:
        """Whether no change from this offset on is durable or about to be."""

    def on_durable(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` whenever more changes are durable, until the returned function is called."""


class LogStops(Protocol):
    """Where a stream of changes ends."""

    @property
    def offsets(self) -> Mapping[int, int] | None:
        """For each bucket the offset where the stream ends. None: it does not end, or the offsets are not known yet."""

    def seconds_left(self) -> float | None:
        """Returns the seconds until `settle` can determine the offsets. None: they are known, or never will be."""

    async def settle(self) -> None:
        """Determines the offsets, when it is time."""


class _RunningCatchUp:
    """The compacted catch-up of one bucket, in progress."""

    def __init__(self, changes: NetChanges, on_progress: Callable[[], None]) -> None:
        self.changes = changes
        self._task = asyncio.create_task(changes.run(on_progress))
        self._task.add_done_callback(lambda _: on_progress())

    def check(self) -> None:
        """Raises the error of the catch-up if it has failed."""
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def cancel(self) -> None:
        self._task.cancel()


@dataclass(frozen=True, slots=True)
class _Records:
    """The next changes of a bucket, from the offset `start` on, with the definition that has their schemas."""

    bucket: int
    start: int
    definition: TableDefinition
    records: Sequence[LogRecord]


class LogSource:
    """A `ChunkSource` over the changelogs of some buckets, from given offsets on.

    Buckets with unread changes take turns. A commit wakes a source that waits. Between its steps, the source holds no
    iterator and no file, unless it reads the rows of range markers again; its retention hold keeps the changes that it
    has not read.

    Args:
        owner: The name of the source's retention hold.
        rows: Builds the chunks.
        tails: The changelogs, by bucket.
        view: Has the offsets where each bucket resumes.
        stops: Where the stream ends.
        latest: Returns the current definition of the table.
        applied: Removes the changes that the rows sent earlier already contain. None: all changes are new.
        net_changes: Computes the net changes of buckets with a long backlog. None: every change is read.
        started: The catch-ups that earlier streams have started, by bucket. Needs `net_changes`.
        ranges: Opens the rows of range markers, which are then returned as upserts. None: the source fails at a marker.
        clears: Whether the reader drops its rows of deleted ranges. If not, the source fails at the marker of one.
        rescanned: How far earlier streams have read the rows of range markers, by bucket.
        now_micros: Returns the current commit time. No later commit has an earlier time.
    """

    def __init__(
        self,
        owner: str,
        rows: ChangeRows,
        tails: Mapping[int, LogTail],
        view: View,
        stops: LogStops,
        latest: Callable[[], TableDefinition],
        applied: AlreadyAppliedFilter | None = None,
        net_changes: NetChangesFactory | None = None,
        started: Mapping[int, NetPosition] | None = None,
        ranges: RangeOpener | None = None,
        rescanned: Mapping[int, RescanPosition] = NO_RESCANS,
        *,
        clears: bool = False,
        now_micros: Callable[[], int],
    ) -> None:
        self._now_micros = now_micros
        self._clears = clears
        self._applied = applied
        self.view = view
        self.rows_scanned = 0
        self._owner = owner
        self._rows = rows
        self._tails = dict(tails)
        self._offsets = dict(view.log_offsets)
        self._stops = stops
        self._latest = latest
        self._turn = sorted(tails)
        self._wakeup = asyncio.Event()
        self._aborted: ScanKvError | None = None
        # What `prefetch` has read for the next chunk.
        self._read_ahead: _Records | None = None
        self._net_changes = net_changes
        self._catch_ups: dict[int, _RunningCatchUp] = {}
        self._ranges = ranges
        self._rescans: dict[int, RangeRescan] = {}
        self._rescanned = dict(rescanned)
        # The offset and the place to give rows of the last chunk back to. None: they are not from a rescan.
        self._rescanned_from: tuple[int, RescanPosition | None] | None = None
        self._closers = [tail.on_durable(self._wakeup.set) for tail in self._tails.values()]
        for bucket, offset in self._offsets.items():
            self._tails[bucket].retain_log(owner, offset)
        for bucket, position in (started or {}).items():
            self._start_catch_up(bucket, position)

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

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Reads changes for the next chunk, but does not decode them. See `ChunkSource`."""
        if self._aborted is not None or self._read_ahead is not None or self._stops.seconds_left() == 0:
            return True
        check_has_changes(self._latest())
        began = time.thread_time()
        for bucket in self._turn:
            start, end = self._offsets[bucket], self._readable_end(bucket)
            if count_of(start) < count_of(end):
                if self._reads_every_change(bucket, end) and bucket not in self._rescans:
                    with suppress(MarkerReached):  # `next_chunk` will reach it as well.
                        self._read_ahead = self._read_records(bucket, end, max_rows, max_bytes)
                break
        # Without records, as before a marker, there is nothing to come back for.
        return self._read_ahead is None or time.thread_time() - began < SHORT_SECONDS

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | Waiting | None:
        """Returns the next changes of one bucket; WAITING if no change is unread yet; None at the proven end.

        Raises:
            PositionExpired, DataLoss: The changes cannot be read.
            RangeNotTracked: The changes of a key range are not in the changelog, and must not be replaced by its rows;
                or the following changes lack the rows before them.
            InvalidRequest: The table has no changelog any more.
            ScanKvError: The error given to `abort`.
        """
        if self._aborted is not None:
            raise copy(self._aborted)
        check_has_changes(self._latest())
        self._wakeup.clear()
        if self._stops.seconds_left() == 0:  # the unread changes may come after the stop
            return WAITING
        for turn, bucket in enumerate(self._turn):
            end = self._readable_end(bucket)
            if count_of(self._offsets[bucket]) < count_of(end):
                chunk = self._next_chunk_of(bucket, end, max_rows, max_bytes)
                if chunk is not None:
                    self._turn = [*self._turn[turn + 1 :], *self._turn[: turn + 1]]
                    return chunk
        stops = self._stops.offsets
        if stops is not None and all(count_of(self._offsets[b]) >= count_of(stop) for b, stop in stops.items()):
            return None
        return WAITING

    def _readable_end(self, bucket: int) -> int:
        durable, stops = self._tails[bucket].durable_offset, self._stops.offsets
        return durable if stops is None else min(durable, stops[bucket], key=count_of)

    def _next_chunk_of(self, bucket: int, end: int, max_rows: int, max_bytes: int) -> Chunk | None:
        """Returns the next changes of a bucket that has some; None while they are being computed or opened."""
        self._rescanned_from = None
        if bucket in self._rescans:
            return self._read_rescan(bucket, max_rows, max_bytes)
        net_changes = self._net_changes
        if net_changes is None or self._reads_every_change(bucket, end):
            try:
                return self._read(bucket, end, max_rows, max_bytes)
            except MarkerReached as reached:
                if reached.record.marker.changelogs is not None:
                    return self._pass_changelog_change(bucket, reached)
                if self._ranges is None or (reached.record.marker.is_deletion and not self._clears):
                    raise
                return self._start_rescan(bucket, end, self._ranges)
        if bucket not in self._catch_ups:
            self._start_catch_up(bucket, NetPosition(end))
        catch_up = self._catch_ups[bucket]
        catch_up.check()
        if catch_up.changes.is_done:
            self._advance(bucket, catch_up.changes.position.end)
            self.rows_scanned += catch_up.changes.changes_read
            del self._catch_ups[bucket]
            return self._rows.empty_chunk(bucket)
        if not catch_up.changes.is_ready:
            return None
        changes = catch_up.changes
        return self._rows.chunk_of_net_changes(
            changes.take(max_rows), bucket, self._latest(), changes.position.schema_id
        )

    def _reads_every_change(self, bucket: int, end: int) -> bool:
        """Whether the next changes of a bucket are read one by one, and not as net changes."""
        if self._net_changes is None or self._applied is not None:
            return True
        if bucket in self._catch_ups:
            return False
        start = self._offsets[bucket]
        lag = count_of(end) - count_of(start)
        if lag <= self._net_changes.lag_threshold or self._tails[bucket].has_markers_since(start):
            return True
        # The reader may have rows that are newer than the start, so a net change from the start is not exact for it.
        return self._may_have_newer_rows(bucket)

    def _may_have_newer_rows(self, bucket: int) -> bool:
        """Whether the reader may have rows from a rescan that are newer than the changes that it reads now."""
        return self._ranges is not None and self._tails[bucket].has_markers_since(0)

    def _start_catch_up(self, bucket: int, position: NetPosition) -> None:
        assert self._net_changes is not None
        changes = self._net_changes.net_changes(bucket, self._offsets[bucket], position)
        self._catch_ups[bucket] = _RunningCatchUp(changes, self._wakeup.set)

    def _pass_changelog_change(self, bucket: int, reached: MarkerReached) -> Chunk:
        """Continues after a change of the option `changelog`, or raises `reached` if the reader could misread it.

        | from | to | reader |
        |---|---|---|
        | upsert | full | continues: `-U` comes in addition, and the rows of `-D` are complete |
        | full | upsert | a reader that rescans continues, since it needs no `-U`; any other one would miss `-U` |
        """
        record = reached.record
        _, after = record.marker.changelogs or ("", "")
        if after != "full":
            if self._ranges is None:
                raise reached
            self._rows.lose_before_images(self._latest())
        self._advance(bucket, record.offset + len(record.marker))
        return self._rows.empty_chunk(bucket)

    def _start_rescan(self, bucket: int, end: int, ranges: RangeOpener) -> Chunk | None:
        """Starts to read the rows of the next markers again.

        Returns a chunk without rows if the markers are skipped instead, or if ranges are cleared before.
        """
        found = self._tails[bucket].read_markers(self._offsets[bucket], end, most=MOST_MARKERS)
        markers = [*takewhile(self._can_rescan, found)]
        place = self._rescanned.pop(bucket, None)
        if place is not None:
            # Rows of later markers may have changed before the place, after an earlier stream had read them.
            known = [*takewhile(lambda each: count_of(each.offset) < count_of(place.end), markers)]
            if known:
                markers, self._rescanned[bucket] = known, place
        if markers[-1].commit_micros < self._rows.not_before:
            self._advance(bucket, markers[-1].offset + len(markers[-1].marker))
            return self._rows.empty_chunk(bucket)
        after = self._rescanned[bucket].key if bucket in self._rescanned else None
        self._rescans[bucket] = RangeRescan(markers, ranges, bucket, self._wakeup.set, after)
        if after is not None:
            return None  # An earlier stream has cleared the ranges. What it has returned since must stay.
        deleted = tuple((each.marker.keys, each.offset) for each in markers if each.marker.is_deletion)
        return replace(self._rows.empty_chunk(bucket), cleared=deleted) if deleted else None

    def _can_rescan(self, record: MarkerRecord) -> bool:
        marker = record.marker
        return marker.changelogs is None and (self._clears or not marker.is_deletion)

    def _read_rescan(self, bucket: int, max_rows: int, max_bytes: int) -> Chunk | None:
        """Returns the next rows of the range markers of a bucket; None while they are being opened."""
        rescan = self._rescans[bucket]
        read = rescan.next_rows(max_rows, max_bytes)
        if read is None:
            return None if not rescan.is_open else self._rows.empty_chunk(bucket)
        chunk = self._rows.chunk_of_rescan(read, bucket, rescan.start, rescan.micros)
        self.rows_scanned += read.rows.num_rows
        self._rescanned_from = rescan.start, self._rescanned.pop(bucket, None)
        if read.is_last:
            self._rescans.pop(bucket).close()
            self._advance(bucket, rescan.end)
        else:
            self._rescanned[bucket] = RescanPosition(rescan.end, read.last_key)
        return chunk

    def _advance(self, bucket: int, offset: int) -> None:
        self._offsets[bucket] = offset
        if self._applied is not None and self._applied.is_exhausted(self._offsets):
            self._applied = None  # tokens then omit the views as well
        self._tails[bucket].retain_log(self._owner, offset)

    def _read(self, bucket: int, end: int, max_rows: int, max_bytes: int) -> Chunk:
        start, read = self._offsets[bucket], self._read_ahead
        if read is None or (read.bucket, read.start) != (bucket, start):
            read = self._read_records(bucket, end, max_rows, max_bytes)
        self._read_ahead = None
        last = read.records[-1]
        chunk = self._rows.chunk_of_records(
            read.records,
            bucket,
            read.definition,
            self._applied,
            deletes_unmatched=self._may_have_newer_rows(bucket),
        )
        self.rows_scanned += count_of(last.offset) + len(last.changes) - count_of(start)
        self._advance(bucket, last.offset + len(last.changes))
        return chunk

    def _read_records(self, bucket: int, end: int, max_rows: int, max_bytes: int) -> _Records:
        definition, start = self._latest(), self._offsets[bucket]
        # At least two, since an update before and its update after stay together.
        records = self._tails[bucket].read_log(
            start, end, definition, max_changes=max(max_rows, 2), max_bytes=max_bytes
        )
        return _Records(bucket, start, definition, records)

    async def wait(self, seconds: float) -> None:
        """Returns when there may be more changes, or after `seconds`."""
        due = self._stops.seconds_left()
        if due == 0:
            await self._stops.settle()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds if due is None else min(seconds, due)):
                await self._wakeup.wait()

    @property
    def scanning(self) -> bool:
        """Always False: the source has changes only."""
        return False

    def watermark(self) -> int | None:
        """Returns the time, in microseconds since 1970 UTC, before which the source has read all changes; else None."""
        # Read the clock first, so that no later commit has an earlier time.
        now = self._now_micros()
        return now if all(self._tails[b].is_quiet_at(offset) for b, offset in self._offsets.items()) else None

    def give_back(self, bucket: int, last: int | None) -> None:
        """Gives back the changes of the last chunk after the offset `last` of a bucket."""
        assert last is not None
        if self._rescanned_from is not None:
            # The rows of the complete chunk come again.
            self._offsets[bucket], place = self._rescanned_from
            if place is None:
                self._rescanned.pop(bucket, None)
            else:
                self._rescanned[bucket] = place
        elif bucket not in self._catch_ups:  # a catch-up keeps its own count; the limit ends the stream
            self._offsets[bucket] = last + 1

    def position(self) -> LogPosition:
        """Returns how far each bucket was read."""
        net = {bucket: catch_up.changes.position for bucket, catch_up in self._catch_ups.items()}
        views = () if self._applied is None else self._applied.views
        return LogPosition(self._offsets, views=views, net=net, rescans=self._rescanned)

    @property
    def offsets(self) -> Mapping[int, int]:
        """For each bucket the offset of the next change.

        A bucket that was read to its end has the offset of its current epoch, even if nothing was written in it since.
        """
        ends = {bucket: self._tails[bucket].durable_offset for bucket in self._offsets}
        return {
            bucket: ends[bucket] if count_of(ends[bucket]) == count_of(offset) else offset
            for bucket, offset in self._offsets.items()
        }

    def abort(self, error: ScanKvError) -> None:
        """Releases everything now. The next call of `next_chunk` raises `error`."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Releases the listeners, catch-ups and retention holds. Closing twice is allowed."""
        self._read_ahead = None
        self._wakeup.set()
        while self._closers:
            self._closers.pop()()
        for catch_up in self._catch_ups.values():
            catch_up.cancel()
        for rescan in self._rescans.values():
            rescan.close()
        for tail in self._tails.values():
            tail.release_log(self._owner)
