"""`load`: the rows of a file into a table."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from aio_client import sync
from scankv.cli.loading import Loading
from scankv.cli.options import Buckets, KeyColumns, Settings, TableName, Url, names_of, settings_of
from scankv.cli.show import stderr_console
from scankv.formats.blocks import BadRows
from scankv.formats.files import Format, Input, open_input
from scankv.formats.reader import infer_schema, read_blocks
from table_model.errors import TableExists, TableNotFound, UsageError
from table_model.types import format_schema


class OnError(StrEnum):
    """What a row that cannot be loaded does."""

    STOP = "stop"
    SKIP = "skip"


def load(
    table: TableName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="CSV, JSON lines (both also as .gz or .zip), Parquet or Arrow; - is standard input.",
            show_default=False,
        ),
    ],
    create: Annotated[
        bool, typer.Option("--create", help="Create the table first, with columns that hold every row of the file.")
    ] = False,
    key: KeyColumns = None,
    buckets: Buckets = None,
    set_: Settings = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Default: what the file's first bytes and its name say.")
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="CSV text that is null in every column; may be repeated. An empty field always is null, and outside "
            "columns of strings so are NA, N/A, NULL and null.",
        ),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="What a row that cannot be loaded does: it ends the loading, or is reported.")
    ] = OnError.STOP,
    url: Url = None,
) -> None:
    """Insert the rows of a file into a table, replacing those with the same keys."""
    if create and not key:
        raise UsageError("--create needs the columns of the primary key: --key a,b")
    if not create and (key or buckets or set_):
        raise UsageError("--key, --buckets and --set belong to a new table; add --create")
    skip, null_texts = on_error is OnError.SKIP, null or []
    with open_input(file, format_, again=create) as source, sync.connect(url) as client:
        if create:
            _refuse_existing(client, table)
            # Bad rows are reported when they are read for loading.
            schema = infer_schema(source, BadRows(source.name, skip=skip), null_texts)
            made = client.create_table(table, schema, primary_key=names_of(key), buckets=buckets, **settings_of(set_))
            typer.echo(f"created {table}: {format_schema(made.schema)}")
        _load(client, table, source, null_texts, skip=skip)


def _refuse_existing(client: sync.Client, name: str) -> None:
    """Finds out before a long file is read, rather than after."""
    with suppress(TableNotFound):
        client.table(name)
        raise TableExists(f"table {name} exists already; leave out --create, or drop it first", table=name)


def _load(client: sync.Client, name: str, source: Input, null_texts: list[str], *, skip: bool) -> None:
    table = client.table(name)
    started = time.monotonic()
    with _progress(source) as (report, show):
        bad = BadRows(source.name, skip=skip, report=report)
        loading = Loading(client, table, bad)
        blocks = read_blocks(source, table.schema, bad, null_texts)
        loading.run(blocks, lambda: show(loading.rows, loading.rows / (time.monotonic() - started)))
    seconds = time.monotonic() - started
    typer.echo(f"loaded {loading.rows:,} rows into {name} in {seconds:.2f} s ({loading.rows / seconds:,.0f} rows/s)")
    if bad.count:
        typer.echo(f"skipped {bad.count:,} bad rows", err=True)


@contextmanager
def _progress(source: Input) -> Iterator[tuple[Callable[[str], None], Callable[[int, float], None]]]:
    """A bar on standard error when that is a terminal: prints a message above it, and shows rows and rows a second."""
    console = stderr_console()
    if not console.is_terminal:
        yield _report, lambda rows, rate: None
        return
    columns = BarColumn(), TextColumn("{task.fields[rows]:,} rows  {task.fields[rate]:,.0f} rows/s")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=source.size_bytes, rows=0, rate=0.0)

        def show(rows: int, rate: float) -> None:
            # An archive is read twice at its end.
            read = min(source.bytes_read, source.size_bytes or source.bytes_read)
            progress.update(task, completed=read, rows=rows, rate=rate)

        yield _report, show


def _report(message: str) -> None:
    typer.echo(message, err=True)
