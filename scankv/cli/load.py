"""`load`: the rows of a file into a table."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Annotated, Any, Final

import pyarrow as pa
import typer
from rich.progress import BarColumn, Progress, TextColumn

from aio_client import sync
from scankv.cli.loading import Loading
from scankv.cli.options import Buckets, KeyColumns, Settings, TableName, Url, names_of, settings_of
from scankv.cli.show import stderr_console
from scankv.formats.blocks import BadRows
from scankv.formats.columns import check_columns
from scankv.formats.files import Format, Input, explain, open_inputs
from scankv.formats.origin import Origin
from scankv.formats.reader import infer_schema, read_blocks
from table_model.errors import TableExists, TableNotFound, UsageError
from table_model.types import format_schema

_NEEDS_KEY: Final = "--create needs the columns of the primary key: --key a,b"


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
            help="CSV, JSON lines (both also as .gz or .zip), Parquet or Arrow, or a directory of files of the last "
            "two; - is standard input.",
            show_default=False,
        ),
    ],
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Create the table first, with columns that hold every row of the file; for what `snapshot export` "
            "wrote also with the same key and buckets.",
        ),
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
    if not create and (key or buckets or set_):
        raise UsageError("--key, --buckets and --set belong to a new table; add --create")
    skip, null_texts = on_error is OnError.SKIP, null or []
    with open_inputs(file, format_, again=create) as sources, sync.connect(url) as client:
        if create:
            if not key and sources[0].format not in (Format.PARQUET, Format.ARROW):
                # Rather than after a long file was read for its columns.
                raise UsageError(_NEEDS_KEY)
            _refuse_existing(client, table)
            # Bad rows are reported when they are read for loading.
            schema = infer_schema(sources[0], BadRows(sources[0].name, skip=skip), null_texts)
            made = _create(client, table, schema, names_of(key), buckets, settings_of(set_))
            typer.echo(f"created {table}: {format_schema(made.schema)}")
        _load(client, table, sources, null_texts, skip=skip)


def _create(
    client: sync.Client,
    name: str,
    schema: pa.Schema,
    key: list[str],
    buckets: int | None,
    settings: dict[str, Any],
) -> sync.Table:
    """Creates the table of a file, by what it says of the table that it comes from, unless options say otherwise."""
    origin = Origin.of(schema)
    bucket_key: list[str] = []
    if origin is not None:
        schema, buckets = origin.exact(schema), buckets or origin.buckets
        bucket_key = origin.bucket_key if key in ([], origin.primary_key) else []
        key = key or origin.primary_key
    if not key:
        raise UsageError(_NEEDS_KEY)
    return client.create_table(name, schema, primary_key=key, bucket_key=bucket_key, buckets=buckets, **settings)


def _refuse_existing(client: sync.Client, name: str) -> None:
    """Finds out before a long file is read, rather than after."""
    with suppress(TableNotFound):
        client.table(name)
        raise TableExists(f"table {name} exists already; leave out --create, or drop it first", table=name)


def _load(client: sync.Client, name: str, sources: list[Input], null_texts: list[str], *, skip: bool) -> None:
    table = client.table(name)
    if len(sources) > 1:
        # So that nothing was written when a later one has other columns.
        for source in sources:
            with explain(source.name):
                check_columns(infer_schema(source, BadRows(source.name, skip=skip)).names, table.schema)
    started, bad_rows = time.monotonic(), 0
    with _progress(sources) as (report, show):
        loading = Loading(client, table)
        for source in sources:
            bad = BadRows(source.name, skip=skip, report=report)
            blocks = read_blocks(source, table.schema, bad, null_texts)
            loading.run(blocks, bad, lambda: show(loading.rows, loading.rows / (time.monotonic() - started)))
            bad_rows += bad.count
    seconds = time.monotonic() - started
    typer.echo(f"loaded {loading.rows:,} rows into {name} in {seconds:.2f} s ({loading.rows / seconds:,.0f} rows/s)")
    if bad_rows:
        typer.echo(f"skipped {bad_rows:,} bad rows", err=True)


@contextmanager
def _progress(sources: list[Input]) -> Iterator[tuple[Callable[[str], None], Callable[[int, float], None]]]:
    """A bar on standard error when that is a terminal: prints a message above it, and shows rows and rows a second."""
    console = stderr_console()
    if not console.is_terminal:
        yield _report, lambda rows, rate: None
        return
    columns = BarColumn(), TextColumn("{task.fields[rows]:,} rows  {task.fields[rate]:,.0f} rows/s")
    with Progress(*columns, console=console, transient=True) as progress:
        sizes = [source.size_bytes for source in sources]
        task = progress.add_task("", total=None if None in sizes else sum(filter(None, sizes)), rows=0, rate=0.0)

        def show(rows: int, rate: float) -> None:
            # An archive is read twice at its end.
            read = sum(min(source.bytes_read, source.size_bytes or source.bytes_read) for source in sources)
            progress.update(task, completed=read, rows=rows, rate=rate)

        yield _report, show


def _report(message: str) -> None:
    typer.echo(message, err=True)
