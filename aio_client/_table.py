"""One table: what it is, its rows by key, and what is written to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from aio_client._bases import BaseStatistics
from aio_client._computed import ComputedAnswers
from aio_client._consumers import ChangesOfTable
from aio_client._data import rows_of
from aio_client._indexes import index_statuses
from aio_client._keys import check_key_sizes, is_one_key, keys_of
from aio_client._lookup import LookupAnswer, assemble
from aio_client._optional import to_pylist
from aio_client._requests import LOOKUP_KEYS, cut, to_ipc
from aio_client._scan import Scan
from aio_client._shards import ScannedTable
from aio_client._snapshot import Pinning
from protos.scankv.v1 import lookup_pb2, table_pb2, write_pb2
from table_model.errors import InvalidKey, RequestTooLarge, SchemaMismatch, UsageError
from table_model.expressions import predicate_of
from table_model.scan_spec import ScanSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aio_client._data import Data, Rows
    from aio_client._indexes import IndexStatus
    from aio_client._scan_builder import Pinned
    from aio_client._transport import Method, Transport
    from table_model.expressions import Predicate, Where

_Request = TypeVar("_Request")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """What an upsert or a delete has done; all of it is durable.

    Attributes:
        rows: Rows, or keys, that were given; also those that changed nothing.
        log_offsets: For every bucket that was touched, the offset of the first change after this write: a scan whose
            `log_offsets` are not below these shows it. Opaque integers, to be compared within one bucket.
    """

    rows: int
    log_offsets: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStatistics:
    """The figures of one bucket.

    Attributes:
        bucket: Its number.
        rows: Live rows, exact. None: not counted, because rows were written without reading those that were there, as
            in tables without old rows in their changelog; `count` reads them.
        log_offset: The offset that the next change gets.
        epoch: How many unclean starts of the server the bucket has seen.
        disk_bytes: Bytes of its files.
        damage: Why it cannot be read; None when it can.
        base: Its columnar base. None: the table has the option `columnar_base=off`.
    """

    bucket: int
    rows: int | None
    log_offset: int
    epoch: int
    disk_bytes: int
    damage: str | None
    base: BaseStatistics | None


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a table is, as of one answer of the server: parts that must not be mixed with those of another answer."""

    description: table_pb2.Table
    schema: pa.Schema
    key_schema: pa.Schema

    @classmethod
    def of(cls, description: table_pb2.Table) -> _Shape:
        schema = pa.ipc.read_schema(pa.py_buffer(description.arrow_schema))
        return cls(description, schema, pa.schema([schema.field(name) for name in description.primary_key]))


