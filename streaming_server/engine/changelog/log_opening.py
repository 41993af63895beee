"""Opening a stream of changes: from where a request wants to start to a source that reads from there on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import InvalidRequest
from streaming_server.engine.bucket.locking import lock_buckets
from streaming_server.engine.changelog.log_starts import LogStarts
from streaming_server.engine.columnar.base_choice import choose_bases, record_errors
from streaming_server.scan.changes.already_applied import AlreadyAppliedFilter
from streaming_server.scan.changes.change_rows import ChangeRows
from streaming_server.scan.changes.consumer_progress import views_of
from streaming_server.scan.changes.full_source import FullSource
from streaming_server.scan.changes.log_plan import OpenedLog
from streaming_server.scan.changes.log_source import LogSource
from streaming_server.scan.changes.log_token import LaterView, LogPosition, LogTokenWriter, read_log_token
from streaming_server.scan.chunk_source import Position, View, total_rows
from streaming_server.scan.columnar.base_view import NO_BASES, cursor_of
from streaming_server.scan.rows.keys_to_read import keys_to_read
from streaming_server.scan.rows.kv_source import KvSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scankv.model.changes.log_positions import StopAt
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.changelog.compacted_catch_up import CompactedCatchUp
    from streaming_server.scan.changes.log_plan import ChangeSource, LogPlan
    from streaming_server.scan.chunk_source import Cursor
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.rows.table_codec import TableCodec


class LogOpening:
    """Opens one stream, while the mutexes of its buckets are held.

    Args:
        plan: What is asked for.
        codec: The table as of now.
        buckets: The buckets that are read, open, by number.
        owner: Names the hold on the changes.
        latest: The table's definition, at any later time.
        committed: Where the consumer stands that the stream is of. None: it is of none, or of one that begins.
        catching_up: Makes net changes, where they are asked for.
        clock: The server's.

    Attributes:
        bases: The columnar bases that rows of the table are read from.
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
        self._clock = clock
        self.bases: Mapping[int, BaseView] = NO_BASES
        self._starts = LogStarts(codec.definition, buckets, clock)

    async def open(self) -> OpenedLog:
        """The stream.

        Raises:
            PositionExpired, PositionOutOfRange: The changes that it starts with are not there.
            InvalidResumeToken, InvalidRequest, SchemaMismatch: The plan does not fit the table.
            TableRecreated: Its offsets are of another table of the same name.
            DataLoss: A bucket is damaged.
        """
        plan = self._plan
        plan.check(self._definition)
        # A start in the future begins at the end of the log, and waits.
        rows = ChangeRows(self._definition, plan.columns, plan.where, plan.start.micros)
        fingerprint = plan.fingerprint(self._definition, list(self._buckets))
        resumed: LogPosition | None = None
        limit = plan.limit
        if plan.resume_token:
            resumed, limit = read_log_token(plan.resume_token, fingerprint)
            position = self._went_on(resumed, clamp=False)
        elif self._committed is not None:
            position = await self._taken_over(self._committed)
        else:
            offsets = await self._starts.of(plan.start, clamp=plan.clamp)
            position = LogPosition(offsets, scanning=plan.start.kind is PositionKind.FULL)
        source = await self._source(position, rows)
        return OpenedLog(
            source=source,
            tokens=LogTokenWriter(fingerprint),
            definition=self._definition,
            resumed_from=resumed,
            limit=limit,
            selective=rows.selective or bool(position.views),
            full=position.scanning,
        )

    def _went_on(self, position: LogPosition, *, clamp: bool) -> LogPosition:
        """A position that a stream had come to, as the one to go on at."""
        if position.scanning and position.scanned is None:
            # No row was read, so those of now are the first.
            return LogPosition(self._starts.ends(), scanning=True)
        return replace(position, offsets=self._starts.checked(position.offsets, clamp=clamp))

    async def _taken_over(self, committed: LogPosition) -> LogPosition:
        """Where a stream of a consumer begins; buckets in which that has no position begin where the plan says."""
        plan = self._plan
        if committed.scanning:
            return self._went_on(committed, clamp=plan.clamp)
        known = {number: bucket for number, bucket in self._buckets.items() if number in committed.offsets}
        starts = LogStarts(self._definition, known, self._clock)
        offsets = starts.checked({number: committed.offsets[number] for number in known}, clamp=plan.clamp)
        others = {number: bucket for number, bucket in self._buckets.items() if number not in known}
        if others:
            if plan.start.kind is PositionKind.FULL:
                raise InvalidRequest(
                    f"the consumer has read other buckets, and none of {sorted(others)}: to begin with their rows take "
                    "another consumer, or delete this one; else start from something else than FULL"
                )
            start = replace(plan.start, by_bucket=tuple(pair for pair in plan.start.by_bucket if pair[0] in others))
            offsets |= await LogStarts(self._definition, others, self._clock).of(start, clamp=plan.clamp)
        net = {bucket: net for bucket, net in committed.net.items() if bucket in known}
        return LogPosition(dict(sorted(offsets.items())), views=views_of(committed, offsets), net=net)

    async def _source(self, position: LogPosition, rows: ChangeRows) -> ChangeSource:
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
            {number: live for number, (live, _) in self._buckets.items()},
            View(dict(position.offsets), self._clock.commit_micros(), 0),
            stops,
            self._latest,
            AlreadyAppliedFilter(position.views, self._codec.keys.encoded) if position.views else None,
            self._catching_up if self._plan.net_changes or position.net else None,
            position.net,
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

    def _rows_of_table(self, scanned: Position | None, ends: Mapping[int, int]) -> KvSource:
        plan = self._plan.of_rows()
        reader = plan.reader(self._codec.rows, self._codec.key_codec)
        self.bases = choose_bases(plan, reader, list(self._buckets.values()))
        left = keys_to_read(reader, self._definition, self._buckets, scanned, reverse=False, ordered=False)
        cursors: dict[int, Cursor] = {}
        try:
            for number, keys in left.items():
                cursors[number] = cursor_of(reader, number, self._buckets[number][1], keys, self.bases)
        except BaseException:
            for cursor in cursors.values():
                cursor.close()
            raise
        rows = total_rows(bucket.state.rows for _, bucket in self._buckets.values())
        view = View(dict(ends), self._clock.commit_micros(), rows)
        on_error = record_errors({number: live for number, (live, _) in self._buckets.items()}, self.bases)
        return KvSource(reader.decoder.schema, self._definition.schema.id, view, cursors, scanned, on_error)

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
            return await self._starts.at(stop.micros)
        offsets = dict(stop.by_bucket)
        self._starts.check_named(offsets)
        return {number: offsets[number] for number in self._buckets}


class Stops:
    """Where a stream of changes ends; of a time, once that is over.

    Args:
        stop: What was asked for.
        offsets: Where it ends, as far as that is known.
        buckets: The buckets that are read.
        latest: The table's definition of now.
        clock: The server's.
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
        """After how long `settle` will know. None: it knows, or will never."""
        if self._micros is None or self.offsets is not None:
            return None
        return max(0.0, (self._micros - self._clock.commit_micros()) / 1e6)

    async def settle(self) -> None:
        """Finds the offsets out when the time is over: commits after it are of later times."""
        if self.seconds_left() != 0:
            return
        async with lock_buckets([self._buckets[number] for number in sorted(self._buckets)]) as opened:
            self.offsets = {
                live.number: await live.run(bucket.log.offset_at, self._micros, self._latest())
                for live, bucket in opened
            }
