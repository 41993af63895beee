"""`top`: shows the first rows of a table by a column, once or as they change."""

from typing import Annotated, Final

import typer

from aio_client import sync
from scankv.cli.options import Columns, Json, TableName, Url, Where, split_names
from scankv.cli.show import output, show_rows
from scankv.cli.top_watch import watch_top
from scankv.formats.json_text import json_lines
from scankv.model.errors import UsageError

_EVERY_SECONDS: Final = 2.0


def top(
    table: TableName,
    by: Annotated[str, typer.Option(metavar="COLUMN", help="The column that orders the rows.", show_default=False)],
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, metavar="N", help="At most so many rows.")
    ] = 10,
    ascending: Annotated[bool, typer.Option("--ascending", help="Least first.")] = False,
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
    json: Json = False,
    url: Url = None,
) -> None:
    """Show the first rows in the order of a column, greatest first; with --json each is one line.

    Rows that are null in the column come last, and rows that are equal in it by their keys.

    With --watch, a terminal shows how each row has moved (▲2, ▼1, new) and which ones left; a pipe gets a block for
    every change, with --json one line: its time, the rows, and which of them entered, left and moved. A change shows at
    once, or --every seconds after the one before. As long as nothing is written, the server reads nothing. Ctrl-C ends
    it with exit code 0.
    """
    if every is not None and not watch:
        raise UsageError("--every is how often --watch shows changes; add --watch")
    chosen = split_names(columns) or None
    with sync.connect(url) as client:
        found = client.table(table)
        if watch:
            seconds = every or _EVERY_SECONDS
            watched = found.watch_top_n(limit, by, where, columns=chosen, descending=not ascending, every=seconds)
            watch_top(watched, json=json)
            return
        rows = found.top_n(limit, by, where, columns=chosen, descending=not ascending)
    if json:
        for batch in rows.to_batches():
            output().write(json_lines(batch).to_pybytes())
    else:
        show_rows(rows)
