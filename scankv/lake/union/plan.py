"""Plans a union read: which published version, what has changed since, or why the server has to be read alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import (
    PositionExpired,
    PositionOutOfRange,
    RangeNotTracked,
    StartFrom,
    StopAt,
    TableRecreated,
)
from aio_client._client.table import open_table
from aio_client._scan.stream import ScanStream
from scankv.lake.union.fresh_rows import FreshChanges, FreshRows, key_codec
from scankv.lake.union.published_rows import PublishedRows, UnionColumn
from scankv.lake.versions import open_version
from scankv.model.changes.log_offsets import check_incarnation
from scankv.model.counts import counted
from scankv.model.errors import LakeError, SchemaMismatch
from scankv.model.expressions.binding import bind, columns_of
from scankv.model.expressions.key_planning import plan_keys
from scankv.model.keys.buckets import KeyPlaces
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES, NO_KEY_RANGES
from scankv.model.tables.columns import CHANGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aio_client import LogOffsets, Table
    from aio_client._scan.progress import ScanProgress
    from aio_client._transport.transport import Transport
    from scankv.lake.lake_table import DataFile, LakeTable, LakeVersion
    from scankv.model.expressions.binding import BoundPredicate
    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_ranges import KeyRanges
    from scankv.model.scans.scan_spec import ScanSpec

MOST_CHANGED_SHARE: Final = 0.25
"""The largest share of the published rows that may have changed. Beyond it, reading the server alone is as fast."""
_ALWAYS_CHANGES: Final = 65_536
_MOST_BYTES: Final = 256 << 20
_OTHER_COLUMNS: Final = "the columns of the table were changed after the instant of the scan"


class ServerAloneError(Exception):
    """Why the server has to be read alone; its text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionPlan:
    """A union read: everything it needs from the server has arrived. Immutable.

    Attributes:
        spec: The scan.
        version: The published version.
        published: Reads the files of the version.
        progress: The progress of a scan without rows, whose header names the instant and the columns of the answer.
        columns: The columns that are read, by name: those of the answer, of the predicate and of the key.
        fresh: What has changed between the version and the instant.
        where: The predicate of the scan. None: all rows match.
        keys: The keys that rows of the answer can have, by bucket. Other buckets have none of them.
    """

    spec: ScanSpec
    version: LakeVersion
    published: PublishedRows
    progress: ScanProgress = field(repr=False)
    columns: Mapping[str, UnionColumn] = field(repr=False)
    fresh: FreshRows = field(repr=False)
    where: BoundPredicate | None = field(repr=False)
    keys: Mapping[int, KeyRanges] = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer."""
        return self.progress.schema

    @property
    def buckets(self) -> list[int]:
        """The buckets to read, in order."""
        return sorted(self.version.state.log_offsets if self.spec.buckets is None else self.spec.buckets)

    def files(self, bucket: int) -> list[DataFile]:
        """Returns the files of a bucket that may have keys of the scan, in the order of their keys."""
        keys = self.keys.get(bucket, NO_KEY_RANGES)
        files = [
            file
            for file in self.version.files
            if file.bucket == bucket and keys.within(KeyRange(file.first_key, file.last_key + b"\0"))
        ]
        return sorted(files, key=lambda file: file.first_key)

    def describe(self) -> str:
        """Returns what is read from where, in words."""
        state, changed = self.version.state, sum(len(each.keys) for each in self.fresh.keys.values())
        version = (
            f"version {self.version.version:,} in {self.published.lake.location}, which shows the table as of "
            f"{state.view_time}"
        )
        if self.spec.as_of is not None:
            return f"{version}, at the log offsets {dict(state.log_offsets)}"
        return (
            f"{version}, without {counted(changed, 'key')} changed since, and "
            f"{counted(self.fresh.rows.num_rows, 'row')} from the server"
        )


async def plan_union(transport: Transport, spec: ScanSpec) -> UnionPlan:
    """Plans a union read as of now, or as of the snapshot of the scan. Reads the changes since the latest version.

    With `as_of`, it plans a read of an earlier version alone.

    All buckets are of one instant: that of a scan without rows, which also has the server check the columns and the
    predicate. The changes up to its log offsets lead from the published version to that instant.

    Raises:
        ServerAloneError: The published table cannot be used.
        UsageError: The location cannot be used.
        LakeError: With `as_of`: there is no such version, or it cannot be read.
        ScanKvError: As when the scan starts.
    """
    if spec.as_of is not None:
        return await _plan_version(transport, spec)
    _check_spec(spec)
    lake, version = await _load(spec)
    table = await open_table(transport, spec.table)
    _check_table(table)
    header = await _read_header(transport, spec)
    start, stop = _offsets(version, header.log_offsets, spec)
    columns, fresh = await _read_changes(table, spec, header, start, stop, _most_changes(version))
    return _make_plan(spec, lake, version, table, header._progress, columns, fresh)


async def _plan_version(transport: Transport, spec: ScanSpec) -> UnionPlan:
    """Plans a read of a version of the published table. The server describes the table, and reads no rows."""
    assert spec.lake is not None
    lake, version = await asyncio.to_thread(open_version, spec.lake, spec.table, spec.as_of)
    table = await open_table(transport, spec.table)
    check_incarnation(version.state.log_offsets.table_incarnation, table.name, table.incarnation)
    header = await _read_header(transport, spec)
    names = _names(spec, table)
    buckets = version.state.log_offsets if spec.buckets is None else spec.buckets
    try:
        async with table.changes(StartFrom.LATEST, StopAt.LATEST, columns=names).stream() as stream:
            _check_columns(table, header, stream)
            columns = _columns(stream, names, table.schema)
    except ServerAloneError as error:
        raise SchemaMismatch(f"{error}: repeat the scan", table=table.name) from error
    micros = round(datetime.fromisoformat(version.state.view_time).timestamp() * 1e6)
    progress = header._progress.as_of(spec, version.state.log_offsets.of_buckets(buckets), micros)
    fresh = FreshRows.none(pa.schema([each.field for each in columns.values()]), table.primary_key)
    return _make_plan(spec, lake, version, table, progress, columns, fresh)


async def _read_header(transport: Transport, spec: ScanSpec) -> ScanStream:
    """Returns a scan without rows, of whose columns and predicate the server has approved."""
    header = ScanStream(transport, replace(spec, read_path="auto", lake=None, as_of=None, limit=0))
    async with header:
        async for _ in header:
            raise AssertionError("a scan with limit 0 has returned rows")
    return header


def _make_plan(
    spec: ScanSpec,
    lake: LakeTable,
    version: LakeVersion,
    table: Table,
    progress: ScanProgress,
    columns: Mapping[str, UnionColumn],
    fresh: FreshRows,
) -> UnionPlan:
    schema = pa.schema([column.field for column in columns.values()])
    codec = key_codec(schema, table.primary_key) if table.primary_key else None
    where = None if spec.where is None else bind(spec.where, schema)
    return UnionPlan(
        spec=spec,
        version=version,
        published=PublishedRows(lake=lake, state=version.state, codec=codec),
        progress=progress,
        columns=columns,
        fresh=fresh,
        where=where,
        keys=_keys_of(spec, where, table, codec),
    )


def _keys_of(
    spec: ScanSpec, where: BoundPredicate | None, table: Table, codec: KeyCodec | None
) -> dict[int, KeyRanges]:
    """Returns the keys that rows of an answer can have, by bucket."""
    buckets = range(table.buckets) if spec.buckets is None else spec.buckets
    if codec is None:
        return dict.fromkeys(buckets, ALL_KEY_RANGES)
    ranges = ALL_KEY_RANGES if where is None else plan_keys(where, codec).ranges
    if spec.key_range is not None:
        ranges = ranges.within(spec.key_range)
    key = pa.schema([table.schema.field(name) for name in table.primary_key])
    return KeyPlaces(key, table.bucket_key, table.buckets).of_ranges(ranges, buckets)


def _check_spec(spec: ScanSpec) -> None:
    """Raises ServerAloneError if the server has to answer the scan, whatever was published."""
    for is_asked, why in (
        (spec.ordered or spec.reverse, "the server sorts the rows"),
        (spec.resume_token is not None, "the scan continues from a resume token"),
        (spec.if_changed_since is not None, "the server knows whether the table has changed"),
        (spec.buckets == (), "no bucket is read"),
    ):
        if is_asked:
            raise ServerAloneError(why)


async def _load(spec: ScanSpec) -> tuple[LakeTable, LakeVersion]:
    assert spec.lake is not None
    try:
        return await asyncio.to_thread(open_version, spec.lake, spec.table)
    except LakeError as error:
        raise ServerAloneError(error.message) from error


def _check_table(table: Table) -> None:
    """Raises ServerAloneError if the changes of the table do not say which rows it has now."""
    changelog = table.options.get("changelog", "full")
    if not table.primary_key:
        raise ServerAloneError("the table has no primary key")
    if changelog in ("none", "input"):
        raise ServerAloneError(f'the changelog of the table does not have its rows (changelog="{changelog}")')
    if "ttl_seconds" in table.options or "partition_ttl" in table.options:
        raise ServerAloneError("rows of the table expire")


def _offsets(version: LakeVersion, stop: LogOffsets, spec: ScanSpec) -> tuple[LogOffsets, LogOffsets]:
    """Returns where the changes start and stop, for each bucket of the scan."""
    start = version.state.log_offsets
    if start.table_incarnation != stop.table_incarnation:
        raise ServerAloneError("the table was restored, or dropped and created again, after it was published")
    buckets = stop if spec.buckets is None else spec.buckets
    if any(bucket not in start or start[bucket] > stop[bucket] for bucket in buckets):
        raise ServerAloneError("the published version is newer than the instant of the scan")
    return start.of_buckets(buckets), stop.of_buckets(buckets)


def _most_changes(version: LakeVersion) -> int:
    rows = sum(file.rows - file.masked_rows for file in version.files)
    return max(_ALWAYS_CHANGES, int(rows * MOST_CHANGED_SHARE))


async def _read_changes(
    table: Table,
    spec: ScanSpec,
    header: ScanStream,
    start: LogOffsets,
    stop: LogOffsets,
    most: int,
) -> tuple[dict[str, UnionColumn], FreshRows]:
    """Returns the columns to read, and the net changes."""
    schema = table.schema
    names = _names(spec, table)
    scan = table.changes(StartFrom.offsets(start), StopAt.offsets(stop), columns=names).with_buckets(*start)
    try:
        async with scan.stream() as stream:
            _check_columns(table, header, stream)
            columns = _columns(stream, names, schema)
            net = FreshChanges(pa.schema([each.field for each in columns.values()]), table.primary_key)
            async for changes in stream:
                if changes.schema.names != stream.schema.names or changes.schema.types != stream.schema.types:
                    raise ServerAloneError(_OTHER_COLUMNS)
                net.add(changes)
                if net.changes > most or net.bytes > _MOST_BYTES:
                    raise ServerAloneError(
                        f"too much has changed since the table was published: more than {most:,} times, or 256 MiB"
                    )
    except (PositionExpired, PositionOutOfRange, RangeNotTracked, TableRecreated) as error:
        raise ServerAloneError(f"the changes since the table was published are not known: {error.message}") from error
    return columns, await asyncio.to_thread(net.finish)


def _check_columns(table: Table, header: ScanStream, changes: ScanStream) -> None:
    """Raises ServerAloneError unless a table, a scan of it and a stream of its changes have the same columns."""
    # With equal names and types, they may still be other columns.
    if not table._handle.shape.description.schema_id == header.schema_id == changes.schema_id:
        raise ServerAloneError(_OTHER_COLUMNS)


def _names(spec: ScanSpec, table: Table) -> list[str]:
    """Returns the columns to read: the columns of the answer, of the predicate and of the key."""
    asked = table.schema.names if spec.columns is None else spec.columns
    tested = () if spec.where is None else columns_of(spec.where, table.schema)
    return list(dict.fromkeys((*asked, *tested, *table.primary_key)))


def _columns(stream: ScanStream, names: Sequence[str], schema: pa.Schema) -> dict[str, UnionColumn]:
    defaults = stream.initial_defaults
    fields = list(stream.schema)[len(CHANGE_COLUMNS) :]
    if [(each.name, each.type) for each in fields] != [(name, schema.field(name).type) for name in names]:
        raise ServerAloneError(_OTHER_COLUMNS)
    return {
        each.name: UnionColumn(id_, schema.field(each.name), defaults.get(each.name))
        for id_, each in zip(stream.column_ids, fields, strict=True)
    }
