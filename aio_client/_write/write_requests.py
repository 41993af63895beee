"""Converts rows and keys to the write requests of one table, and defines the results of writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client._input.arguments import names_of
from aio_client._input.keys import check_key_sizes, keys_of
from aio_client._input.requests import cut, to_ipc
from aio_client._input.shown_fields import ShownFields
from aio_client._scan.protocol import log_offsets_message
from aio_client._write.merging import check_mode
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import StartFrom
from scankv.model.counts import counted
from scankv.model.errors import TableRecreated, UsageError
from scankv.model.tables.columns import CHANGE_TYPE
from scankv.model.tables.log_tables import require_no_key
from scankv.model.tables.merge_spec import check_retraction
from scankv.model.types.default_values import NO_DEFAULTS
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aio_client._input.data import InputRows
    from aio_client._table.shape import TableShape
    from aio_client._write.merging import Names, WriteMode
    from aio_client._write.repeatable_writes import Request
    from scankv.v1 import scan_pb2

_CHANGE: Final = pa.field(CHANGE_TYPE, pa.string(), nullable=False)


@dataclass(frozen=True, slots=True)
class RequestKind:
    """What a write does with its rows. Only batches of the same kind share a request.

    Attributes:
        table: The table's name, as `database.table`.
        deletes: Whether the rows are keys to delete.
        schema_id: The schema version that the rows were made for, or in which `columns` are named. 0: for keys alone.
        columns: The columns to write; empty: all.
        overwrite: Whether the rows replace existing rows, whatever the merge engine.
        changes: Whether the rows have a column with their row kind.
        untracked: Whether the changes of the rows are left out of the changelog.
    """

    table: str
    deletes: bool
    schema_id: int
    columns: tuple[str, ...] = ()
    overwrite: bool = False
    changes: bool = False
    untracked: bool = False

    def request(self, batch: pa.RecordBatch) -> Request:
        """Returns one request of this kind with these rows."""
        mode = mode_of("overwrite" if self.overwrite else "merge")
        if self.deletes:
            return write_pb2.DeleteRequest(
                table=self.table, keys=to_ipc(batch), schema_id=self.schema_id, columns=self.columns, mode=mode
            )
        return write_pb2.UpsertRequest(
            table=self.table,
            rows=to_ipc(batch),
            schema_id=self.schema_id,
            columns=self.columns,
            mode=mode,
            untracked=self.untracked,
        )


def mode_of(mode: WriteMode) -> write_pb2.WriteMode.ValueType:
    """Returns the mode as requests carry it. Raises UsageError for an unknown mode."""
    check_mode(mode)
    return write_pb2.WRITE_MODE_OVERWRITE if mode == "overwrite" else write_pb2.WRITE_MODE_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class WritePieces:
    """What one call writes, in pieces of one request each. Pieces are made when they are asked for.

    Attributes:
        kind: What to do with the rows.
        batches: The pieces in order, with checked keys. Rows in memory are all checked before the first piece.
        are_few: Whether they are so few rows that their request is made without a thread.
    """

    kind: RequestKind
    batches: Iterator[pa.RecordBatch]
    are_few: bool = False

    async def make_request(self) -> Request | None:
        """Returns the next piece as a request; None after the last piece."""
        return self.next_request() if self.are_few else await asyncio.to_thread(self.next_request)

    def next_request(self) -> Request | None:
        """See `make_request`. Blocks."""
        batch = next(self.batches, None)
        return None if batch is None else self.kind.request(batch)

    @classmethod
    def of_rows(
        cls,
        shape: TableShape,
        rows: InputRows,
        columns: Names | None = None,
        mode: str = "merge",
        *,
        retract: bool = False,
        track_changes: bool = True,
        append: bool = False,
    ) -> WritePieces:
        """Returns the pieces of an upsert, of a retraction, or of rows to append.

        Raises:
            NoPrimaryKey: The table has no primary key, and the rows are not appended.
            SchemaMismatch: The table does not have a column, or columns cannot be written alone.
            InvalidRequest: The table's merge engine does not support the write; or rows are appended to a table with a
                primary key.
            UsageError: `columns` or `mode` is invalid.
        """
        check_mode(mode)
        if append:
            require_no_key(shape.name, shape.key_schema.names)
        else:
            shape.require_key("rows are only appended: use append")
        names = () if columns is None else names_of(columns, "columns")
        changes = not retract and rows.has(CHANGE_TYPE)
        rows.check_names(shape.schema.append(_CHANGE) if changes else shape.schema)
        schema = shape.schema if columns is None else shape.partial_schema(names, overwrite=mode == "overwrite")
        if retract:
            check_retraction(shape.merge_engine, shape.description.options.get("delete_behavior", ""), shape.name)
        kind = RequestKind(
            shape.name,
            deletes=False,
            schema_id=shape.description.schema_id,
            columns=() if columns is None else tuple(schema.names),
            overwrite=mode == "overwrite",
            changes=changes or retract,
            untracked=not track_changes,
        )
        counted = () if mode == "overwrite" else shape.counted_columns
        defaults = shape.defaults if columns is None and not retract else NO_DEFAULTS
        batches = rows.batches(schema.append(_CHANGE) if changes else schema, counted, defaults)
        pieces = cut(_check_keys(map(_as_deletions, batches) if retract else batches, shape))
        return cls(kind, _check_all_first(pieces) if rows.in_memory else pieces)

    @classmethod
    def of_few_rows(cls, shape: TableShape, rows: pa.RecordBatch) -> WritePieces:
        """Returns the one piece of an upsert of few complete rows of the shape's schema."""
        kind = RequestKind(shape.name, deletes=False, schema_id=shape.description.schema_id)
        return cls(kind, iter([rows]), are_few=True)

    @classmethod
    def of_keys(cls, shape: TableShape, keys: object, columns: Names | None = None, mode: str = "merge") -> WritePieces:
        """Returns the pieces of a delete, of rows or of some of their columns. Raises the errors of `of_rows`."""
        check_mode(mode)
        shape.require_key("rows are not deleted")
        names = () if columns is None else names_of(columns, "columns")
        if columns is not None:
            if not set(names) - set(shape.key_schema.names):
                raise UsageError("columns must name a column outside the key: to delete the rows, leave it out")
            shape.partial_schema((*dict.fromkeys([*shape.key_schema.names, *names]),), overwrite=True)
        # Servers of version 0.1, in which columns keep their names, refuse the field.
        schema_id = shape.description.schema_id if names and shape.description.last_column_id else 0
        overwrite = mode == "overwrite"
        kind = RequestKind(shape.name, deletes=True, schema_id=schema_id, columns=names, overwrite=overwrite)
        return cls(kind, _check_all_first(cut(_check_keys(_key_batches(keys, shape), shape))))


