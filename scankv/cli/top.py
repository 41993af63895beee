"""`top`: shows the first rows of a table by a column, once or as they change."""

from typing import Annotated, Final

import typer

from scankv.cli.connecting import open_client
from scankv.cli.options import Columns, RowFormat, Rows, TableName, Url, Where, split_names
from scankv.cli.show import output, show_rows
from scankv.cli.top_watch import watch_top
from scankv.formats.json_text import json_lines
from scankv.formats.printable import printable
from scankv.model.errors import UsageError

_EVERY_SECONDS: Final = 2.0


def top(
    table: TableName,
    order_by: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that orders the rows.", show_default=False)
    ],
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, metavar="N", help="Show at most this many rows.")
    ] = 10,
    ascending: Annotated[bool, typer.Option("--ascending", help="Show the least values first.")] = False,
    where: Where = None,
    columns: Columns = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the rows again whenever they change, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help=f"With --watch, show at most one change in this time. Default: {_EVERY_SECONDS:g}.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what the server would read and decode, and read nothing.")
    ] = False,
    format_: Rows = RowFormat.TABLE,
    url: Url = None,
) -> None:
    """Show the first rows in the order of a column, greatest first.

    Nulls come last. Rows with equal values are in the order of their keys.

    With --watch, a terminal shows how each row has moved (▲2, ▼1, new) and which rows have left. A pipe gets a block
    for each change; with --format jsonl, one line with the time, the rows, and the rows that entered, left and moved. A
    change is shown at once, but no sooner than --every seconds after the previous one. The server reads nothing while
    nothing is written. Ctrl-C ends the command with exit code 0.
    """
    if every is not None and not watch:
        raise UsageError("--every is an option of --watch: add --watch")
    if explain and watch:
        raise UsageError("--explain and --watch exclude each other: give one of them")
    chosen = split_names(columns) or None
    with open_client(url) as client:
        found = client.table(table)
        if explain:
            explanation = found.explain_top_n(limit, order_by, where, columns=chosen, descending=not ascending)
            typer.echo(printable(str(explanation), lines=True))
            return
        if watch:
            seconds = every or _EVERY_SECONDS
            watched = found.watch_top_n(limit, order_by, where, columns=chosen, descending=not ascending, every=seconds)
            watch_top(watched, json=format_ is RowFormat.JSONL)
            return
        rows = found.top_n(limit, order_by, where, columns=chosen, descending=not ascending)
    if format_ is RowFormat.JSONL:
        for batch in rows.to_batches():
            output().write(json_lines(batch).to_pybytes())
    else:
        show_rows(rows)