class Table(ComputedAnswers, ChangesOfTable):
    """A table on the server. What it says of itself is as of when it was asked for; its rows are those of now.

    Made by `client.table(name)`, `create_table`, `alter_table` or `tables`. Belongs to the event loop of its client;
    many tasks may use it at once.
    """

    def __init__(self, transport: Transport, description: table_pb2.Table) -> None:
        """Called by the methods of `Client`."""
        self._transport = transport
        self._shape = _Shape.of(description)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._transport.address}>"

    @property
    def name(self) -> str:
        """`database.table`."""
        return self._shape.description.name

    @property
    def schema(self) -> pa.Schema:
        """The columns. Key columns are not nullable."""
        return self._shape.schema

    @property
    def primary_key(self) -> list[str]:
        """The key columns in key order."""
        return list(self._shape.description.primary_key)

    @property
    def bucket_key(self) -> list[str]:
        """The key columns whose values choose the bucket."""
        return list(self._shape.description.bucket_key)

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self._shape.description.buckets

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from their defaults."""
        return dict(self._shape.description.options)

    @property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each index, in the order in which they were made; also of those that are still built."""
        return tuple(tuple(index.columns) for index in self._shape.description.indexes)

    async def upsert(self, data: Data) -> WriteResult:
        """Inserts rows, and replaces those whose key is there already. Of several rows of one key the last counts.

        Columns are matched by name. Values are cast where nothing is lost: numbers of other widths, all layouts of text
        and lists, dates to timestamps. NaN in pandas is null, and so is a key that a dictionary does not have.

        Rows in memory are checked whole before the first is sent, so bad ones write nothing. A reader, or another
        object that streams, is checked batch by batch: rows before a bad one may have been written. The rows go out in
        order, in requests of up to 8 MiB; one request is atomic by bucket and 10,000 rows. When the call fails halfway,
        repeat it: that changes nothing where it was applied. A request whose answer never came may still be underway
        and be applied later, even behind what is written after it.

        Args:
            data: A RecordBatch, Table or RecordBatchReader, a pandas or Polars DataFrame, a list of dictionaries, or
                anything with `__arrow_c_stream__` or `__arrow_c_array__`. Must not be changed meanwhile.

        Raises:
            SchemaMismatch: A column is missing or unknown, or a value cannot be in its column; names column and row.
            InvalidKey: A key is over 16 KiB.
            RequestTooLarge: A row is over 16 MiB.
            UsageError: No rows can be taken from `data`.
        """
        # In a thread, because data may be a blocking stream: a scan of `aio_client.sync`, for one.
        rows = await asyncio.to_thread(rows_of, data)
        try:
            rows.check_names(self.schema)
        except SchemaMismatch:
            # The column may have been added since the table was asked for.
            await self._refresh()
            rows.check_names(self.schema)
        return await self._write(lambda: self._transport.services.writes.Upsert, _upsert_requests(self._shape, rows))

    async def delete(self, keys: object) -> WriteResult:
        """Deletes the rows with these keys; a key without a row is passed over.

        Args:
            keys: As for `lookup`.

        Raises:
            InvalidKey: A key is incomplete, null, over 16 KiB, or not of its columns' types. Nothing was deleted.
        """
        return await self._write(lambda: self._transport.services.writes.Delete, _delete_requests(self._shape, keys))

    async def get(self, key: object) -> dict[str, Any] | None:
        """The row with this key as a dictionary, None when there is none.

        Args:
            key: A scalar where the key has one column, a tuple in key order, or a dictionary of all key columns.

        Raises:
            InvalidKey: The key is incomplete, null, or not of its columns' types.
        """
        if not is_one_key(key):
            raise InvalidKey(f"get takes one key, not a {type(key).__name__}; lookup takes many")
        rows = to_pylist(await self.lookup(key))
        return rows[0] if rows else None

    async def lookup(self, keys: object, *, missing: Literal["omit", "null"] = "omit") -> pa.Table:
        """The rows with these keys, in the order asked; a key given twice is there twice.

        What it shows is durable. Keys of one bucket are read at one instant as far as they fit into one request (10,000
        keys); those of several buckets, one after another.

        Args:
            keys: A key as for `get`, an iterable of keys, an Arrow or NumPy array where the key has one column, or
                Arrow data or a DataFrame with the key columns, whose other columns are ignored.
            missing: What becomes of a key without a row: nothing, or a row that is null but for its key. With `null`,
                the result has as many rows as there are keys.

        Raises:
            InvalidKey: A key is incomplete, null, or not of its columns' types.
        """
        if missing not in ("omit", "null"):
            raise UsageError(f'missing is "omit" or "null", not {missing!r}', option="missing")
        batch = await asyncio.to_thread(keys_of, keys, self._shape.key_schema)
        answers = [answer for piece in cut([batch], max_rows=LOOKUP_KEYS) for answer in await self._lookup(piece)]
        return assemble(answers, self.schema, fill_missing=missing == "null")

    def scan(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, limit: int | None = None
    ) -> Scan:
        """A scan of the table, to be refined and started.

        Args:
            columns: The columns to return, in this order. Default: all. Empty: rows without columns.
            where: What is true of the rows to return, as for `Scan.where`. Default: all rows.
            limit: The most rows to return, over all buckets together. Default: no limit.

        Raises:
            UsageError: The limit is negative, a column is named twice, or `where` cannot be read. Columns that do not
                exist are found when the scan starts.
            SchemaMismatch: `where` is text and names a column that does not exist, or compares it with what it cannot
                be; says where in the text.
        """
        names = (columns,) if isinstance(columns, str) else columns
        chosen = None if names is None else tuple(names)
        spec = ScanSpec(self.name, columns=chosen, where=self._predicate(where), limit=limit)
        return Scan(self._transport, spec, ScannedTable(self._shape.key_schema, self.buckets))

    def snapshot(self, ttl: float = 600, *, same_view_as: Pinned | str | None = None) -> Pinning:
        """Pins the table as of now, all buckets at one instant, so that any number of scans read the same rows.

            async with table.snapshot(ttl=600) as snap:
                rows = await table.scan().at(snap).to_arrow()

        In `async with`, the snapshot is renewed every third of its time to live, and released at the end. With
        `snap = await table.snapshot()`, both are the caller's. Pinning a table that has not changed since its last pin
        costs next to nothing. The call is repeated within the operation timeout when its answer is lost, the server
        restarts, or writers would have been held for too long; a snapshot taken by a call that fails in the end expires
        by itself.

        Args:
            ttl: Seconds until the snapshot is lost unless it is renewed, 1 to 604,800.
            same_view_as: A snapshot of this table, or its id, whose view is kept on in place of one as of now.

        Raises:
            TableNotFound: The table was dropped.
            SnapshotLost: That of `same_view_as` has ended.
            TooManySnapshots: The server has as many snapshots, or holds as much on disk for them, as it allows.
            SnapshotNotTaken: Writers would have been held for too long, also when it was tried again.
            UsageError: `ttl` is out of its range.
        """
        return Pinning(self._transport, self.name, ttl, same_view_as)

    async def statistics(self) -> list[BucketStatistics]:
        """The figures of every bucket, ascending. Opens all of them."""
        response = await self._described()
        return [
            BucketStatistics(
                bucket=bucket.bucket,
                rows=bucket.rows if bucket.HasField("rows") else None,
                log_offset=bucket.log_offset,
                epoch=bucket.epoch,
                disk_bytes=bucket.disk_bytes,
                damage=bucket.damage or None,
                base=BaseStatistics.of(bucket.base) if bucket.HasField("base") else None,
            )
            for bucket in response.buckets
        ]

    async def index_status(self) -> list[IndexStatus]:
        """How far every index is built now, in the order in which they were made. Opens all buckets."""
        return index_statuses(await self._described())

    async def _described(self) -> table_pb2.GetTableResponse:
        request = table_pb2.GetTableRequest(name=self.name, statistics=True)
        return await self._transport.call(self._transport.services.tables.GetTable, request)

    def _predicate(self, where: Where | None) -> Predicate | None:
        return None if where is None else predicate_of(where, self.schema)

    async def _refresh(self) -> None:
        request = table_pb2.GetTableRequest(name=self.name)
        response = await self._transport.call(self._transport.services.tables.GetTable, request)
        self._shape = _Shape.of(response.table)

    async def _write(
        self, method: Callable[[], Method[_Request, write_pb2.WriteResponse]], requests: Iterator[_Request]
    ) -> WriteResult:
        """Sends requests one after another, since only those that do not overlap in time are applied in order.

        They are made in a thread: converting rows takes its time, and a reader may block. The method is asked for each
        time, because it belongs to a connection, which may be replaced.
        """
        rows = 0
        log_offsets: dict[int, int] = {}
        while (request := await asyncio.to_thread(next, requests, None)) is not None:
            response = await self._transport.call(method(), request)
            rows += response.rows
            for bucket, offset in response.log_offsets.items():
                log_offsets[bucket] = max(offset, log_offsets.get(bucket, offset))
        return WriteResult(rows=rows, log_offsets=log_offsets)

    async def _lookup(self, keys: pa.RecordBatch) -> list[LookupAnswer]:
        """Reads the rows of some keys, in halves when their rows do not fit into one answer."""
        request = lookup_pb2.LookupRequest(table=self.name, keys=to_ipc(keys))
        try:
            response = await self._transport.call(self._transport.services.lookups.Lookup, request)
        except RequestTooLarge:
            if keys.num_rows == 1:
                raise
            half = keys.num_rows // 2
            return await self._lookup(keys.slice(0, half)) + await self._lookup(keys.slice(half))
        return [LookupAnswer.read(keys, response)]


def _upsert_requests(shape: _Shape, rows: Rows) -> Iterator[write_pb2.UpsertRequest]:
    name, schema_id = shape.description.name, shape.description.schema_id
    pieces = cut(_with_checked_keys(rows.batches(shape.schema), shape))
    for piece in list(pieces) if rows.in_memory else pieces:
        yield write_pb2.UpsertRequest(table=name, rows=to_ipc(piece), schema_id=schema_id)


def _delete_requests(shape: _Shape, keys: object) -> Iterator[write_pb2.DeleteRequest]:
    for piece in list(cut(_with_checked_keys([keys_of(keys, shape.key_schema)], shape))):
        yield write_pb2.DeleteRequest(table=shape.description.name, keys=to_ipc(piece))


def _with_checked_keys(batches: Iterable[pa.RecordBatch], shape: _Shape) -> Iterator[pa.RecordBatch]:
    first_row = 0
    for batch in batches:
        check_key_sizes(batch, shape.key_schema, first_row)
        yield batch
        first_row += batch.num_rows
