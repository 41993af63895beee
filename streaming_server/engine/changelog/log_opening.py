"""Opens streams of changes: resolves the start of a request, and makes the source that reads from there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scankv.model.changes.log_positions import PositionKind
from streaming_server.engine.bucket.call_point import now_of
from streaming_server.engine.bucket.locking import lock_buckets
from streaming_server.engine.changelog.applied_tail import AppliedTail
from streaming_server.engine.changelog.consumer_starts import start_of_consumer
from streaming_server.engine.changelog.log_starts import LogStarts
from streaming_server.engine.columnar.base_choice import choose_bases, record_errors
from streaming_server.scan.changes.already_applied import AlreadyAppliedFilter
from streaming_server.scan.changes.change_rows import ChangeRows
from streaming_server.scan.changes.full_source import FullSource
from streaming_server.scan.changes.log_plan import OpenedLog
from streaming_server.scan.changes.log_source import LogSource
from streaming_server.scan.changes.log_token import LaterView, LogPosition, LogTokenWriter, read_log_token
from streaming_server.scan.chunk_source import ScanPosition, View, total_rows
from streaming_server.scan.columnar.base_view import NO_BASES, cursors_of
from streaming_server.scan.rows.keys_to_read import keys_to_read
from streaming_server.scan.rows.kv_source import KvSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scankv.model.changes.log_positions import StartFrom, StopAt
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.changelog.compacted_catch_up import CompactedCatchUp
    from streaming_server.scan.changes.log_plan import ChangeSource, LogPlan
    from streaming_server.scan.changes.log_source import LogTail
    from streaming_server.scan.changes.range_rescan import RangeOpener
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.rows.table_codec import TableCodec


class LogOpening:
    """Opens one stream, while the mutexes of its buckets are held.

    Args:
        plan: The requested stream.
        codec: The codec of the current definition.
        buckets: The buckets to read, open, by number.
        owner: Names the stream's retention hold on the changes.
        latest: Returns the table's current definition.
        committed: The position of the stream's consumer. None: the stream has no consumer, or a new one.
        catching_up: Makes net changes, if they are requested.
        ranges: Opens the rows of range markers, if they are requested.
        clock: The server's clock.

    Attributes:
        bases: The columnar bases from which rows of the table are read.
    """

    def __init__(
        self,
        plan: LogPlan,
        codec: TableCodec,
        buckets: Mapping[int, tuple[LiveBucket, Bucket]],
        owner: str,
        latest: Callable[[], TableDefinition],
        committed: LogPosition | None = None,
        *,
        catching_up: CompactedCatchUp,
        ranges: RangeOpener,
        clock: ServerClock,
    ) -> None:
        self._plan = plan
        self._codec = codec
        self._definition = codec.definition
        self._buckets = buckets
        self._owner = owner
        self._latest = latest
        self._committed = committed
        self._catching_up = catching_up
        self._ranges = ranges
        self._clock = clock
        self.bases: Mapping[int, BaseView] = NO_BASES
        self._starts = LogStarts(codec.definition, buckets, clock)

    async def open(self) -> OpenedLog:
        """Opens the stream.

        Raises:
            PositionExpired, PositionOutOfRange: The changes that it starts with do not exist.
            InvalidResumeToken, InvalidRequest, SchemaMismatch: The plan does not fit the table.
            TableRecreated: Its offsets belong to another table of the same name.
            DataLoss: A bucket is damaged.
        """
        plan = self._plan
        plan.check(self._definition)
        fingerprint = plan.fingerprint(self._definition, list(self._buckets))
        resumed: LogPosition | None = None
        limit = plan.limit
        if plan.resume_token:
            resumed, limit = read_log_token(plan.resume_token, fingerprint)
            position = self._resume(resumed)
        elif self._committed is not None:
            position = await start_of_consumer(self._committed, plan, list(self._buckets), self._find)
        else:
            offsets = await self._starts.of(plan.start, clamp=plan.clamp)
            position = LogPosition(offsets, scanning=plan.start.kind is PositionKind.FULL)
        before_images = self._definition.options.before_images and all(
            bucket.state.is_recorded_as_now(position.offsets[number]) for number, (_, bucket) in self._buckets.items()
        )
        plan.check_predicate(self._definition, before_images=before_images)
        # A stream with a start in the future begins at the end of the changelog, and skips earlier changes.
        rows = ChangeRows(self._definition, plan.columns, plan.where, plan.start.micros, before_images=before_images)
        source = await self._make_source(position, rows)
        return OpenedLog(
            source=source,
            tokens=LogTokenWriter(fingerprint),
            definition=self._definition,
            resumed_from=resumed,
            limit=limit,
            selective=rows.selective or bool(position.views),
            full=position.scanning,
        )

    def _resume(self, position: LogPosition) -> LogPosition:
        """Returns the position at which a stream resumes, given the position that it had reached."""
        if position.scanning and position.scanned is None:
            # No row was read yet, so the stream starts with the current rows.
            return LogPosition(self._starts.ends(), scanning=True)
        return replace(position, offsets=self._starts.resolve(position.offsets, clamp=False))

    async def _find(self, numbers: Sequence[int], start: StartFrom) -> dict[int, int]:
        """Returns the offsets of a start in some of the buckets."""
        buckets = {number: self._buckets[number] for number in numbers}
        return await LogStarts(self._definition, buckets, self._clock).of(start, clamp=self._plan.clamp)

    def _tail(self, live: LiveBucket) -> LogTail:
        return AppliedTail(live) if self._plan.latest else live

    async def _make_source(self, position: LogPosition, rows: ChangeRows) -> ChangeSource:
        ends = self._starts.ends()
        if position.scanning and position.scanned is not None:
            position = replace(position, views=(*position.views, LaterView(position.scanned, ends)))
        stops = Stops(
            self._plan.stop,
            await self._stops(ends),
            {n: live for n, (live, _) in self._buckets.items()},
            self._latest,
            self._clock,
        )
        log = LogSource(
            self._owner,
            rows,
            {number: self._tail(live) for number, (live, _) in self._buckets.items()},
            View(dict(position.offsets), self._clock.commit_micros(), 0),
            stops,
            self._latest,
            AlreadyAppliedFilter(position.views, self._codec.keys.encode_stored) if position.views else None,
            self._catching_up if self._plan.net_changes or position.net else None,
            position.net,
            self._ranges if self._plan.rescans else None,
            position.rescans,
            clears=self._plan.clears,
            now_micros=self._clock.commit_micros,
        )
        if not position.scanning:
            return log
        try:
            table = self._rows_of_table(position.scanned, ends)
        except BaseException:
            log.close()
            raise
        return FullSource(table, rows, log, position.views, position.scanned)

    def _rows_of_table(self, scanned: ScanPosition | None, ends: Mapping[int, int]) -> KvSource:
        now_micros = now_of(self._clock)
        plan = replace(self._plan.of_rows().as_of(now_micros), changes_follow=True)
        reader = plan.reader(self._codec.rows, self._codec.key_codec)
        self.bases = choose_bases(plan, reader, list(self._buckets.values()))
        left = keys_to_read(reader, self._definition, self._buckets, scanned, reverse=False, ordered=False)
        cursors = cursors_of(reader, left, lambda number: self._buckets[number][1], self.bases)
        rows = total_rows(bucket.state.rows for _, bucket in self._buckets.values())
        view = View(dict(ends), now_micros, rows)
        on_error = record_errors({number: live for number, (live, _) in self._buckets.items()}, self.bases)
        return KvSource(reader.decoder.schema, self._definition.schema.id, view, left, cursors, scanned, on_error)

    async def _stops(self, ends: Mapping[int, int]) -> dict[int, int] | None:
        stop = self._plan.stop
        if stop is None:
            return None
        if stop.kind is PositionKind.TIMESTAMP:
            self._clock.check_time(stop.micros, "the stop")
            if stop.micros > self._clock.commit_micros():
                return None
        if stop.kind is PositionKind.LATEST:
            return dict(ends)
        if stop.kind is PositionKind.TIMESTAMP:
            return await self._starts.at(stop.micros, clamp=True)
        offsets = dict(stop.by_bucket)
        self._starts.check_named(offsets)
        for number, (_, bucket) in self._buckets.items():
            bucket.log.span.check_stop(offsets[number], location=bucket.location)
        return {number: offsets[number] for number in self._buckets}


class Stops:
    """The offsets at which a stream of changes ends. A stop at a time is resolved once the time has passed.

    Args:
        stop: The requested stop.
        offsets: The offsets of the stop. None: not known yet, or no stop.
        buckets: The buckets to read.
        latest: Returns the table's current definition.
        clock: The server's clock.
    """

    def __init__(
        self,
        stop: StopAt | None,
        offsets: Mapping[int, int] | None,
        buckets: Mapping[int, LiveBucket],
        latest: Callable[[], TableDefinition],
        clock: ServerClock,
    ) -> None:
        self._clock = clock
        self.offsets = offsets
        self._micros = stop.micros if stop is not None and stop.kind is PositionKind.TIMESTAMP else None
        self._buckets = buckets
        self._latest = latest

    def seconds_left(self) -> float | None:
        """Returns after how many seconds `settle` can resolve the stop. None: it is resolved, or needs no time."""
        if self._micros is None or self.offsets is not None:
            return None
        return max(0.0, (self._micros - self._clock.commit_micros()) / 1e6)

    async def settle(self) -> None:
        """Resolves the offsets once the time has passed. All later commits have later times."""
        if self.seconds_left() != 0:
            return
        async with lock_buckets([self._buckets[number] for number in sorted(self._buckets)]) as opened:
            self.offsets = {
                live.number: await live.run(bucket.log.offset_at, self._micros, self._latest())
                for live, bucket in opened
            }
