"""Finds the offsets at which a stream of changes starts."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import InvalidRequest, PositionExpired
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import MarkerReached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.changes.log_positions import StartFrom
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.bucket.bucket import Bucket

Times: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

_ANY_BYTES = 1 << 40


class LogStarts:
    """Finds the offsets to start at, while the mutexes of the buckets are held.

    Args:
        definition: The current definition of the table.
        buckets: The buckets to read, open, by number.
        clock: The server's clock.
    """

    def __init__(
        self, definition: TableDefinition, buckets: Mapping[int, tuple[LiveBucket, Bucket]], clock: ServerClock
    ) -> None:
        self._clock = clock
        self._definition = definition
        self._buckets = buckets

    def ends(self) -> dict[int, int]:
        """Returns the next offset of each bucket."""
        spans = {number: bucket.log.span for number, (_, bucket) in self._buckets.items()}
        return {number: span.offset_of(span.end) for number, span in spans.items()}

    async def of(self, start: StartFrom, *, clamp: bool) -> dict[int, int]:
        """Returns the offsets of a start. For a full start, these are the current ends.

        Raises:
            InvalidRequest: The start names other buckets, or a time at which the server's clock was wrong.
            PositionExpired, PositionOutOfRange: The changes do not exist, and `clamp` is not set.
            DataLoss: A bucket is damaged.
        """
        spans = {number: bucket.log.span for number, (_, bucket) in self._buckets.items()}
        match start.kind:
            case PositionKind.EARLIEST:
                return {number: span.offset_of(span.first) for number, span in spans.items()}
            case PositionKind.OFFSETS:
                return self.resolve(dict(start.by_bucket), clamp=clamp)
            case PositionKind.TIMESTAMP:
                self._clock.check_time(start.micros, "the start")
                return await self.at(start.micros, clamp=clamp)
            case PositionKind.LAST:
                return await self._last(start.count)
        return self.ends()

    def resolve(self, offsets: Mapping[int, int], *, clamp: bool) -> dict[int, int]:
        """Returns the offsets to read from for the offsets of a request. Raises the errors of `of`."""
        self.check_named(offsets)
        return {
            number: bucket.log.span.resolve(offsets[number], location=bucket.location, clamp=clamp)
            for number, (_, bucket) in self._buckets.items()
        }

    def check_named(self, offsets: Mapping[int, int]) -> None:
        """Raises InvalidRequest unless offsets name all buckets to read: see `check_named`."""
        check_named(offsets, list(self._buckets), self._definition)

    async def at(self, micros: int, *, clamp: bool) -> dict[int, int]:
        """Returns the offsets of the first changes that were committed at or after a time.

        Raises:
            PositionExpired: A bucket lacks such changes, and `clamp` is not set.
            DataLoss: A bucket is damaged.
        """
        found: dict[int, int] = {}
        for number, (live, bucket) in self._buckets.items():
            if not clamp and await live.run(bucket.lacks_changes_since, micros, self._definition):
                raise _expired(micros, live, bucket)
            found[number] = await live.run(bucket.log.offset_at, micros, self._definition)
        return found

    async def _last(self, count: int) -> dict[int, int]:
        """Returns the offsets of the newest `count` changes of all buckets together."""
        found = numbers_of_newest(await self.last_times(count), count)
        spans = {number: bucket.log.span for number, (_, bucket) in self._buckets.items()}
        return {number: span.offset_of(span.end - found[number]) for number, span in spans.items()}

    async def last_times(self, count: int) -> dict[int, Times]:
        """Returns the commit times of the last changes of each bucket, at most `count` of each, oldest first."""
        return {
            number: await live.run(_last_times, bucket, count, self._definition)
            for number, (live, bucket) in self._buckets.items()
        }

    async def last_of_buckets(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Returns the offsets of so many of the last changes of each bucket."""
        spans = {number: bucket.log.span for number, (_, bucket) in self._buckets.items()}
        return {
            number: span.offset_of(max(span.first, span.end - counts.get(number, 0))) for number, span in spans.items()
        }


def _expired(micros: int, live: LiveBucket, bucket: Bucket) -> PositionExpired:
    span = bucket.log.span
    earliest, latest = span.offset_of(span.first), span.offset_of(span.end)
    # Times before 1970 come from clients alone, and may be out of the range of a datetime.
    time = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=max(micros, 0))
    return PositionExpired(
        f"{bucket.location}: changes since {time.isoformat()} are no longer in its changelog, which reaches from "
        f"{earliest} to {latest}: start at a later time, or set clamp",
        table=live.table,
        bucket=live.number,
        earliest=earliest,
        latest=latest,
    )


def check_named(offsets: Mapping[int, int], buckets: Sequence[int], definition: TableDefinition) -> None:
    """Raises InvalidRequest unless offsets name all buckets to read, and only buckets of the table.

    Offsets of other buckets of the table are ignored, so that one position of a complete table fits every shard.
    """
    missing = [number for number in buckets if number not in offsets]
    unknown = [number for number in offsets if not 0 <= number < definition.buckets]
    if missing or unknown:
        raise InvalidRequest(
            f"the offsets must name each bucket to read, {sorted(buckets)}, and only buckets of the table: "
            f"missing {missing}, unknown {unknown}"
        )


def numbers_of_newest(times: Mapping[int, Times], count: int) -> dict[int, int]:
    """Returns how many of the newest `count` changes of all buckets together each bucket has.

    Args:
        times: The commit times of the last changes of each bucket, at least `count` of each or all, oldest first.
        count: How many.
    """
    newest = np.concatenate([np.zeros(0, np.int64), *times.values()])
    if len(newest) <= count:
        return {number: len(own) for number, own in times.items()}
    oldest = np.partition(newest, len(newest) - count)[len(newest) - count]
    room, found = count - int((newest > oldest).sum()), {}
    for number, own in times.items():
        same = min(int((own == oldest).sum()), room)
        found[number] = int((own > oldest).sum()) + same
        room -= same
    return found


def _last_times(bucket: Bucket, count: int, definition: TableDefinition) -> Times:
    """Returns the commit times of the last changes of a bucket, at most `count` of them."""
    span = bucket.log.span
    start, end = span.offset_of(max(span.first, span.end - count)), span.offset_of(span.end)
    times = [np.zeros(0, np.int64)]
    while count_of(start) < count_of(end):
        try:
            records = bucket.log.read(start, end, definition, max_changes=count, max_bytes=_ANY_BYTES)
        except MarkerReached as reached:
            times.append(np.full(len(reached.record.marker), reached.record.commit_micros))
            start = reached.record.offset + len(reached.record.marker)
        else:
            times += [record.commit_micros for record in records]
            start = records[-1].offset + len(records[-1].changes)
    return np.concatenate(times)
