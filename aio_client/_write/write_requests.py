"""How rows and keys become write requests of one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client._input.arguments import names_of
from aio_client._input.keys import check_key_sizes, keys_of
from aio_client._input.requests import cut, to_ipc
from aio_client._scan.protocol import log_offsets
from aio_client._write.merging import check_mode
from scankv.model.changes.log_positions import StartFrom
from scankv.model.errors import UsageError
from scankv.model.tables.merge_spec import NO_MERGING, check_retraction, partial_schema
from scankv.model.tables.merge_wire import merging_from_proto
from scankv.model.tables.schema import CHANGE_TYPE
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aio_client._input.data import Rows
    from aio_client._write.merging import Names, WriteMode
    from aio_client._write.repeatable_writes import Request
    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.v1 import scan_pb2, table_pb2

_CHANGE: Final = pa.field(CHANGE_TYPE, pa.string(), nullable=False)


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table is, as of one answer of the server: parts that must not be mixed with those of another answer."""

    description: table_pb2.Table
    schema: pa.Schema
    key_schema: pa.Schema

    @classmethod
    def of(cls, description: table_pb2.Table) -> TableShape:
        """The shape that the server described."""
        schema = pa.ipc.read_schema(pa.py_buffer(description.arrow_schema))
        return cls(description, schema, pa.schema([schema.field(name) for name in description.primary_key]))

    @property
    def name(self) -> str:
        """`database.table`."""
        return self.description.name

    @property
    def merge_engine(self) -> str:
        """The option, also when it is the default."""
        return self.description.options.get("merge_engine", "last_row")

    @property
    def counted(self) -> set[str]:
        """The columns in which it only matters whether a value is there."""
        return {
            each.column for each in merging_from_proto(self.description.merging).aggregates if each.function == "count"
        }

    def partial_schema(self, columns: Sequence[str], *, overwrite: bool) -> pa.Schema:
        """The columns of a write of some. Raises SchemaMismatch, and InvalidRequest where whole rows are written."""
        engine, spec = (
            ("last_row", NO_MERGING) if overwrite else (self.merge_engine, merging_from_proto(self.description.merging))
        )
        return partial_schema(self.schema, self.key_schema.names, engine, spec, columns)


@dataclass(frozen=True, slots=True)
class WriteKind:
    """What a write does with its rows: batches of one kind go together into a request.

    Attributes:
        table: The table, as `database.table`.
        deletes: Whether the rows are keys to delete.
        schema_id: The version of the table's schema that the rows were made for; 0 for keys.
        columns: The columns that it is about; empty: all.
        overwrite: Whether the rows replace what stands, whatever the merge engine.
        changes: Whether the rows say what each of them is.
    """

    table: str
    deletes: bool
    schema_id: int
    columns: tuple[str, ...] = ()
    overwrite: bool = False
    changes: bool = False

    def request(self, batch: pa.RecordBatch) -> Request:
        """One request of this kind."""
        mode = mode_of("overwrite" if self.overwrite else "merge")
        if self.deletes:
            return write_pb2.DeleteRequest(table=self.table, keys=to_ipc(batch), columns=self.columns, mode=mode)
        return write_pb2.UpsertRequest(
            table=self.table, rows=to_ipc(batch), schema_id=self.schema_id, columns=self.columns, mode=mode
        )


