"""The changelog that a streaming query follows: its end, the limits of a micro-batch, and the retention hold."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aio_client import ScanKvError, StartFrom, StopAt
from scankv.model.changes.log_offsets import LogOffsets, check_incarnation
from scankv.model.changes.log_positions import PositionKind, Untracked
from scankv.model.errors import ConsumerNotFound, PositionExpired, PositionOutOfRange
from spark_bridge.change_rows import recreated_error
from spark_bridge.options import option_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aio_client import ScanSpec, sync
    from spark_bridge.stream_options import StreamOptions

_SECONDS_BETWEEN_RENEWALS: Final = 60.0
# Without a trigger, Spark asks for changes a hundred times a second.
_SECONDS_BETWEEN_REFRESHES: Final = 0.1
_CHUNK_ROWS: Final = 8192


class FollowedLog:
    """The changes of a table as one streaming query sees them. Not thread-safe; uses the table's client.

    Every method that asks the server raises TableRecreated if the table was restored, or dropped and created again.

    Attributes:
        incarnation: The incarnation of the table; empty before the first `refresh_end`.
        end: The end of the changes at the last `refresh_end`; empty before the first one.
    """

    def __init__(self, table: sync.Table, options: StreamOptions, columns: Sequence[str]) -> None:
        """Does not contact the server.

        Args:
            table: The table to follow.
            options: The options of the streaming read.
            columns: The columns of the table that the query reads.
        """
        self._table = table
        self._options = options
        self._columns = columns
        self.incarnation: str = ""
        self.end: Mapping[int, int] = {}
        self._refreshed_at = self._renewed_at = float("-inf")

    def refresh_end(self, *, found_nothing: bool = False) -> Mapping[int, int]:
        """Asks the server where the changes end now, and returns that or option `stop`, whichever is earlier.

        Args:
            found_nothing: Whether the last call found nothing new. Then this call keeps some time between the two.
        """
        if found_nothing:
            time.sleep(max(self._refreshed_at + _SECONDS_BETWEEN_REFRESHES - time.monotonic(), 0))
        stop, at = self._options.stop, StartFrom.LATEST
        if stop is not None and stop.kind is PositionKind.TIMESTAMP:
            # The position of the first change at or after that time; the end of the changelog if no such change exists.
            at = StartFrom(PositionKind.TIMESTAMP, micros=stop.micros)
        # Removed changes before the end are not an error: the query begins after them, or has read them.
        with self.change_scan(at).start_from(at, clamp=True).stream() as stream:
            self._check_table(stream)
            self.end = stream.log_offsets
        if stop is not None and stop.kind is PositionKind.OFFSETS:
            check_incarnation(stop.table_incarnation, self._table.name, self.incarnation)
            self.end = LogOffsets.of(_cap_at_stop(self.end, dict(stop.by_bucket)), self.incarnation)
        self._refreshed_at = time.monotonic()
        return self.end

    def limit_end(self, start: Mapping[int, int], end: Mapping[int, int]) -> Mapping[int, int]:
        """Returns where a micro-batch from `start` must end to stay within the limits.

        The micro-batch has at least one chunk and ends at `end` at the latest. If there is a limit, this reads the
        changes. It reads the table's columns only for a limit in bytes.
        """
        most_rows, most_bytes = self._options.max_rows or 2**63, self._options.max_bytes or 2**63
        if most_rows == most_bytes == 2**63:
            return end
        columns = [] if self._options.max_bytes is None else self._columns
        changes = self.change_scan(StartFrom.offsets(start), StopAt.offsets(end), columns)
        reached: Mapping[int, int] = {}
        rows = size = 0
        stream = changes.with_chunk(rows=max(min(most_rows // 8, _CHUNK_ROWS), 2)).stream()
        if self._options.skips_deleted_ranges:
            stream.on_cleared(lambda _: None)  # The tasks report the ranges.
        with stream:
            for chunk in stream:
                rows, size = rows + chunk.num_rows, size + chunk.nbytes
                if reached and (rows > most_rows or size > most_bytes):
                    return reached
                # Rows of a range that is read again have no offsets of their own.
                if dict(stream.next_offsets) != dict(start):
                    reached = stream.next_offsets
        return end

    def plan_tasks(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[ScanSpec]:
        """Returns the scans of the tasks that read the changes from `start` to `end`.

        Each task reads complete buckets, so that one task reads all changes of a key, in their order.
        """
        changed = [bucket for bucket, offset in end.items() if offset != start[bucket]]
        tasks = min(len(changed), self._options.read.splits or self._options.read.max_partitions)
        groups = [changed[number::tasks] for number in range(tasks)]
        starts, stops = LogOffsets(start), LogOffsets(end)
        return [
            self.change_scan(
                StartFrom.offsets(starts.of_buckets(group)), StopAt.offsets(stops.of_buckets(group)), self._columns
            )
            .with_buckets(group)
            .spec
            for group in groups
        ]

    def start_consumer(self, consumer_id: str, start: StartFrom) -> dict[int, int]:
        """Makes the consumer hold the changes from `start` on, whatever its position was, and returns the offsets."""
        self.refresh_end()
        if self._options.consumer_id is not None:
            with suppress(ConsumerNotFound):
                return self._table.reset_consumer(consumer_id, start)
        return self._renew_consumer(consumer_id, start)

    def renew_hold(self, consumer_id: str, offsets: Mapping[int, int], incarnation: str) -> None:
        """Renews the retention hold on the changes from `offsets` on: at the first call, then once a minute.

        Rule: *the query continues where its checkpoint says, never where the consumer is*. The consumer follows what
        Spark has committed. So a consumer ahead of the checkpoint proves that an older checkpoint was restored.

        Args:
            consumer_id: The consumer. It is created again if the server has forgotten it.
            offsets: Where the query continues.
            incarnation: The incarnation of the table that the offsets belong to.

        Raises:
            PositionExpired: The server no longer has the changes.
        """
        if time.monotonic() < self._renewed_at + _SECONDS_BETWEEN_RENEWALS:
            return
        self.refresh_end()
        if incarnation != self.incarnation:
            raise recreated_error(self._table.name)
        is_set_back = False
        try:
            held = self._renew_consumer(consumer_id, StartFrom.offsets(offsets))
            is_set_back = any(held[bucket] > offset for bucket, offset in offsets.items())
            if is_set_back:
                self._table.reset_consumer(consumer_id, StartFrom.offsets(offsets))
        except (PositionExpired, PositionOutOfRange) as error:
            if is_set_back:
                raise PositionExpired(
                    "the checkpoint of this query is older than the last one: since then, the query has committed "
                    f"changes of table {self._table.name}, and the server no longer has them. Restore the last "
                    f"checkpoint, or start the query with a new one ({error.message})",
                    table=self._table.name,
                ) from error
            raise PositionExpired(
                f"the server no longer has the changes of table {self._table.name} at which this query continues: the "
                "query was stopped for longer than the server keeps changes. Remove what the query has written, and "
                f"start it with a new checkpoint ({error.message})",
                table=self._table.name,
            ) from error

    def shrink_hold(self, consumer_id: str, offsets: Mapping[int, int]) -> None:
        """Lets the server drop the changes before `offsets`. Ignores errors, since the next call does the same."""
        with suppress(ScanKvError):
            self._table.reset_consumer(consumer_id, StartFrom.offsets(offsets))
            self._renewed_at = time.monotonic()

    def change_scan(self, start: StartFrom, stop: StopAt | None = None, columns: Sequence[str] = ()) -> sync.Scan:
        """Returns a scan of changes as the options ask for them."""
        # A scan without a stop position is opened only for its offsets. It delivers no rows and needs no predicate.
        where = None if stop is None else self._options.read.predicate(self._table)
        changes = self._table.changes(start, stop, columns=columns, where=where)
        if self._options.untracked is not Untracked.RESCAN:
            return changes
        # Deletes are for rows that have ceased to match. A stream of rows cannot express them.
        return changes.with_untracked("rescan").with_unmatched("delete" if self._options.row_kinds else "refuse")

    def _renew_consumer(self, consumer_id: str, start: StartFrom) -> dict[int, int]:
        """Renews the consumer, or creates it at `start`, and returns the consumer's position."""
        with self.change_scan(start).with_consumer_id(consumer_id).stream() as stream:
            self._check_table(stream)
            self._renewed_at = time.monotonic()
            return stream.log_offsets

    def _check_table(self, stream: sync.ScanStream) -> None:
        if self.incarnation not in ("", stream.table_incarnation):
            raise recreated_error(self._table.name)
        self.incarnation = stream.table_incarnation


def _cap_at_stop(latest: Mapping[int, int], stop: Mapping[int, int]) -> dict[int, int]:
    """Returns the earlier offset of each bucket. Raises UsageError unless `stop` names exactly the table's buckets."""
    if latest.keys() != stop.keys():
        raise option_error("stop", f"must name exactly the buckets of the table, {sorted(latest)}, not {sorted(stop)}")
    return {bucket: min(offset, stop[bucket]) for bucket, offset in latest.items()}