def _as_deletions(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column(_CHANGE, pa.repeat("-D", batch.num_rows))


def _check_all_first(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from list(pieces)


def _key_batches(keys: object, shape: TableShape) -> Iterator[pa.RecordBatch]:
    yield keys_of(keys, shape.key_schema)


def require_one_piece(pieces: WritePieces) -> WritePieces:
    """Returns the pieces. Raises UsageError unless there is exactly one, which the server can check at once."""
    first, second = next(pieces.batches, None), next(pieces.batches, None)
    if first is None or second is not None:
        raise UsageError(
            "a write with if_version must fit into one request: between 1 and 100,000 rows, and at most 8 MiB",
            option="if_version",
        )
    return WritePieces(pieces.kind, iter([first]))


def require_same_table(request: Request, shape: TableShape, written: LogOffsets) -> None:
    """Has the server refuse a request unless the table is the one that earlier requests of its write were written to.

    Args:
        request: The request.
        shape: The table.
        written: The log offsets after the earlier requests.
    """
    # Servers of version 0.1 refuse the field. There, `add_offsets` finds the same, but after the rows were written.
    if shape.description.last_column_id:
        request.table_incarnation = written.table_incarnation


def add_offsets(written: LogOffsets, response: write_pb2.WriteResponse, table: str) -> None:
    """Advances the log offsets after a write to those after its next request.

    Raises:
        TableRecreated: The table lacks the rows of earlier requests, because it was created again in between.
    """
    if written.table_incarnation not in ("", response.table_incarnation):
        raise TableRecreated(
            f"table {table} was restored, or dropped and created again, during the write, and lacks its first rows: "
            "write all rows again",
            table=table,
        )
    written.advance(response.log_offsets, response.table_incarnation)


def offsets_message(offsets: Mapping[int, int], option: str) -> scan_pb2.LogOffsets:
    """Returns log offsets as a message, with their table incarnation if they have it. Raises UsageError."""
    try:
        position = StartFrom.offsets(offsets)
    except UsageError as error:
        is_json = isinstance(offsets, str | bytes | Mapping) and any(not isinstance(each, int) for each in offsets)
        hint = "; LogOffsets.from_json reads what to_json has written, as text or parsed" if is_json else ""
        raise UsageError(
            f"{option} must be the log offset of each bucket, as in log_offsets of a read or a write: "
            f"{error.message}{hint}",
            option=option,
        ) from None
    return log_offsets_message(position)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult(ShownFields):
    """What an upsert, a retraction or a delete has done. All of it is durable.

    Attributes:
        rows: The number of rows or keys given, including those that changed nothing.
        log_offsets: For every bucket written to, the offset of the first change after this write. A scan whose
            `log_offsets` are not smaller shows the write. Opaque integers, comparable within one bucket.
    """

    rows: int
    log_offsets: LogOffsets

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {counted(self.rows, 'row')} in {counted(len(self.log_offsets), 'bucket')}>"


def _check_keys(batches: Iterable[pa.RecordBatch], shape: TableShape) -> Iterator[pa.RecordBatch]:
    """Passes batches through. Raises InvalidKey at a batch with a key that is too long."""
    first_row = 0
    for batch in batches:
        check_key_sizes(batch, shape.key_schema, first_row)
        yield batch
        first_row += batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport(ShownFields):
    """What an undo has done. All of it is durable.

    Attributes:
        restored: The number of keys that keep a row, whose columns have again the values from before the writer's first
            change after the offset. A row that the writer inserted, and to which others have written since, gets nulls.
        deleted: The number of keys whose row was deleted, because the writer had inserted it.
        conflicts: The number of keys that were left as they are, because other writers have written the same columns
            since.
        log_offsets: For every bucket in `to_offsets`, the offset of the first change after the undo.
    """

    restored: int
    deleted: int
    conflicts: int
    log_offsets: LogOffsets

    def __repr__(self) -> str:
        keys = f"{self.restored:,} restored, {self.deleted:,} deleted, {counted(self.conflicts, 'conflict')}"
        return f"<{type(self).__name__}: {keys}>"

    @classmethod
    def of(cls, message: write_pb2.UndoResponse) -> UndoReport:
        """Decodes the report in an answer."""
        return cls(
            restored=message.restored,
            deleted=message.deleted,
            conflicts=message.conflicts,
            log_offsets=LogOffsets.of(message.log_offsets, message.table_incarnation),
        )
