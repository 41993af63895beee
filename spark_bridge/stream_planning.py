"""Planning a streaming query: how far the next micro-batch goes, what each of its tasks reads, and what is kept for it.

The server keeps two things for a query: the changes that it has not read, in the name of a *consumer*, and, while there
are rows of the whole table to read, a snapshot. Both end by themselves when the query does not run for long: for the
time that the server keeps consumers, and for option `snapshot_ttl`. Spark does not say when a query has ended for good.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aio_client import ScanKvError, SnapshotLost, StartFrom, sync
from scankv.model.errors import SchemaMismatch, UsageError
from scankv.model.limits import MAX_SPLITS
from scankv.model.tables.options import TableOptions
from scankv.model.tables.schema import CHANGE_COLUMNS
from spark_bridge.followed_log import FollowedLog
from spark_bridge.parts import ChangesPart, InitialPart, initial_rows_lost
from spark_bridge.planning import check_column_choice, chosen_columns
from spark_bridge.restarts import riding_through
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
"""How many tasks' rows of the whole table one micro-batch reads, where no limit says."""

_SAMPLE_ROWS: Final = 1000


def described_changes(options: StreamOptions) -> StructType:
    """The columns of changes with what happened to them, once the server has checked what is asked for.

    Raises:
        ScanKvError: Something is wrong with the options; or the server cannot be reached.
    """
    with sync.connect(options.read.url) as client:
        return _columns_of_changes(client.table(options.read.table), options.read)


def _columns_of_changes(table: sync.Table, options: ReadOptions) -> StructType:
    with table.changes(StartFrom.LATEST, columns=options.columns, where=options.predicate(table)).stream() as stream:
        return spark_schema(stream.schema)


@dataclass(frozen=True, slots=True)
class _InitialSnapshot:
    """The snapshot of a start from the whole table: its lease, its rows, and about how many bytes one has."""

    snapshot: sync.Snapshot
    rows: int
    row_bytes: float