def mode_of(mode: WriteMode) -> write_pb2.WriteMode.ValueType:
    """A mode as requests have it. Raises UsageError for one that is none."""
    check_mode(mode)
    return write_pb2.WRITE_MODE_OVERWRITE if mode == "overwrite" else write_pb2.WRITE_MODE_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class WritePieces:
    """What one call writes, in pieces of one request each, made as they are asked for.

    Attributes:
        kind: What is done with the rows.
        batches: The pieces in order, each with checked keys. What is in memory is checked whole before the first.
    """

    kind: WriteKind
    batches: Iterator[pa.RecordBatch]

    def next_request(self) -> Request | None:
        """The next piece as a request; None behind the last one. Blocks."""
        batch = next(self.batches, None)
        return None if batch is None else self.kind.request(batch)

    @classmethod
    def of_rows(
        cls, shape: TableShape, rows: Rows, columns: Names | None = None, mode: str = "merge", *, retract: bool = False
    ) -> WritePieces:
        """The pieces of an upsert, or of rows that are taken back.

        Raises:
            SchemaMismatch: There are columns that the table does not have, or that cannot be written alone.
            InvalidRequest: The table's merge engine does no such thing.
            UsageError: `columns` or `mode` is none.
        """
        check_mode(mode)
        names = () if columns is None else names_of(columns, "columns")
        changes = not retract and rows.has(CHANGE_TYPE)
        rows.check_names(shape.schema.append(_CHANGE) if changes else shape.schema)
        schema = shape.schema if columns is None else shape.partial_schema(names, overwrite=mode == "overwrite")
        if retract:
            check_retraction(shape.merge_engine, shape.description.options.get("delete_behavior", ""), shape.name)
        kind = WriteKind(
            shape.name,
            deletes=False,
            schema_id=shape.description.schema_id,
            columns=() if columns is None else tuple(schema.names),
            overwrite=mode == "overwrite",
            changes=changes or retract,
        )
        counted = () if mode == "overwrite" else shape.counted
        batches = rows.batches(schema.append(_CHANGE) if changes else schema, counted)
        pieces = cut(_with_checked_keys(map(_taken_back, batches) if retract else batches, shape))
        return cls(kind, _checked_first(pieces) if rows.in_memory else pieces)

    @classmethod
    def of_keys(cls, shape: TableShape, keys: object, columns: Names | None = None, mode: str = "merge") -> WritePieces:
        """The pieces of a delete, of rows or of some of their columns. Raises as `of_rows`."""
        check_mode(mode)
        names = () if columns is None else names_of(columns, "columns")
        if columns is not None:
            if not set(names) - set(shape.key_schema.names):
                raise UsageError("columns names no column beside the key; to delete the rows, leave it out")
            shape.partial_schema((*dict.fromkeys([*shape.key_schema.names, *names]),), overwrite=True)
        kind = WriteKind(shape.name, deletes=True, schema_id=0, columns=names, overwrite=mode == "overwrite")
        return cls(kind, _checked_first(cut(_with_checked_keys(_keys(keys, shape), shape))))


def _taken_back(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column(_CHANGE, pa.repeat("-D", batch.num_rows))


def _checked_first(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from list(pieces)


def _keys(keys: object, shape: TableShape) -> Iterator[pa.RecordBatch]:
    yield keys_of(keys, shape.key_schema)


def only_piece(pieces: WritePieces) -> WritePieces:
    """The same, when it is one piece, which can be checked at once. Raises UsageError when there are more, or none."""
    first, second = next(pieces.batches, None), next(pieces.batches, None)
    if first is None or second is not None:
        raise UsageError(
            "a write with if_version is one request: at least one row, at most 100,000 rows and 8 MiB",
            option="if_version",
        )
    return WritePieces(pieces.kind, iter([first]))


def offsets_message(offsets: Mapping[int, int], option: str) -> scan_pb2.LogOffsets:
    """Log offsets as a message, with the incarnation if they know it. Raises UsageError naming the option."""
    try:
        position = StartFrom.offsets(offsets)
    except UsageError as error:
        raise UsageError(
            f"{option} is the log offset of each bucket, as a read or a write gives it in log_offsets: {error.message}",
            option=option,
        ) from None
    return log_offsets(position)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """What an upsert or a delete has done; all of it is durable.

    Attributes:
        rows: Rows, or keys, that were given; also those that changed nothing.
        log_offsets: For every bucket that was touched, the offset of the first change after this write: a scan whose
            `log_offsets` are not below these shows it. Opaque integers, to be compared within one bucket.
    """

    rows: int
    log_offsets: LogOffsets


def _with_checked_keys(batches: Iterable[pa.RecordBatch], shape: TableShape) -> Iterator[pa.RecordBatch]:
    """The same batches. Raises InvalidKey at one with a key that is too long."""
    first_row = 0
    for batch in batches:
        check_key_sizes(batch, shape.key_schema, first_row)
        yield batch
        first_row += batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """What an undo has done; all of it is durable.

    Attributes:
        restored: Keys that have a row, in whose columns is again what was there before the writer's first change behind
            the offset. That is also nothing, in rows that the writer has made and others have written to since.
        deleted: Keys whose row is gone, because the writer has made it.
        conflicts: Keys that were left as they are, because other writers have written the same columns since.
        log_offsets: For every bucket that was named, the offset of the first change after the undo.
    """

    restored: int
    deleted: int
    conflicts: int
    log_offsets: LogOffsets
