"""Reads files of any supported format as blocks of rows of a table, and infers the schema of a table for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.formats.arrow_reader import open_arrow, open_parquet, read_typed
from scankv.formats.csv_dialect import CsvOptions
from scankv.formats.csv_reader import read_csv
from scankv.formats.files import Format, convert_errors
from scankv.formats.inference import infer_csv, infer_jsonl
from scankv.formats.jsonl_reader import read_jsonl
from scankv.model.types.default_values import NO_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from scankv.formats.blocks import BadRows, Block
    from scankv.formats.files import Input


_AS_USUAL: Final = CsvOptions()


def read_blocks(
    source: Input,
    schema: pa.Schema,
    bad: BadRows,
    csv: CsvOptions = _AS_USUAL,
    defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
) -> Iterator[Block]:
    """Yields the rows of a file, as they arrive, in blocks for a schema.

    Args:
        source: The file; opened once.
        schema: The columns of the table.
        bad: Handles rows that the format itself does not allow, such as CSV rows with a wrong number of fields.
        csv: The dialect of the file, if it is CSV.
        defaults: What rows get in columns that the file, or the object of a row, does not have.

    Raises:
        BadFile: The file is damaged or not of its format.
        SchemaMismatch: The file has a column that the schema lacks, or lacks a column without a default.
    """
    with convert_errors(source.name):
        stream = source.open()
        match source.format:
            case Format.CSV:
                yield from read_csv(stream, schema, csv, bad, defaults)
            case Format.JSONL:
                yield from read_jsonl(stream, schema, defaults)
            case Format.PARQUET:
                yield from read_typed(open_parquet(stream), schema, defaults)
            case Format.ARROW:
                yield from read_typed(open_arrow(stream), schema, defaults)


def infer_schema(
    source: Input,
    bad: BadRows,
    csv: CsvOptions = _AS_USUAL,
    warn: Callable[[str], None] = lambda message: None,
) -> pa.Schema:
    """Returns the schema of a file: the schema it contains, or for CSV and JSON lines one that fits all of its rows.

    Args:
        source: The file; opened once, and read to its end if it is CSV or JSON lines.
        bad: As in `read_blocks`.
        csv: As in `read_blocks`.
        warn: Is called with each warning, such as that a single value makes a column of numbers text.

    Raises:
        BadFile: The file is damaged, not of its format, or has no columns.
    """
    with convert_errors(source.name):
        stream = source.open()
        match source.format:
            case Format.CSV:
                schema = infer_csv(stream, csv, bad, lambda message: warn(f"{source.name}: {message}"))
            case Format.JSONL:
                schema = infer_jsonl(stream, bad)
            case Format.PARQUET:
                schema = open_parquet(stream).schema
            case Format.ARROW:
                schema = open_arrow(stream).schema
        if len(schema) == 0:
            raise ValueError("the file has no rows to infer columns from")
        return schema