class StreamPlanner:
    """Plans the micro-batches of one query, with a connection of its own. Not thread-safe; call `close` in the end."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        """Connects, and compares what is asked for with the table.

        Args:
            options: What is asked for.
            schema: The columns that Spark expects, with or without those of changes.

        Raises:
            SchemaMismatch: The table does not have such columns; or rows alone cannot tell what happens in it.
            ScanKvError: The server cannot be reached.
        """
        self._options = options
        self._columns = [name for name in schema.names if name not in CHANGE_COLUMNS]
        self._client = sync.connect(options.read.url)
        try:
            self._table = self._riding_through(lambda: self._client.table(options.read.table))
            self._riding_through(lambda: self._check(schema))
        except BaseException:
            self._client.close()
            raise
        self._consumer_id = options.consumer_id or f"spark-{uuid.uuid4().hex}"
        self._begun: StreamOffset | None = None
        self._log = FollowedLog(self._table, options, self._columns)
        self._stop: Mapping[int, int] | None = None
        self._is_idle = False
        self._pinned: _InitialSnapshot | None = None
        self._specs: list[ScanSpec] | None = None

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def stop_at_latest(self) -> None:
        """Lets the query end with the changes there are now."""
        self._stop = self._riding_through(self._log.look)

    def seen(self) -> dict[str, Any] | None:
        """Where the changelog ended when it was looked at last, as an offset; None before the first look."""
        log = self._log
        if not log.end:
            return None
        name = self._table.name
        seen = StreamOffset(name=name, table=log.incarnation, consumer_id=self._consumer_id, log_offsets=log.end)
        return seen.to_json()

    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """Where the micro-batch ends that begins at `start`, as an offset; `start` when there is nothing to read.

        Args:
            start: All before it is committed: Spark asks when it is done with the micro-batch that ends there.
            unlimited: Whether it must have everything there is, whatever the options say.
        """
        offset = StreamOffset.of(start)
        if offset is None:
            return self._riding_through(lambda: self._first(unlimited=unlimited)).to_json()
        self._riding_through(lambda: self._keep(offset))
        return self._riding_through(lambda: self._after(offset, unlimited=unlimited)).to_json()

    def parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[FollowedPart]:
        """What the tasks of a micro-batch read, of its two offsets alone; none where they are the same."""
        before, after = StreamOffset.of(start), StreamOffset.of(end)
        if after is None or before == after:
            return []
        return self._riding_through(lambda: self._parts(before, after))

    def _parts(self, before: StreamOffset | None, after: StreamOffset) -> Sequence[FollowedPart]:
        self._keep(after if before is None else before, begin=after.since if before is None else None)
        config = self._client.config
        if after.rows is not None:
            read = before.rows.next if before is not None and before.rows is not None else 0
            specs, ttl = self._specs_of_rows(after.rows)[read : after.rows.next], self._options.snapshot_ttl
            return [InitialPart(config=config, spec=spec, incarnation=after.table, snapshot_ttl=ttl) for spec in specs]
        since = after.since if before is None else before.log_offsets
        changes = self._log.specs(since or {}, after.log_offsets)
        return [ChangesPart(config=config, spec=spec, incarnation=after.table) for spec in changes]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Lets go of what lies before an offset. A failure is no harm: then the next one lets go of it, too."""
        offset = StreamOffset.of(end)
        if offset is None:
            return
        if offset.rows is not None:
            if offset.rows.are_read:
                self._release(offset.rows)
            return
        self._log.let_go(offset.consumer_id, offset.log_offsets)

    def _riding_through(self, ask: Callable[[], _Answer]) -> _Answer:
        return riding_through(self._client.config.address, ask)

    def _check(self, schema: StructType) -> None:
        there = chosen_columns(self._table.schema, self._options.read.columns)
        with_kinds = len(self._columns) < len(schema.names)
        if with_kinds:
            there = _columns_of_changes(self._table, self._options.read)
        elif TableOptions.from_strings(self._table.options).deletes == "allow":
            raise SchemaMismatch(
                f"rows of table {self._table.name} can be deleted, which rows alone cannot tell: "
                'option("row_kinds", "true") gives changes with what happened to each row',
                table=self._table.name,
                option="row_kinds",
            )
        check_column_choice(schema, there)

    def _first(self, *, unlimited: bool) -> StreamOffset:
        """The end of the first micro-batch; where the query begins stays settled when Spark asks again."""
        start = self._options.start
        if self._begun is None:
            # First of all the changes are kept, so that there is none missing behind a snapshot.
            log, place = self._log, StartFrom.LATEST if start == StartFrom.FULL else start
            offsets = log.begin(self._consumer_id, place)
            begun = StreamOffset(
                name=self._table.name, table=log.incarnation, consumer_id=self._consumer_id, log_offsets=offsets
            )
            self._begun = self._with_rows(begun) if start == StartFrom.FULL else begun
        after = self._after(self._begun, unlimited=unlimited)
        return after if after.rows is not None else replace(after, since=self._begun.log_offsets)

    def _with_rows(self, begun: StreamOffset) -> StreamOffset:
        snapshot = self._table.snapshot(self._options.snapshot_ttl)
        try:
            pinned = self._pinned = self._measured(snapshot)
        except BaseException:
            with suppress(ScanKvError):
                snapshot.release()
            raise
        options = self._options
        part_rows = min(options.read.rows_per_split, self._rows_per_trigger(pinned))
        parts = max(-(-pinned.rows // part_rows), options.read.splits or 1)
        rows = SnapshotProgress(snapshot_id=snapshot.id, parts=min(parts, MAX_SPLITS), next=0)
        return replace(begun, log_offsets=snapshot.log_offsets, rows=rows)

    def _rows_per_trigger(self, pinned: _InitialSnapshot) -> int:
        options = self._options
        most = options.max_rows or SPLITS_PER_TRIGGER * options.read.rows_per_split
        if options.max_bytes is not None:
            most = min(most, int(options.max_bytes / pinned.row_bytes))
        return max(most, 1)

    def _measured(self, snapshot: sync.Snapshot) -> _InitialSnapshot:
        rows = self._table.count(at=snapshot) if snapshot.rows is None else snapshot.rows
        row_bytes = 1.0
        if self._options.max_bytes is not None:
            sample = self._table.scan(self._columns, limit=_SAMPLE_ROWS).at(snapshot).to_arrow()
            row_bytes = max(sample.nbytes / max(len(sample), 1), 1.0)
        return _InitialSnapshot(snapshot, rows, row_bytes)

    def _after(self, at: StreamOffset, *, unlimited: bool) -> StreamOffset:
        """How far to go from an offset; the same where there is nothing."""
        if at.rows is not None and not at.rows.are_read:
            parts = at.rows.parts if unlimited else self._parts_per_trigger(at.rows)
            return replace(at, rows=replace(at.rows, next=min(at.rows.next + parts, at.rows.parts)))
        if at.rows is not None:
            self._release(at.rows)
        latest = self._log.look(in_vain=self._is_idle) if self._stop is None else self._stop
        # The rows may be of a later instant than the stop.
        end: Mapping[int, int] = {bucket: max(offset, latest[bucket]) for bucket, offset in at.log_offsets.items()}
        self._is_idle = end == at.log_offsets
        if self._is_idle:
            return at
        if not unlimited:
            end = self._log.cut(at.log_offsets, end)
        return StreamOffset(name=at.name, table=at.table, consumer_id=at.consumer_id, log_offsets=end)

    def _parts_per_trigger(self, rows: SnapshotProgress) -> int:
        pinned = self._pinned
        if pinned is None:
            pinned = self._pinned = self._measured(self._adopted(rows))
        return max(self._rows_per_trigger(pinned) // max(-(-pinned.rows // rows.parts), 1), 1)

    def _specs_of_rows(self, rows: SnapshotProgress) -> Sequence[ScanSpec]:
        """All parts of the snapshot: the same ones whenever it is cut into so many."""
        if self._specs is None:
            options = replace(self._options.read, columns=tuple(self._columns))
            scan = options.scan_of(self._table).at(self._adopted(rows))
            self._specs = [part.spec for part in scan.splits(rows.parts)] if rows.parts > 1 else [scan.spec]
        return self._specs

    def _keep(self, offset: StreamOffset, begin: Mapping[int, int] | None = None) -> None:
        """Has the server keep what the query reads from an offset on; of its first one, from `begin` on."""
        if offset.name != self._table.name:
            raise UsageError(
                f"the checkpoint is of a query that reads table {offset.name}, and this one reads {self._table.name}: "
                "give each query a checkpoint of its own",
                table=self._table.name,
            )
        if offset.rows is not None and not offset.rows.are_read:
            self._adopted(offset.rows)
        self._consumer_id = offset.consumer_id
        self._log.keep(offset.consumer_id, begin or offset.log_offsets, offset.table)

    def _adopted(self, rows: SnapshotProgress) -> sync.Snapshot:
        """The snapshot, renewed."""
        try:
            return self._client.adopt_snapshot(rows.snapshot_id, self._options.snapshot_ttl)
        except SnapshotLost as error:
            raise initial_rows_lost(self._table.name) from error

    def _release(self, rows: SnapshotProgress) -> None:
        """Ends the lease. A failure is no harm: it expires."""
        with suppress(ScanKvError):
            self._client.adopt_snapshot(rows.snapshot_id).release()
