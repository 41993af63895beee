"""Any file as blocks of rows of a table, and the schema that a table for it would have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.formats.arrow_reader import open_arrow, open_parquet, read_typed
from scankv.formats.csv_dialect import CsvOptions
from scankv.formats.csv_reader import read_csv
from scankv.formats.files import Format, name_file_in_errors
from scankv.formats.inference import infer_csv, infer_jsonl
from scankv.formats.jsonl_reader import read_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from scankv.formats.blocks import BadRows, Block
    from scankv.formats.files import Input


_AS_USUAL: Final = CsvOptions()


def read_blocks(source: Input, schema: pa.Schema, bad: BadRows, csv: CsvOptions = _AS_USUAL) -> Iterator[Block]:
    """Reads a file, as it comes, as blocks of rows of a schema.

    Args:
        source: The file; opened once.
        schema: The columns of the table.
        bad: Takes the rows that are not even rows of the file.
        csv: How it is written, if it is CSV.

    Raises:
        BadFile: The file is damaged, or not of its format.
        SchemaMismatch: It has not exactly the columns of the schema.
    """
    with name_file_in_errors(source.name):
        stream = source.open()
        match source.format:
            case Format.CSV:
                yield from read_csv(stream, schema, csv, bad)
            case Format.JSONL:
                yield from read_jsonl(stream, schema)
            case Format.PARQUET:
                yield from read_typed(open_parquet(stream), schema)
            case Format.ARROW:
                yield from read_typed(open_arrow(stream), schema)


def infer_schema(source: Input, bad: BadRows, csv: CsvOptions = _AS_USUAL) -> pa.Schema:
    """The schema of a file: what the file says, or what holds all of its rows.

    Args:
        source: The file; opened once, and read to its end when it is CSV or JSON lines.
        bad: Takes the rows that are not even rows of the file.
        csv: As in `read_blocks`.

    Raises:
        BadFile: The file is damaged, not of its format, or has no columns.
    """
    with name_file_in_errors(source.name):
        stream = source.open()
        match source.format:
            case Format.CSV:
                schema = infer_csv(stream, csv, bad)
            case Format.JSONL:
                schema = infer_jsonl(stream, bad)
            case Format.PARQUET:
                schema = open_parquet(stream).schema
            case Format.ARROW:
                schema = open_arrow(stream).schema
        if len(schema) == 0:
            raise ValueError("there are no rows to take the columns from")
        return schema
