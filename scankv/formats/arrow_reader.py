"""Reads files that contain their schema: Parquet files, Arrow IPC files and Arrow IPC streams."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from scankv.formats.bounds import check_column_count
from scankv.formats.columns import bad_row, check_file_columns, conform_block
from scankv.formats.json_text import json_lines
from scankv.model.errors import SchemaMismatch
from scankv.model.types.int96 import COARSE, FINE, exact_int96, has_int96, int96_columns

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyarrow import parquet

_BLOCK_ROWS: Final = 65_536
_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 64 << 20
_ARROW_FILE: Final = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """A record batch of a file; see `Block`.

    Attributes:
        rows: The rows, with timestamps of the type INT96 in microseconds.
        schema: The columns of the table.
        defaults: What rows get in columns that the file does not have.
        first: The index of the first row in the file.
        fine: The columns with such timestamps, in nanoseconds. None: the file has no such columns.
    """

    rows: pa.RecordBatch
    schema: pa.Schema
    defaults: Mapping[str, pa.Scalar]
    first: int
    fine: pa.RecordBatch | None = None

    def __len__(self) -> int:
        """Returns how many rows."""
        return int(self.rows.num_rows)

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """See `Block.convert`."""
        rows = self.rows.slice(start, stop - start)
        if self.fine is not None:
            try:
                rows = exact_int96(rows, self.fine.slice(start, stop - start), self.schema)
            except SchemaMismatch as error:
                raise bad_row(error) from error
        return conform_block(rows, self.schema, self.defaults)

    def where(self, row: int) -> str:
        """See `Block.where`."""
        return f"row {self.first + row + 1}"

    def line(self, row: int) -> bytes:
        """See `Block.line`; a JSON object, because the file has no lines."""
        rows = self.rows.slice(row, 1)
        try:
            line: bytes = json_lines(rows).to_pybytes()
        except (ValueError, TypeError, pa.ArrowException):
            # The row may have a type that tables do not have.
            return json.dumps(rows.to_pylist()[0], default=str).encode()
        return line


@dataclass(frozen=True, slots=True)
class TypedFile:
    """The rows of a file that contains its schema.

    Attributes:
        schema: Its columns.
        batches: The rows, with timestamps of the type INT96 in microseconds.
        fine: The columns with such timestamps again, in nanoseconds, in the same batches. None: no such columns exist.
        has_small_batches: Whether the batches are smaller than what is best written at once.
    """

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    fine: Iterable[pa.RecordBatch] | None = None
    has_small_batches: bool = False


def read_typed(file: TypedFile, schema: pa.Schema, defaults: Mapping[str, pa.Scalar]) -> Iterator[ArrowBlock]:
    """Reads the batches of a file as blocks of rows of the table's schema.

    Raises:
        SchemaMismatch: The file has a column that the schema lacks, or lacks a column without a default.
        ValueError: The file is damaged.
    """
    check_file_columns(file.schema.names, schema, defaults)
    first = 0
    without = ((rows, None) for rows in file.batches)
    batches = _validated(without if file.fine is None else zip(file.batches, file.fine, strict=True))
    for rows, fine in _joined(batches) if file.has_small_batches else batches:
        yield ArrowBlock(rows, schema, defaults, first, fine)
        first += rows.num_rows


_Batches: TypeAlias = tuple[pa.RecordBatch, pa.RecordBatch | None]


def _validated(batches: Iterable[_Batches]) -> Iterator[_Batches]:
    for each in batches:
        # Arrow trusts the offsets and lengths of a file, and would read outside of its memory.
        each[0].validate(full=True)
        yield each


def _joined(batches: Iterable[_Batches]) -> Iterator[_Batches]:
    """Joins small batches to such of at most 65,536 rows and about 64 MiB."""
    found: list[_Batches] = []
    count = size = 0
    for each in batches:
        rows = each[0]
        if found and (count + rows.num_rows > _BLOCK_ROWS or size + rows.nbytes > _BATCH_BYTES):
            yield from _join(found)
            found, count, size = [], 0, 0
        found.append(each)
        count, size = count + rows.num_rows, size + rows.nbytes
    yield from _join(found)


def _join(batches: Sequence[_Batches]) -> Sequence[_Batches]:
    """Returns one batch instead of several; the same ones if Arrow cannot join them, such as some with dictionaries."""
    if len(batches) < 2:
        return batches
    rows, fine = zip(*batches, strict=True)
    try:
        return [(pa.concat_batches(rows), None if fine[0] is None else pa.concat_batches(fine))]
    except pa.ArrowNotImplementedError:
        return batches


def open_parquet(stream: io.BufferedReader) -> TypedFile:
    """Returns the rows of a Parquet file, in batches of at most 4,096 rows and about 64 MiB.

    A value that the file has once and refers to often takes its size for each row of a batch. The file does not say how
    large it is.

    Raises:
        ValueError: The file is not a Parquet file, is damaged, or has too many columns.
    """
    from pyarrow import parquet  # on use, see `writers`

    file = parquet.ParquetFile(stream, **COARSE)
    check_column_count(len(file.schema_arrow), "the file")
    at_once = _rows_at_once(file.metadata)
    batches = file.iter_batches(at_once)
    if not has_int96(file.metadata):
        return TypedFile(file.schema_arrow, batches, has_small_batches=True)
    fine = parquet.ParquetFile(stream, metadata=file.metadata, **FINE)
    columns = int96_columns(file.schema_arrow, fine.schema_arrow)
    return TypedFile(file.schema_arrow, batches, fine.iter_batches(at_once, columns=columns), has_small_batches=True)


def _rows_at_once(metadata: parquet.FileMetaData) -> int:
    """Returns how many rows a batch may have, so that long values do not fill the memory."""
    most = _BATCH_ROWS
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        # Not from its columns: pyarrow ends the process if the metadata of a column are damaged.
        if group.num_rows > 0:
            most = min(most, _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1))
    return max(most, 1)


def open_arrow(stream: io.BufferedReader) -> TypedFile:
    """Returns the rows of an Arrow IPC file or stream, in the batches of the file.

    Raises:
        ValueError: The file is neither an Arrow IPC file nor an Arrow IPC stream, or has too many columns.
    """
    if not stream.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
        reader = pa.ipc.open_stream(stream)
        check_column_count(len(reader.schema), "the file")
        return TypedFile(reader.schema, reader)
    file = pa.ipc.open_file(stream)
    check_column_count(len(file.schema), "the file")
    return TypedFile(file.schema, (file.get_batch(index) for index in range(file.num_record_batches)))
