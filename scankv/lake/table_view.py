"""A live table at one instant, as a publisher reads it: its columns, its rows, and what has changed before."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import LogOffsets, RangeNotTracked, SnapshotNotTaken, StartFrom, StopAt
from scankv.lake.lake_table import FIELD_ID, Content, LakeColumn
from scankv.lake.masking import ChangedRows
from scankv.model.changes.change_columns import CHANGE_FIELDS
from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.tables.columns import CHANGE_COLUMNS
from scankv.model.types.default_values import repeat_default

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime

    from aio_client import ClearedRange, Client, Scan, ScanStream, Snapshot, Table
    from scankv.lake.plan import BucketPlan
    from scankv.model.keys.key_range import KeyRange

_TTL_SECONDS: Final = 600
_CHUNK_ROWS: Final = 65_536
_MOST_TRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """An instant of all buckets of a table. Immutable.

    Attributes:
        log_offsets: The log offsets of the buckets.
        schema: The columns of the table.
        schema_id: Their version.
        taken_at: The time, in UTC, by the clock of the server.
    """

    log_offsets: LogOffsets
    schema: pa.Schema
    schema_id: int
    taken_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A live table at one instant of all buckets. Immutable.

    Attributes:
        client: The client, open.
        table: The table.
        instant: The instant.
        snapshot: The pinned snapshot of that instant. None: only the changes before the instant can be read.
        column_ids: The permanent ids of the columns. None if the table has no changelog, which knows them.
        null_columns: The ids of the columns in which rows are null that were written before the column was added.
        content: What is published: the rows of the table, or its changes.
    """

    client: Client
    table: Table
    instant: Instant
    snapshot: Snapshot | None
    column_ids: tuple[int, ...] | None
    null_columns: frozenset[int]
    content: Content

    @property
    def appends(self) -> bool:
        """Whether what is published only grows: changes, or the rows of a table without a primary key."""
        return self.content == "changes" or not self.table.primary_key

    @property
    def primary_key(self) -> list[str]:
        """The names of the columns that identify a published row. Empty if it only grows."""
        return [] if self.appends else self.table.primary_key

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of the published rows, with the types of the table; unless they are changes, with their ids."""
        columns = list(self.instant.schema)
        if self.content == "changes":
            return pa.schema([*CHANGE_FIELDS, *(field.with_nullable(True) for field in columns)])
        ids = self.column_ids or range(len(columns))
        return pa.schema([field.with_metadata({FIELD_ID: str(id_)}) for id_, field in zip(ids, columns, strict=True)])

    @property
    def changelog(self) -> str:
        """The option `changelog` of the table."""
        return self.table.options.get("changelog", "full")

    @property
    def expiry(self) -> str:
        """The options by which rows expire, as text. Empty: rows do not expire."""
        options = self.table.options
        names = ("ttl_seconds", "ttl_column", "ttl_changes")
        return "" if "ttl_seconds" not in options else " ".join(f"{name}={options.get(name, '')}" for name in names)

    @property
    def expires_silently(self) -> bool:
        """Whether rows expire without a change in the changelog."""
        return bool(self.expiry) and self.table.options.get("ttl_changes") == "none"

    def columns(self, file_schema: pa.Schema) -> tuple[LakeColumn, ...]:
        """Returns the columns with the types of the data files. Their ids are negative if they are not known."""
        ids = self.column_ids or tuple(range(-len(self.instant.schema), 0))
        if self.content == "changes":
            ids = (*(-1 - place for place in range(len(CHANGE_FIELDS))), *ids)
        return tuple(LakeColumn(id_, field.name, str(field.type)) for id_, field in zip(ids, file_schema, strict=True))

    def key_at(self, rows: pa.RecordBatch, index: int) -> bytes:
        """Returns the encoded key of one of the rows; if they are appended, its log offset."""
        if self.appends:
            offset: int = rows.column("_log_offset")[index].as_py()
            return offset.to_bytes(8, "big")
        key: bytes = self.encode(rows.slice(index, 1))[0].as_py()
        return key

    def scan(self, bucket: int | None = None, keys: KeyRange | None = None) -> Scan:
        """Returns a scan of the rows of the view: all of them, or those of a range of keys of a bucket.

        Rows that have expired are left out only if the changelog will not have their removal.
        """
        assert self.snapshot is not None
        scan = self.table.scan().as_of(self.snapshot, changes_follow=not self.expires_silently)
        scan = scan.with_chunk(rows=_CHUNK_ROWS)
        if bucket is None:
            return scan
        return self.client.scan(replace(scan.spec, buckets=(bucket,), key_range=keys))

    def appended(self, bucket: int, since: LogOffsets | None) -> Scan:
        """Returns a scan of the rows that were appended to a bucket since some offsets. None: of all its rows."""
        stop = self.instant.log_offsets.of_buckets([bucket])
        if since is not None:
            return self._changes({bucket: since[bucket]}, stop)
        return self.table.changes(StartFrom.EARLIEST, StopAt.offsets(stop)).with_buckets(bucket)

    def conform(self, rows: pa.RecordBatch, stream: ScanStream) -> pa.RecordBatch:
        """Returns rows of a stream of changes with the columns of the view after those of the change.

        A stream that passes a change of the columns returns earlier rows with the columns that they had then.
        """
        fields = [rows.schema.field(name) for name in CHANGE_COLUMNS]
        arrays = list(rows.columns)[: len(fields)]
        assert self.column_ids is not None
        for id_, field in zip(self.column_ids, self.instant.schema, strict=True):
            fields.append(field.with_nullable(True))
            if id_ in stream.column_ids:
                arrays.append(rows.column(len(CHANGE_COLUMNS) + stream.column_ids.index(id_)).cast(field.type))
            elif field.name in stream.initial_defaults:
                arrays.append(repeat_default(stream.initial_defaults[field.name], rows.num_rows))
            else:
                arrays.append(pa.nulls(rows.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    async def add_changes(self, plans: Mapping[int, BucketPlan], since: LogOffsets) -> None:
        """Adds all keys that have changed between some offsets and the view to the plans of their buckets.

        Raises:
            PositionExpired, PositionOutOfRange, RangeNotTracked, TableRecreated: The changes are not known.
        """
        position = dict(since)
        while True:
            try:
                return await self._add_changes(plans, position, self.instant.log_offsets)
            except RangeNotTracked as error:
                bucket, offset = int(error.details["bucket"]), int(error.details["offset"])
                await self._add_changes(plans, {bucket: position[bucket]}, {bucket: offset})
                for cleared in await self._cleared_at(bucket, offset):
                    plans[bucket].add_range(cleared.start, cleared.end)
                    position[bucket] = offset + 1
                if position[bucket] <= offset:
                    raise

    async def collect_changes(self, since: LogOffsets, most_bytes: int) -> dict[int, ChangedRows] | None:
        """Returns the changes of each bucket between some offsets and the view, with the rows of the view.

        Returns:
            None if the rows take more than `most_bytes`, or the columns were changed since the view.

        Raises:
            PositionExpired, PositionOutOfRange, RangeNotTracked, TableRecreated: The changes are not known.
        """
        found = {bucket: ChangedRows(self.instant.schema, self.encode) for bucket in since}
        async with self._changes(since, self.instant.log_offsets).stream() as stream:
            # All changes are from before the view, so a different schema can only be a later one.
            if stream.schema_id != self.instant.schema_id:
                return None
            async for rows in stream:
                found[rows.column("_bucket")[0].as_py()].add(rows)
                if sum(each.bytes for each in found.values()) > most_bytes:
                    for each in found.values():
                        each.compact()
                    # Otherwise every few changes would be followed by a sort of all.
                    if sum(each.bytes for each in found.values()) > most_bytes // 2:
                        return None
        return found

    async def _add_changes(
        self, plans: Mapping[int, BucketPlan], start: Mapping[int, int], stop: Mapping[int, int]
    ) -> None:
        """Adds the changed keys of the buckets of `start`."""
        # Net changes would cost the server ten times as much as all changes.
        async for rows in self._changes(start, stop, columns=self.table.primary_key).stream():
            plans[rows.column("_bucket")[0].as_py()].add_keys(sorted(set(self.encode(rows).to_pylist())))

    async def _cleared_at(self, bucket: int, offset: int) -> list[ClearedRange]:
        """Returns the range of keys whose rows were deleted at an offset. Empty: something else is recorded there."""
        found: list[ClearedRange] = []
        stream = self._changes({bucket: offset}, {bucket: offset + 1}, columns=[]).with_untracked("rescan").stream()
        stream.on_cleared(found.append)
        async with stream:
            async for _ in stream:
                if found:
                    break
        return [cleared for cleared in found if cleared.offset == offset]

    def _changes(self, start: Mapping[int, int], stop: Mapping[int, int], columns: Sequence[str] | None = None) -> Scan:
        incarnation = self.instant.log_offsets.table_incarnation
        starts, stops = LogOffsets.of(start, incarnation), LogOffsets.of(stop, incarnation)
        scan = self.table.changes(StartFrom.offsets(starts), StopAt.offsets(stops), columns=columns)
        return scan.with_buckets(*start)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Returns the encoded keys of rows."""
        names = self.table.primary_key
        codec = KeyCodec([self.instant.schema.field(name).type for name in names], names)
        return codec.encode([rows.column(name) for name in names])


