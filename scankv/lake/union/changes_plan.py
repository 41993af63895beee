"""Plans a stream of changes that begins in a published version: its files, its columns, and where the changes begin."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import PositionExpired, PositionOutOfRange, StartFrom, StopAt
from aio_client._client.table import open_table
from aio_client._scan.stream import ScanStream
from scankv.lake.union.published_rows import PublishedRows, UnionColumn
from scankv.lake.versions import open_version
from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import InvalidRequest, LakeVersionNotFound, SchemaMismatch
from scankv.model.expressions.binding import bind, columns_of
from scankv.model.expressions.evaluation import evaluate
from scankv.model.tables.columns import CHANGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aio_client import Table
    from aio_client._scan.progress import ScanProgress
    from aio_client._transport.transport import Transport
    from scankv.lake.lake_table import DataFile, LakeVersion
    from scankv.lake.union.file_token import FileToken
    from scankv.model.expressions.binding import BoundPredicate
    from scankv.model.scans.scan_spec import ScanSpec

_CHUNK_ROWS: Final = 16_384
_MOST_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPlan:
    """A stream of changes that begins with the rows of a version. Immutable.

    Attributes:
        spec: The changes that follow the rows.
        version: The version.
        published: Reads its files.
        after: The progress of a stream of the changes after the version, before its first change.
        columns: The columns that are read, by name: those of the table in the stream, and those of the predicate.
        where: The predicate. None: all rows match.
    """

    spec: ScanSpec
    version: LakeVersion
    published: PublishedRows
    after: ScanProgress = field(repr=False)
    columns: Mapping[str, UnionColumn] = field(repr=False)
    where: BoundPredicate | None = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the stream."""
        return self.after.schema

    @property
    def files(self) -> Sequence[DataFile]:
        """The files to read, in their order."""
        return files_in_order(file for file in self.version.files if file.bucket in self.after.next_offsets)

    def read(self, file: DataFile, first: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields the rows of a file from one on as changes, and how many of its rows were read then. Blocks.

        Raises:
            LakeDamaged, LakeUnavailable: As `PublishedRows.read`.
        """
        rows = self.published.read(file, self.columns, list(self.columns), changed=None, key_range=None)
        size = self.spec.chunk_rows or _CHUNK_ROWS
        for start in range(first, rows.num_rows, size):
            batch = rows.slice(start, min(size, rows.num_rows - start))
            end = start + batch.num_rows
            if self.where is not None:
                batch = batch.filter(evaluate(self.where, batch))
            if batch.num_rows:
                yield end, self._as_changes(batch, file.bucket)

    def _as_changes(self, rows: pa.RecordBatch, bucket: int) -> pa.RecordBatch:
        count = rows.num_rows
        kind, offset, number, time = (self.schema.field(name).type for name in CHANGE_COLUMNS)
        change = (
            pa.repeat(pa.scalar("+I", kind), count),
            pa.nulls(count, offset),
            pa.repeat(pa.scalar(bucket, number), count),
            pa.nulls(count, time),
        )
        names = self.schema.names[len(CHANGE_COLUMNS) :]
        return pa.RecordBatch.from_arrays([*change, *(rows.column(name) for name in names)], schema=self.schema)


def files_in_order(files: Iterable[DataFile]) -> list[DataFile]:
    """Returns files in the order in which streams read them: bucket by bucket, by their keys."""
    return sorted(files, key=lambda file: (file.bucket, file.first_key, file.path))


async def plan_changes(transport: Transport, spec: ScanSpec, token: FileToken | None = None) -> ChangesPlan:
    """Plans a stream that begins with `StartFrom.lake`, or continues within the files of a version.

    Args:
        transport: The connection.
        spec: The stream, with or without a token.
        token: Where it continues. None: with the first row of the latest version.

    Raises:
        LakeError: The version cannot be read.
        LakeVersionNotFound: The location has no version, or the one of the token has expired.
        PositionExpired: The changes after the version are not kept any more.
        InvalidRequest: The changes of the table cannot follow its rows.
        TableRecreated: The version shows an earlier table of the same name.
        ScanKvError: As when a stream of changes starts.
    """
    assert spec.log is not None
    as_of = None if token is None else token.version
    lake, version = await asyncio.to_thread(open_version, spec.log.start.uri, spec.table, as_of)
    if token is not None and version.state.commit_id != token.commit_id:
        raise LakeVersionNotFound(
            f"version {version.version:,} in {lake.location} was published again since the stream began: start again"
        )
    for _ in range(_MOST_ATTEMPTS):
        table = await open_table(transport, spec.table)
        if table.options.get("changelog") == "input":
            raise InvalidRequest(
                f'table {table.name} has changelog="input", which records what is written before it is merged, so a '
                "stream cannot begin with rows: start at offsets, at a time, or with EARLIEST, LATEST or last",
                table=table.name,
            )
        after = await _open_log(transport, spec, lake.location, version)
        columns = await _columns(table, spec, after)
        if columns is not None:
            types = pa.schema([column.field for column in columns.values()])
            return ChangesPlan(
                spec=await _with_end(table, spec),
                version=version,
                published=PublishedRows(lake=lake, state=version.state, codec=None),
                after=after._progress,
                columns=columns,
                where=None if spec.where is None else bind(spec.where, types),
            )
    raise SchemaMismatch(f"the columns of table {spec.table} changed with every attempt: start again", table=spec.table)


async def _open_log(transport: Transport, spec: ScanSpec, location: object, version: LakeVersion) -> ScanStream:
    """Returns a stream of the changes after a version, which has ended after its header."""
    assert spec.log is not None
    offsets = version.state.log_offsets
    start = StartFrom.offsets(offsets if spec.buckets is None else offsets.of_buckets(spec.buckets) or offsets)
    log = replace(
        spec.log, start=start, clamp=False, consumer_id=None, consumer_must_exist=False, consumer_principal=None
    )
    try:
        async with ScanStream(transport, replace(spec, log=log, resume_token=None)) as stream:
            return stream
    except (PositionExpired, PositionOutOfRange) as error:
        raise type(error)(
            f"the server does not have the changes after version {version.version:,} in {location}, which shows table "
            f"{spec.table} as of {version.state.view_time}: publish the table again, or start with StartFrom.FULL "
            f"({error.message})",
            table=spec.table,
        ) from error


async def _columns(table: Table, spec: ScanSpec, after: ScanStream) -> dict[str, UnionColumn] | None:
    """Returns the columns to read. None: the columns of the table have changed since a stream was opened."""
    tested = () if spec.where is None else columns_of(spec.where, table.schema)
    names = list(dict.fromkeys((*after.schema.names[len(CHANGE_COLUMNS) :], *tested)))
    async with table.changes(StartFrom.LATEST, StopAt.LATEST, columns=names).stream() as stream:
        fields, defaults = list(stream.schema)[len(CHANGE_COLUMNS) :], stream.initial_defaults
        if stream.schema_id != after.schema_id:
            return None
        return {
            each.name: UnionColumn(id_, each, defaults.get(each.name))
            for id_, each in zip(stream.column_ids, fields, strict=True)
        }


async def _with_end(table: Table, spec: ScanSpec) -> ScanSpec:
    """Returns the changes that follow the rows. `StopAt.LATEST` is where the changelog ends now."""
    assert spec.log is not None
    log = replace(spec.log, start=StartFrom.FULL, clamp=False)
    if log.stop is not None and log.stop.kind is PositionKind.LATEST:
        log = replace(log, stop=StopAt.offsets(await table.log_offsets()))
    return replace(spec, log=log, resume_token=None)
