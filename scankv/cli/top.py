"""`top`: the first rows of a table by a column."""

from typing import Annotated

import typer

from aio_client import sync
from scankv.cli.options import Columns, Json, TableName, Url, Where, names_of
from scankv.cli.show import show_rows
from scankv.formats.json_text import json_lines


def top(
    table: TableName,
    by: Annotated[str, typer.Option(metavar="COLUMN", help="The column that orders the rows.", show_default=False)],
    n: Annotated[int, typer.Option("-n", min=1, max=100_000, help="At most so many rows.")] = 10,
    ascending: Annotated[bool, typer.Option("--ascending", help="The least first.")] = False,
    where: Where = None,
    columns: Columns = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show the first rows in the order of a column, the greatest first; with --json each is one line.

    Rows that are null in the column come last, and rows that are equal in it by their keys.
    """
    with sync.connect(url) as client:
        chosen = names_of(columns) or None
        rows = client.table(table).top_n(n, by, where, columns=chosen, descending=not ascending)
    if json:
        for batch in rows.to_batches():
            typer.echo(json_lines(batch).to_pybytes(), nl=False)
    else:
        show_rows(rows)
