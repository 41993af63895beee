"""`replace`: replaces the rows of a table, or those that match a predicate, by the rows of a file."""

from __future__ import annotations

import pyarrow as pa
import typer

from scankv.cli.connecting import open_client
from scankv.cli.load import DataFile, Delimiter, FileFormat, NullTexts, check_delimiter
from scankv.cli.options import TableName, Url, Where
from scankv.formats.blocks import BadRows, good_rows
from scankv.formats.columns import check_file_columns
from scankv.formats.csv_dialect import CsvOptions, parse_delimiter
from scankv.formats.files import Input, convert_errors, open_inputs
from scankv.formats.reader import infer_schema, read_blocks
from scankv.model.tables.log_tables import require_key


def replace(
    table: TableName,
    file: DataFile,
    where: Where = None,
    format_: FileFormat = None,
    null: NullTexts = None,
    delimiter: Delimiter = None,
    url: Url = None,
) -> None:
    """Replace all rows of a table by the rows of a file at one instant; with --where, only those that match.

    Afterwards the table has exactly these rows, or these among those that match. A bad row, or a row of the file that
    does not match, changes nothing. The rows of the file must fit in memory.
    """
    csv = CsvOptions(tuple(null or ()), parse_delimiter(delimiter))
    with open_inputs(file, format_) as sources, open_client(url) as client:
        check_delimiter(sources[0], delimiter)
        found = client.table(table)
        require_key(table, found.primary_key, "its rows cannot be replaced: append to it, or drop it")
        rows = pa.concat_tables([_read(source, found.schema, csv) for source in sources])
        replaced = found.replace(rows, where=where).rows
    scope = f"the rows of {table}" if where is None else f"the rows of {table} that match"
    typer.echo(f"replaced {scope} by {replaced:,} {'row' if replaced == 1 else 'rows'}")


def _read(source: Input, schema: pa.Schema, csv: CsvOptions) -> pa.Table:
    bad = BadRows(source.name, skip=False)
    with convert_errors(source.name):
        check_file_columns(infer_schema(source, bad, csv).names, schema)
    blocks = read_blocks(source, schema, bad, csv)
    batches = [good.rows for block in blocks for good in good_rows(block, bad)]
    return pa.Table.from_batches(batches) if batches else schema.empty_table()
