"""Plans a streaming query: where the next micro-batch ends, what each of its tasks reads, and what the server holds.

The server holds two things for a query: a *consumer* holds the changes that the query has not read, and a snapshot
holds the initial rows until all of them are read. Spark does not say when a query has ended for good. So both end by
themselves if the query does not run: the consumer after the server's time for consumers, the snapshot after option
`snapshot_ttl`.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aio_client import ScanKvError, SnapshotLost, StartFrom, sync
from scankv.model.errors import PositionExpired, PositionOutOfRange, SchemaMismatch, UsageError
from scankv.model.limits import MAX_SPLITS
from scankv.model.tables.columns import CHANGE_COLUMNS
from scankv.model.tables.options import TableOptions
from spark_bridge.followed_log import FollowedLog
from spark_bridge.lake_rows import LakeRows
from spark_bridge.options import option_error
from spark_bridge.parts import ChangesPart, FilesPart, InitialPart, initial_rows_lost_error
from spark_bridge.planning import check_column_choice, select_columns
from spark_bridge.restarts import retry_through_restart
from spark_bridge.stream_offset import SnapshotProgress, StreamOffset
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql.types import StructType

    from aio_client import ScanSpec
    from spark_bridge.options import ReadOptions
    from spark_bridge.parts import FollowedPart
    from spark_bridge.stream_options import StreamOptions

_Answer = TypeVar("_Answer")

SPLITS_PER_TRIGGER: Final = 8
"""How many splits of the initial rows one micro-batch reads if no limit is set."""

_SAMPLE_ROWS: Final = 1000


def describe_changes(options: StreamOptions) -> StructType:
    """Has the server check a streaming read with row kinds, and returns its columns: change columns, then the table's.

    Raises:
        ScanKvError: An option is wrong, or the server cannot be reached.
    """
    with options.read.open_client() as client:
        return _columns_of_changes(client.table(options.read.table), options.read)


def _columns_of_changes(table: sync.Table, options: ReadOptions) -> StructType:
    with table.changes(StartFrom.LATEST, columns=options.columns, where=options.predicate(table)).stream() as stream:
        return spark_schema(stream.schema)


@dataclass(frozen=True, slots=True)
class _InitialSnapshot:
    """The snapshot of the initial rows, their number, and their mean size in bytes (1 where no limit needs it)."""

    snapshot: sync.Snapshot
    rows: int
    row_bytes: float


class StreamPlanner:
    """Plans the micro-batches of one query over a connection of its own. Not thread-safe. Call `close` at the end."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        """Connects, and checks the options and the schema against the table.

        Args:
            options: The options of the streaming read.
            schema: The columns that Spark expects, with or without change columns.

        Raises:
            SchemaMismatch: The table does not have these columns, or allows deletes, which need option `row_kinds`.
            ScanKvError: The server cannot be reached.
        """
        self._options = options
        self._columns = [name for name in schema.names if name not in CHANGE_COLUMNS]
        self._client = options.read.open_client()
        try:
            self._table = self._retry_through_restart(lambda: self._client.table(options.read.table))
            self._log = FollowedLog(self._table, options, self._columns)
            self._lake = LakeRows(self._table, self._log, options, self._columns)
            self._retry_through_restart(lambda: self._check(schema))
        except BaseException:
            self._client.close()
            raise
        self._consumer_id = options.consumer_id or f"spark-{uuid.uuid4().hex}"
        self._begun: StreamOffset | None = None
        self._stop: Mapping[int, int] | None = None
        self._is_idle = False
        self._pinned: _InitialSnapshot | None = None
        self._specs: list[ScanSpec] | None = None

    def close(self) -> None:
        self._client.close()

    def stop_at_latest(self) -> None:
        """Makes the query end with the changes that exist now."""
        self._stop = self._retry_through_restart(self._log.refresh_end)

    def last_known_end(self) -> dict[str, Any] | None:
        """Returns the last end of the changelog that the server has sent, as an offset; None before it has sent one."""
        log = self._log
        if not log.end:
            return None
        name = self._table.name
        end = StreamOffset(name=name, table=log.incarnation, consumer_id=self._consumer_id, log_offsets=log.end)
        return end.to_json()

    def next_end(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """Returns the end of the micro-batch that begins at `start`, as an offset; `start` if there is nothing to read.

        Args:
            start: The beginning. Spark has committed everything before it.
            unlimited: Whether the micro-batch must contain everything that exists, regardless of the options' limits.
        """
        offset = StreamOffset.from_json(start)
        if offset is None:
            return self._retry_through_restart(lambda: self._first_end(unlimited=unlimited)).to_json()
        self._retry_through_restart(lambda: self._renew_holds(offset))
        return self._retry_through_restart(lambda: self._end_after(offset, unlimited=unlimited)).to_json()

    def plan_parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[FollowedPart]:
        """Returns what the tasks of a micro-batch read; nothing if its two offsets are equal.

        The result depends on the two offsets only, so a repeated micro-batch reads the same rows.
        """
        before, after = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if after is None or before == after:
            return []
        return self._retry_through_restart(lambda: self._plan_parts(before, after))

    def _plan_parts(self, before: StreamOffset | None, after: StreamOffset) -> Sequence[FollowedPart]:
        self._renew_holds(after if before is None else before, begin=after.since if before is None else None)
        config, traceparent = self._client.config, self._options.read.traceparent
        if after.lake is not None:
            first = before.lake.next if before is not None and before.lake is not None else 0
            return [
                FilesPart(
                    config=config, spec=task.spec, traceparent=traceparent, incarnation=after.table, files=task.files
                )
                for task in self._lake.plan_tasks(first, after.lake)
            ]
        if after.rows is not None:
            read = before.rows.next if before is not None and before.rows is not None else 0
            specs, ttl = self._row_specs(after.rows)[read : after.rows.next], self._options.snapshot_ttl
            return [
                InitialPart(
                    config=config, spec=spec, traceparent=traceparent, incarnation=after.table, snapshot_ttl=ttl
                )
                for spec in specs
            ]
        since = after.since if before is None else before.log_offsets
        changes = self._log.plan_tasks(since or {}, after.log_offsets)
        skips = self._options.skips_deleted_ranges
        return [
            ChangesPart(
                config=config, spec=spec, traceparent=traceparent, incarnation=after.table, skips_deleted_ranges=skips
            )
            for spec in changes
        ]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Lets the server drop what lies before an offset. Ignores errors, since the next commit does the same."""
        offset = StreamOffset.from_json(end)
        if offset is None:
            return
        if offset.rows is not None and offset.rows.are_read:
            self._release_snapshot(offset.rows)
        if offset.rows is not None or offset.lake is not None:
            return
        self._log.shrink_hold(offset.consumer_id, offset.log_offsets)

    def _retry_through_restart(self, ask: Callable[[], _Answer]) -> _Answer:
        return retry_through_restart(lambda: sync.Client(self._client.config), ask)

    def _check(self, schema: StructType) -> None:
        there = select_columns(self._table.schema, self._options.read.columns)
        with_kinds = len(self._columns) < len(schema.names)
        if with_kinds:
            there = _columns_of_changes(self._table, self._options.read)
        elif self._table.primary_key and TableOptions.from_strings(self._table.options).deletes == "allow":
            raise SchemaMismatch(
                f"table {self._table.name} allows deletes, which a stream of rows cannot express: "
                'set option("row_kinds", "true") to read changes with their row kinds',
                table=self._table.name,
                option="row_kinds",
            )
        check_column_choice(schema, there)
        begins_with_rows = self._options.start == StartFrom.FULL or self._lake.is_start
        if begins_with_rows and self._table.options.get("changelog") == "input":
            raise option_error(
                "start",
                'must not be full or lake for a table with changelog="input", because its changes cannot be applied to '
                "its rows: set it to earliest, latest, or offsets",
            )

    def _first_end(self, *, unlimited: bool) -> StreamOffset:
        """Returns the end of the first micro-batch. The beginning of the query stays the same if Spark asks again."""
        start = self._options.start
        if self._begun is None and self._lake.is_start:
            self._begun = self._begin_with_files()
        if self._begun is None:
            # Hold the changes before pinning the snapshot, so that no change after the snapshot is lost.
            log, place = self._log, StartFrom.LATEST if start == StartFrom.FULL else start
            offsets = log.start_consumer(self._consumer_id, place)
            begun = StreamOffset(
                name=self._table.name, table=log.incarnation, consumer_id=self._consumer_id, log_offsets=offsets
            )
            self._begun = self._pin_rows(begun) if start == StartFrom.FULL else begun
        after = self._end_after(self._begun, unlimited=unlimited)
        begins_with_rows = after.rows is not None or after.lake is not None
        return after if begins_with_rows else replace(after, since=self._begun.log_offsets)

    def _begin_with_files(self) -> StreamOffset:
        """Chooses the published version to begin with. The server holds the changes since from here on."""
        progress, since = self._lake.begin()
        try:
            offsets = self._log.start_consumer(self._consumer_id, StartFrom.offsets(since))
        except (PositionExpired, PositionOutOfRange) as error:
            raise self._lake.expired_error(error) from error
        return StreamOffset(
            name=self._table.name,
            table=self._log.incarnation,
            consumer_id=self._consumer_id,
            log_offsets=offsets,
            lake=progress,
        )

    def _pin_rows(self, begun: StreamOffset) -> StreamOffset:
        snapshot = self._table.snapshot(self._options.snapshot_ttl)
        try:
            pinned = self._pinned = self._measure(snapshot)
            # Asked for again, because the table may have been altered just before the pin.
            tables = (self._table, self._client.table(self._table.name))
            expires = any("ttl_seconds" in table.options for table in tables)
        except BaseException:
            with suppress(ScanKvError):
                snapshot.release()
            raise
        options = self._options
        part_rows = min(options.read.rows_per_split, self._rows_per_trigger(pinned))
        parts = max(-(-pinned.rows // part_rows), options.read.splits or 1)
        rows = SnapshotProgress(snapshot_id=snapshot.id, parts=min(parts, MAX_SPLITS), next=0, expires=expires)
        return replace(begun, log_offsets=snapshot.log_offsets, rows=rows)

    def _rows_per_trigger(self, pinned: _InitialSnapshot) -> int:
        options = self._options
        most = options.max_rows or SPLITS_PER_TRIGGER * options.read.rows_per_split
        if options.max_bytes is not None:
            most = min(most, int(options.max_bytes / pinned.row_bytes))
        return max(most, 1)

    def _measure(self, snapshot: sync.Snapshot) -> _InitialSnapshot:
        rows = self._table.count(as_of=snapshot) if snapshot.rows is None else snapshot.rows
        row_bytes = 1.0
        if self._options.max_bytes is not None:
            sample = self._table.scan(self._columns, limit=_SAMPLE_ROWS).as_of(snapshot).to_arrow()
            row_bytes = max(sample.nbytes / max(len(sample), 1), 1.0)
        return _InitialSnapshot(snapshot, rows, row_bytes)

    def _end_after(self, at: StreamOffset, *, unlimited: bool) -> StreamOffset:
        """Returns the end of the micro-batch that begins at `at`; `at` itself if there is nothing to read."""
        if at.rows is not None and not at.rows.are_read:
            parts = at.rows.parts if unlimited else self._parts_per_trigger(at.rows)
            return replace(at, rows=replace(at.rows, next=min(at.rows.next + parts, at.rows.parts)))
        if at.lake is not None and not at.lake.are_read:
            rows = at.lake
            most = self._options.max_rows or SPLITS_PER_TRIGGER * self._options.read.rows_per_split
            if unlimited:
                return replace(at, lake=replace(rows, next=rows.files))
            return replace(at, lake=self._lake.end_after(rows, most, self._options.max_bytes))
        if at.rows is not None:
            self._release_snapshot(at.rows)
        latest = self._log.refresh_end(found_nothing=self._is_idle) if self._stop is None else self._stop
        # The snapshot of the initial rows may be later than option stop. The end must not lie before its offsets.
        end: Mapping[int, int] = {bucket: max(offset, latest[bucket]) for bucket, offset in at.log_offsets.items()}
        self._is_idle = end == at.log_offsets
        if self._is_idle:
            return at
        if not unlimited:
            end = self._log.limit_end(at.log_offsets, end)
        return StreamOffset(name=at.name, table=at.table, consumer_id=at.consumer_id, log_offsets=end)

    def _parts_per_trigger(self, rows: SnapshotProgress) -> int:
        pinned = self._pinned
        if pinned is None:
            pinned = self._pinned = self._measure(self._adopt_snapshot(rows))
        return max(self._rows_per_trigger(pinned) // max(-(-pinned.rows // rows.parts), 1), 1)

    def _row_specs(self, rows: SnapshotProgress) -> Sequence[ScanSpec]:
        """Returns the scans of all parts of the snapshot. The same number of parts always gives the same scans."""
        if self._specs is None:
            options = replace(self._options.read, columns=tuple(self._columns))
            # Only if rows expire does the server make use of `changes_follow`, and earlier servers do not know it.
            scan = options.build_scan(self._table).as_of(self._adopt_snapshot(rows), changes_follow=rows.expires)
            self._specs = [part.spec for part in scan.splits(rows.parts)] if rows.parts > 1 else [scan.spec]
        return self._specs

    def _renew_holds(self, offset: StreamOffset, begin: Mapping[int, int] | None = None) -> None:
        """Renews the holds on what the query reads from `offset` on; for its first micro-batch, from `begin` on."""
        if offset.name != self._table.name:
            raise UsageError(
                f"the checkpoint belongs to a query on table {offset.name}, but this query reads {self._table.name}: "
                "give each query its own checkpoint",
                table=self._table.name,
            )
        if offset.rows is not None and not offset.rows.are_read:
            self._adopt_snapshot(offset.rows)
        self._consumer_id = offset.consumer_id
        self._log.renew_hold(offset.consumer_id, begin or offset.log_offsets, offset.table)

    def _adopt_snapshot(self, rows: SnapshotProgress) -> sync.Snapshot:
        """Returns the snapshot with a renewed lease. Raises SnapshotLost if the snapshot is gone."""
        try:
            return self._client.adopt_snapshot(rows.snapshot_id, self._options.snapshot_ttl)
        except SnapshotLost as error:
            raise initial_rows_lost_error(self._table.name) from error

    def _release_snapshot(self, rows: SnapshotProgress) -> None:
        # If the release fails, the lease expires by itself.
        with suppress(ScanKvError):
            self._client.adopt_snapshot(rows.snapshot_id).release()
