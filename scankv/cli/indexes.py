"""`index`: adds indexes to an existing table, and drops them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from aio_client import IndexStatus
from scankv.cli.connecting import open_client
from scankv.cli.options import TableName, Url, split_names
from scankv.cli.show import stderr_console
from scankv.model.counts import counted

app: typer.Typer = typer.Typer(
    help="Indexes of a table. It stays readable and writable while they are built.", no_args_is_help=True
)

IndexColumns = Annotated[
    str,
    typer.Argument(metavar="A,B", help="The columns of the index, the first one first.", show_default=False),
]


@app.command()
def add(
    table: TableName,
    columns: IndexColumns,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the index is built, or leave that to the server.")
    ] = True,
    url: Url = None,
) -> None:
    """Add an index, and wait until it is built. Ctrl-C ends the wait, but not the build.

    The exit code is 1 if the index cannot be built. The unusable index remains: drop it.
    """
    names = split_names(columns)
    with open_client(url) as client, _progress() as show:
        client.alter_table(table, add_indexes=[names], wait=wait, on_progress=show)
    if wait:
        typer.echo(f"built the index on ({', '.join(names)}) of {table}")
    else:
        typer.echo(f"the index on ({', '.join(names)}) of {table} is being built; see: scankv describe {table}")


@app.command()
def drop(table: TableName, columns: IndexColumns, url: Url = None) -> None:
    """Drop an index; the rows stay."""
    names = split_names(columns)
    with open_client(url) as client:
        client.alter_table(table, drop_indexes=[names])
    typer.echo(f"dropped the index on ({', '.join(names)}) of {table}")


@contextmanager
def _progress() -> Iterator[Callable[[list[IndexStatus]], None] | None]:
    """Shows a progress bar on standard error if it is a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn  # on use: every command would wait for it

    text = TextColumn("{task.completed:,.0f} of {task.fields[of]}")
    with Progress(BarColumn(), text, console=console, transient=True) as progress:
        task = progress.add_task("", total=0, of=counted(0, "row"))

        def show(indexes: list[IndexStatus]) -> None:
            for index in indexes:
                total = index.rows
                done = index.rows_done if total is None else min(index.rows_done, total)
                of = "unknown rows" if total is None else counted(total, "row")
                progress.update(task, completed=done, total=total, of=of)

        yield show
