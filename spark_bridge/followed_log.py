"""The changelog that a streaming query follows: where it ends, how far a limit reaches, who reads and keeps it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aio_client import ScanKvError, StartFrom, StopAt
from scankv.model.changes.log_offsets import LogOffsets, check_incarnation
from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import ConsumerNotFound, PositionExpired, PositionOutOfRange
from spark_bridge.change_rows import another_table
from spark_bridge.options import wrong

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aio_client import ScanSpec, sync
    from spark_bridge.stream_options import StreamOptions

_SECONDS_BETWEEN_RENEWALS: Final = 60.0
# Without a trigger, Spark asks for changes a hundred times a second.
_SECONDS_BETWEEN_LOOKS: Final = 0.1
_CHUNK_ROWS: Final = 8192


class FollowedLog:
    """The changes of a table, as a query with given options sees them. Not thread-safe; belongs to its client.

    Whatever it is asked, it notices when the table was dropped and created again (TableRecreated).

    Attributes:
        incarnation: That of the table; empty before the first look.
        end: Where the changes ended when they were looked at last; empty before the first look.
    """

    def __init__(self, table: sync.Table, options: StreamOptions, columns: Sequence[str]) -> None:
        """Asks nothing.

        Args:
            table: The table.
            options: What is asked for.
            columns: The columns of the table that the query reads.
        """
        self._table = table
        self._options = options
        self._columns = columns
        self.incarnation: str = ""
        self.end: Mapping[int, int] = {}
        self._looked_at = self._renewed_at = float("-inf")

    def look(self, *, in_vain: bool = False) -> Mapping[int, int]:
        """Where the changes end now, as far as option `stop` lets them.

        Args:
            in_vain: Whether there was nothing new when it was asked last: then it waits a moment.
        """
        if in_vain:
            time.sleep(max(self._looked_at + _SECONDS_BETWEEN_LOOKS - time.monotonic(), 0))
        stop, at = self._options.stop, StartFrom.LATEST
        if stop is not None and stop.kind is PositionKind.TIMESTAMP:
            # The first change of that time or later; the end of the log while there is none.
            at = StartFrom(PositionKind.TIMESTAMP, micros=stop.micros)
        with self._changes(at).stream() as stream:
            self._note_table(stream)
            self.end = stream.log_offsets
        if stop is not None and stop.kind is PositionKind.OFFSETS:
            check_incarnation(stop.table_incarnation, self._table.name, self.incarnation)
            self.end = _earlier(self.end, dict(stop.by_bucket))
        self._looked_at = time.monotonic()
        return self.end

    def cut(self, start: Mapping[int, int], end: Mapping[int, int]) -> Mapping[int, int]:
        """How far the options let one micro-batch go from `start`: at least a chunk, and not behind `end`.

        Reads the changes for that, where there is a limit: without the table's columns, unless it is one of bytes.
        """
        most_rows, most_bytes = self._options.max_rows or 2**63, self._options.max_bytes or 2**63
        if most_rows == most_bytes == 2**63:
            return end
        columns = [] if self._options.max_bytes is None else self._columns
        changes = self._changes(StartFrom.offsets(start), StopAt.offsets(end), columns)
        reached: Mapping[int, int] = {}
        rows = size = 0
        with changes.with_chunk(rows=max(min(most_rows // 8, _CHUNK_ROWS), 2)).stream() as stream:
            for chunk in stream:
                rows, size = rows + chunk.num_rows, size + chunk.nbytes
                if reached and (rows > most_rows or size > most_bytes):
                    return reached
                reached = stream.next_offsets
        return end

    def specs(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[ScanSpec]:
        """What the tasks read of a stretch: whole buckets, since the order of a key's changes is that of its task."""
        changed = [bucket for bucket, offset in end.items() if offset != start[bucket]]
        tasks = min(len(changed), self._options.read.splits or self._options.read.max_partitions)
        groups = [changed[number::tasks] for number in range(tasks)]
        starts, stops = LogOffsets(start), LogOffsets(end)
        return [
            self._changes(
                StartFrom.offsets(starts.of_buckets(group)), StopAt.offsets(stops.of_buckets(group)), self._columns
            )
            .with_buckets(group)
            .spec
            for group in groups
        ]

    def begin(self, consumer_id: str, start: StartFrom) -> dict[int, int]:
        """Has the changes from a place on kept for a consumer, wherever that was before; the offsets of the place."""
        self.look()
        if self._options.consumer_id is not None:
            with suppress(ConsumerNotFound):
                return self._table.reset_consumer(consumer_id, start)
        return self._hold(consumer_id, start)

    def keep(self, consumer_id: str, offsets: Mapping[int, int], incarnation: str) -> None:
        """Has the changes from some offsets on kept further: asks the server at first, and then every minute.

        Args:
            consumer_id: The consumer; it is made anew where it was forgotten.
            offsets: Where the query goes on.
            incarnation: The table that they are of.

        Rule: the query goes on where its checkpoint says, never where the consumer is. A consumer that is ahead of the
        checkpoint tells that the checkpoint was set back, since the consumer follows what Spark has committed.

        Raises:
            PositionExpired: The changes are no longer there.
        """
        if time.monotonic() < self._renewed_at + _SECONDS_BETWEEN_RENEWALS:
            return
        self.look()
        if incarnation != self.incarnation:
            raise another_table(self._table.name)
        is_set_back = False
        try:
            held = self._hold(consumer_id, StartFrom.offsets(offsets))
            is_set_back = any(held[bucket] > offset for bucket, offset in offsets.items())
            if is_set_back:
                self._table.reset_consumer(consumer_id, StartFrom.offsets(offsets))
        except (PositionExpired, PositionOutOfRange) as error:
            if is_set_back:
                raise PositionExpired(
                    f"the checkpoint of this query was set back to before changes of table {self._table.name} that it "
                    "has committed already, and that the server keeps no longer: put back the checkpoint as it was "
                    f"last, or start the query with a new one ({error.message})",
                    table=self._table.name,
                ) from error
            raise PositionExpired(
                f"the changes of table {self._table.name} that this query goes on with are not there: where it did not "
                "run for longer than the server keeps them, start it with a new checkpoint, and what it has written "
                f"before removed ({error.message})",
                table=self._table.name,
            ) from error

    def let_go(self, consumer_id: str, offsets: Mapping[int, int]) -> None:
        """Keeps the changes from some offsets on only. A failure is no harm: then the next call does it, too."""
        with suppress(ScanKvError):
            self._table.reset_consumer(consumer_id, StartFrom.offsets(offsets))
            self._renewed_at = time.monotonic()

    def _hold(self, consumer_id: str, start: StartFrom) -> dict[int, int]:
        """Renews a consumer, or makes it, at `start`; the position that it has."""
        with self._changes(start).with_consumer_id(consumer_id).stream() as stream:
            self._note_table(stream)
            self._renewed_at = time.monotonic()
            return stream.log_offsets

    def _changes(self, start: StartFrom, stop: StopAt | None = None, columns: Sequence[str] = ()) -> sync.Scan:
        # Who only asks where it begins or ends gets no rows, so needs no predicate.
        where = None if stop is None else self._options.read.predicate(self._table)
        return self._table.changes(start, stop, columns=columns, where=where)

    def _note_table(self, stream: sync.ScanStream) -> None:
        if self.incarnation not in ("", stream.table_incarnation):
            raise another_table(self._table.name)
        self.incarnation = stream.table_incarnation


def _earlier(latest: Mapping[int, int], stop: Mapping[int, int]) -> dict[int, int]:
    """Where option stop lets a query go. Raises UsageError when that is not of the table's buckets."""
    if latest.keys() != stop.keys():
        raise wrong("stop", f"must name exactly the buckets of the table, {sorted(latest)}, not {sorted(stop)}")
    return {bucket: min(offset, stop[bucket]) for bucket, offset in latest.items()}
