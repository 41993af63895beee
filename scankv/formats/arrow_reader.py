"""Reads files that contain their schema: Parquet files, Arrow IPC files and Arrow IPC streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.formats.columns import check_file_columns, conform_block

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Mapping

_BATCH_ROWS: Final = 65_536
_ARROW_FILE: Final = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """A record batch of a file; see `Block`."""

    rows: pa.RecordBatch
    schema: pa.Schema
    defaults: Mapping[str, pa.Scalar]
    first: int

    def __len__(self) -> int:
        """Returns how many rows."""
        return int(self.rows.num_rows)

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """See `Block.convert`."""
        return conform_block(self.rows.slice(start, stop - start), self.schema, self.defaults)

    def where(self, row: int) -> str:
        """See `Block.where`."""
        return f"row {self.first + row + 1}"


def read_typed(
    batches: pa.RecordBatchReader, schema: pa.Schema, defaults: Mapping[str, pa.Scalar]
) -> Iterator[ArrowBlock]:
    """Reads the batches of a file as blocks of rows of the table's schema.

    Raises:
        SchemaMismatch: The columns of the file are not those of the schema, apart from those with a default.
        ValueError: The file is damaged.
    """
    check_file_columns(batches.schema.names, schema, defaults)
    first = 0
    for rows in batches:
        # Arrow trusts the offsets and lengths of a file, and would read outside of its memory.
        rows.validate(full=True)
        yield ArrowBlock(rows, schema, defaults, first)
        first += rows.num_rows


def open_parquet(stream: io.BufferedReader) -> pa.RecordBatchReader:
    """Returns the rows of a Parquet file, in batches of at most 65,536.

    Raises:
        ValueError: The file is not a Parquet file, or is damaged.
    """
    from pyarrow import parquet  # on use, see `writers`

    file = parquet.ParquetFile(stream)
    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(_BATCH_ROWS))


def open_arrow(stream: io.BufferedReader) -> pa.RecordBatchReader:
    """Returns the rows of an Arrow IPC file or stream, in the batches of the file.

    Raises:
        ValueError: The file is neither an Arrow IPC file nor an Arrow IPC stream.
    """
    if not stream.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
        return pa.ipc.open_stream(stream)
    file = pa.ipc.open_file(stream)
    batches = (file.get_batch(index) for index in range(file.num_record_batches))
    return pa.RecordBatchReader.from_batches(file.schema, batches)