@asynccontextmanager
async def pin_view(client: Client, name: str, content: Content = "rows") -> AsyncIterator[TableView]:
    """Pins a table as of now for the length of the block.

    Args:
        client: The client, open.
        name: The table.
        content: What is published.

    Raises:
        SnapshotNotTaken: The columns of the table changed with every attempt.
        TableNotFound, TooManySnapshots: As for `Table.snapshot`.
    """
    for _ in range(_MOST_TRIES):
        table = await client.table(name)
        async with table.snapshot(ttl=_TTL_SECONDS) as snapshot:
            instant = Instant(
                log_offsets=snapshot.log_offsets,
                schema=snapshot.schema,
                schema_id=snapshot.schema_id,
                taken_at=snapshot.taken_at,
            )
            if table.options.get("changelog") != "none":
                view = await _view_of_changes(client, table, content)
            elif content == "changes":
                raise UsageError(f'table {name} has no changelog (changelog="none"), so no changes to publish')
            else:
                view = TableView(
                    client=client,
                    table=table,
                    instant=replace(instant, schema=table.schema),
                    snapshot=None,
                    column_ids=None,
                    null_columns=frozenset(),
                    content=content,
                )
            # With equal names and types, they may still be other columns.
            if view is not None and view.instant.schema_id == snapshot.schema_id:
                yield replace(view, instant=instant, snapshot=snapshot)
                return
    raise _columns_change(name)


