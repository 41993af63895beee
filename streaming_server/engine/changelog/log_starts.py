"""Where in the changelogs of some buckets a stream of changes starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import InvalidRequest
from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.model.changes.log_positions import StartFrom
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.bucket.bucket import Bucket

_ANY_BYTES = 1 << 40


class LogStarts:
    """Finds the offsets to start at, while the mutexes of the buckets are held.

    Args:
        definition: The table as of now.
        buckets: The buckets that are read, open, by number.
        clock: The server's.
    """

    def __init__(
        self, definition: TableDefinition, buckets: Mapping[int, tuple[LiveBucket, Bucket]], clock: ServerClock
    ) -> None:
        self._clock = clock
        self._definition = definition
        self._buckets = buckets

    def ends(self) -> dict[int, int]:
        """The offset that the next change of each bucket gets."""
        spans = {number: bucket.log.span for number, (_, bucket) in self._buckets.items()}
        return {number: span.offset_of(span.end) for number, span in spans.items()}

    async def of(self, start: StartFrom, *, clamp: bool) -> dict[int, int]:
        """The offsets that a start stands for; of one from the whole table, where its rows end.

        Raises:
            InvalidRequest: It names other buckets; or a time at which the server's clock was wrong.
            PositionExpired, PositionOutOfRange: The changes are not there, and `clamp` is not set.
            DataLoss: A bucket is damaged.
        """
        spans = {number: bucket.log.span for number, (_, bucket) in self._buckets.items()}
        match start.kind:
            case PositionKind.EARLIEST:
                return {number: span.offset_of(span.first) for number, span in spans.items()}
            case PositionKind.OFFSETS:
                return self.checked(dict(start.by_bucket), clamp=clamp)
            case PositionKind.TIMESTAMP:
                self._clock.check_time(start.micros, "the start")
                return await self.at(start.micros)
            case PositionKind.LAST:
                return await self._last(start.count)
        return self.ends()

    def checked(self, offsets: Mapping[int, int], *, clamp: bool) -> dict[int, int]:
        """Offsets that a request names, as those to read on at. Raises as `of`."""
        self.check_named(offsets)
        return {
            number: bucket.log.span.resolve(offsets[number], location=bucket.location, clamp=clamp)
            for number, (_, bucket) in self._buckets.items()
        }

    def check_named(self, offsets: Mapping[int, int]) -> None:
        """Raises InvalidRequest unless offsets name all buckets that are read, and none that the table does not have.

        Those of other buckets are not looked at, so that one position of a whole table fits every share of it.
        """
        missing = [number for number in self._buckets if number not in offsets]
        unknown = [number for number in offsets if not 0 <= number < self._definition.buckets]
        if missing or unknown:
            raise InvalidRequest(
                f"the offsets must name the buckets that are read, {sorted(self._buckets)}: missing {missing}, not of "
                f"the table {unknown}"
            )

    async def at(self, micros: int) -> dict[int, int]:
        """The first changes committed at or after a time."""
        return {
            number: await live.run(bucket.log.offset_at, micros, self._definition)
            for number, (live, bucket) in self._buckets.items()
        }

    async def _last(self, count: int) -> dict[int, int]:
        """Where the latest changes begin: as many of each bucket as are among the newest of all."""
        times: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        for number, (live, bucket) in self._buckets.items():
            times[number] = await live.run(_last_times, bucket, count, self._definition)
        newest = np.concatenate([np.zeros(0, np.int64), *times.values()])
        if len(newest) > count:
            oldest = np.partition(newest, len(newest) - count)[len(newest) - count]
            room = count - int((newest > oldest).sum())
            for number, own in times.items():
                same = int((own == oldest).sum())
                times[number] = own[len(own) - int((own > oldest).sum()) - min(same, room) :]
                room -= min(same, room)
        spans = {number: bucket.log.span for number, (_, bucket) in self._buckets.items()}
        return {number: span.offset_of(span.end - len(times[number])) for number, span in spans.items()}


def _last_times(bucket: Bucket, count: int, definition: TableDefinition) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The commit times of the last changes of a bucket, at most so many."""
    span = bucket.log.span
    start, end = span.offset_of(max(span.first, span.end - count)), span.offset_of(span.end)
    if count_of(start) == count_of(end):
        return np.zeros(0, np.int64)
    records = bucket.log.read(start, end, definition, max_changes=count, max_bytes=_ANY_BYTES)
    return np.concatenate([record.commit_micros for record in records])
