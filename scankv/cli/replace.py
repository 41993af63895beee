"""`replace`: replaces the rows of a table, or those that match a predicate, by the rows of a file."""

from __future__ import annotations

import pyarrow as pa
import typer

from aio_client import sync
from scankv.cli.connecting import open_client
from scankv.cli.defaults import defaults_of
from scankv.cli.load import DataFile, Delimiter, FileFormat, NullTexts, check_delimiter
from scankv.cli.options import TableName, Url, Where
from scankv.formats.blocks import BadRows, good_rows
from scankv.formats.csv_dialect import CsvOptions, parse_delimiter
from scankv.formats.files import Format, Input, limit_memory_of_inputs, open_inputs
from scankv.formats.reader import read_blocks
from scankv.model.counts import counted
from scankv.model.errors import UsageError
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
    does not match, changes nothing. The rows of the file must fit in memory. Columns that the file does not have get
    their defaults, as for `load`.
    """
    csv = CsvOptions(tuple(null or ()), parse_delimiter(delimiter))
    with (
        # The client comes first, because standard input is read when it is opened.
        open_client(url) as client,
        open_inputs(file, format_) as sources,
        limit_memory_of_inputs(file, sources),
    ):
        check_delimiter(sources[0], delimiter)
        found = client.table(table)
        require_key(table, found.primary_key, "its rows cannot be replaced: append to it, or drop it")
        rows = pa.concat_tables([_read(source, found, csv) for source in sources])
        replaced = found.replace(rows, where=where).rows
    scope = f"the rows of {table}" if where is None else f"the rows of {table} that match"
    typer.echo(f"replaced {scope} by {counted(replaced, 'row')}")


def _read(source: Input, table: sync.Table, csv: CsvOptions) -> pa.Table:
    bad = BadRows(source.name, skip=False)
    blocks = read_blocks(source, table.schema, bad, csv, defaults_of(table))
    batches = [good.rows for block in blocks for good in good_rows(block, bad)]
    if not batches and source.format is Format.JSONL:
        # An empty file of another format at least names its columns, so it is not empty by accident.
        raise UsageError(
            f"{source.name} is empty: to delete the rows, use `scankv truncate` or `scankv delete --where`"
        )
    return pa.Table.from_batches(batches, table.schema)