async def view_changes(client: Client, name: str, content: Content = "rows") -> TableView | None:
    """Returns a table as of now, of which only the changes can be read. Unlike a pin, that flushes and copies nothing.

    None: the table has no changelog. Arguments and errors are those of `pin_view`.
    """
    for _ in range(_MOST_TRIES):
        table = await client.table(name)
        if table.options.get("changelog") == "none":
            return None
        view = await _view_of_changes(client, table, content)
        if view is not None:
            return view
    raise _columns_change(name)


def _columns_change(name: str) -> SnapshotNotTaken:
    return SnapshotNotTaken(f"the columns of table {name} changed with every attempt to read it: try again", table=name)


async def _view_of_changes(client: Client, table: Table, content: Content) -> TableView | None:
    """Returns a table with a changelog as of now. None: it has other columns or no changelog since it was looked up."""
    try:
        return await _open_view(client, table, content)
    except InvalidRequest:
        if (await client.table(table.name)).options.get("changelog") != "none":
            raise
        return None


async def _open_view(client: Client, table: Table, content: Content) -> TableView | None:
    async with table.changes(StartFrom.LATEST, StopAt.LATEST).stream() as stream:
        columns = list(stream.schema)[len(CHANGE_COLUMNS) :]
        if stream.schema_id != table._handle.shape.description.schema_id:
            return None
        defaults = stream.initial_defaults
        nulls = {id_ for id_, field in zip(stream.column_ids, columns, strict=True) if field.name not in defaults}
        instant = Instant(
            log_offsets=stream.log_offsets,
            schema=table.schema,
            schema_id=stream.schema_id,
            taken_at=stream.taken_at,
        )
        return TableView(
            client=client,
            table=table,
            instant=instant,
            snapshot=None,
            column_ids=stream.column_ids,
            null_columns=frozenset(nulls),
            content=content,
        )
