"""`load`: writes the rows of a file to a table."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import typer

from aio_client import sync
from scankv.cli.bootstrapping import bootstrap_table
from scankv.cli.connecting import open_client
from scankv.cli.defaults import defaults_of
from scankv.cli.loading import Loading
from scankv.cli.new_table import NEEDS_KEY, NewTable, plan_new_table
from scankv.cli.options import (
    Buckets,
    KeyColumns,
    NoKey,
    Settings,
    TableName,
    Url,
    split_names,
    table_settings_of,
)
from scankv.cli.rejects import RejectedRows
from scankv.cli.show import rate, stderr_console
from scankv.formats.blocks import BadRows
from scankv.formats.columns import check_file_columns
from scankv.formats.csv_dialect import CsvOptions, parse_delimiter
from scankv.formats.files import (
    BadFile,
    Format,
    Input,
    convert_errors,
    limit_memory_for,
    limit_memory_of_inputs,
    open_inputs,
)
from scankv.formats.origin import Origin
from scankv.formats.printable import printable
from scankv.formats.reader import infer_schema, read_blocks
from scankv.model.counts import counted
from scankv.model.errors import ScanKvError, TableExists, TableNotFound, UsageError
from scankv.model.tables.log_tables import require_key
from scankv.model.types.types import format_schema

_MOST_SHOWN: Final = 20
SOME_REJECTED: Final = 3
"""The exit code after a load that has rejected rows."""


class OnError(StrEnum):
    """How to treat a row that cannot be loaded."""

    STOP = "stop"
    SKIP = "skip"


class Mode(StrEnum):
    """How to treat existing rows with the same keys."""

    MERGE = "merge"
    OVERWRITE = "overwrite"


class DuplicateRows(StrEnum):
    """How a bootstrap treats rows with the same key."""

    ERROR = "error"
    MERGE = "merge"


DataFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A CSV or JSON lines file (also as .gz or .zip), a Parquet or Arrow file, or a directory of Parquet "
        "or Arrow files; - is standard input.",
        show_default=False,
    ),
]
FileFormat = Annotated[
    Format | None,
    typer.Option("--format", help="The file format. Default: detected from the first bytes, else from the name."),
]
NullTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--null",
        metavar="TEXT",
        help="CSV text that means null in every column. Repeatable. An empty field is always null; NA, N/A, NULL "
        "and null are null except in string columns.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter",
        metavar="CHARACTER",
        help="The character between CSV fields, such as ; or tab. Default: comma, semicolon, tab or pipe, detected "
        "from the first rows.",
        show_default=False,
    ),
]


Create = Annotated[
    bool,
    typer.Option(
        "--create",
        help="Create the table first, with column types that fit every row of the file. From a file of "
        "`snapshots export`, the same table is restored: key, buckets, indexes, options and aggregators.",
    ),
]
BootstrapTablets = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --bootstrap: divide the buckets into tablets, which the workers of a server share.",
        show_default=False,
    ),
]
IgnoreDefinition = Annotated[
    bool,
    typer.Option("--ignore-definition", help="With --create: take only the columns and rows of an exported file."),
]
BadRowHandling = Annotated[
    OnError,
    typer.Option(
        help="How to treat a row that cannot be loaded. stop: end the load. skip: report it, write it to the file of "
        "--rejected and continue; then the exit code is 3."
    ),
]
Rejected = Annotated[
    Path | None,
    typer.Option(
        "--rejected",
        metavar="PATH",
        help="With --on-error skip: where to write the rejected rows, to be corrected and loaded again; an existing "
        "file is replaced. Default: FILE.rejected in the current directory, if no such file exists. For standard "
        "input, there is no default.",
        show_default=False,
    ),
]
LoadMode = Annotated[
    Mode | None,
    typer.Option(
        help="merge: the table's merge engine merges rows with the same key. overwrite: rows replace those with the "
        "same key; use it for rows that are already merged. Default: merge, but overwrite if --create restores an "
        "exported table.",
        show_default=False,
    ),
]
TrackChanges = Annotated[
    bool,
    typer.Option(
        "--track-changes/--no-track-changes",
        help="With --no-track-changes, the changelog gets only the range of the written keys, which makes a backfill "
        "faster. Streams of changes, consumers and undo fail when they reach it.",
        show_default=False,
    ),
]
Bootstrap = Annotated[
    bool,
    typer.Option(
        "--bootstrap",
        help="Make a new table from FILE, which is a Delta table, an Iceberg table or Parquet files, as a path or a "
        "URI such as s3://bucket/table. The table appears with all rows at once, at less cost than with --create. If "
        "it is interrupted, the same command continues where it stopped. Needs --key.",
    ),
]
Duplicates = Annotated[
    DuplicateRows, typer.Option(help="With --bootstrap: whether rows with the same key are an error, or are merged.")
]
FromScratch = Annotated[
    bool,
    typer.Option(
        "--from-scratch", help="With --bootstrap: discard what an interrupted bootstrap of the table has sent."
    ),
]


def load(
    table: TableName,
    file: DataFile,
    create: Create = False,
    key: KeyColumns = None,
    no_key: NoKey = False,
    buckets: Buckets = None,
    tablets: BootstrapTablets = None,
    set_: Settings = None,
    ignore_definition: IgnoreDefinition = False,
    format_: FileFormat = None,
    null: NullTexts = None,
    delimiter: Delimiter = None,
    on_error: BadRowHandling = OnError.STOP,
    rejected: Rejected = None,
    mode: LoadMode = None,
    track_changes: TrackChanges = True,
    bootstrap: Bootstrap = False,
    duplicates: Duplicates = DuplicateRows.ERROR,
    from_scratch: FromScratch = False,
    url: Url = None,
) -> None:
    """Write the rows of a file to a table. They are merged with existing rows as the table's merge engine defines.

    Rows are appended to a table without a primary key. A column that the file does not have gets its default, and so
    does a column that an object of a JSON lines file does not have. A null in the file stays null.

    With --create, options that you give override the definition in an exported file, and every difference is reported.

    With --bootstrap, all rows of a table in an open format become a new table at once, or none.

    Exit codes: 0 all rows are loaded, 1 the load has failed, 3 some rows were rejected and all others are loaded.
    """
    skip = on_error is OnError.SKIP
    if bootstrap:
        others = (create, no_key, ignore_definition, format_, null, delimiter, skip, rejected, not track_changes)
        _check_bootstrap(key, is_other_given=any(others))
        from scankv.lake.sources.sources import stored_bytes  # on use: every command would wait for it

        with open_client(url) as client, limit_memory_for(file, stored_bytes(file)):
            bootstrap_table(
                client,
                table,
                file,
                key=split_names(key),
                buckets=buckets,
                tablets=tablets,
                settings=table_settings_of(set_),
                mode=(mode or Mode.MERGE).value,
                duplicates=duplicates.value,
                from_scratch=from_scratch,
            )
        return
    _refuse_bootstrap_options(duplicates, from_scratch=from_scratch, tablets=tablets)
    if rejected is not None and not skip:
        raise UsageError("--rejected is for --on-error skip: add it")
    if not create and (key or no_key or buckets or set_ or ignore_definition):
        raise UsageError("--key, --no-key, --buckets, --set and --ignore-definition are for a new table: add --create")
    rejects = RejectedRows(file, rejected) if skip else None
    settings, csv = table_settings_of(set_), CsvOptions(tuple(null or ()), parse_delimiter(delimiter))
    with (
        # The client comes first, because standard input is read when it is opened.
        open_client(url) as client,
        open_inputs(file, format_, again=create) as sources,
        limit_memory_of_inputs(file, sources),
    ):
        check_delimiter(sources[0], delimiter)
        if create:
            keys = split_names(key)
            if not no_key:
                _require_key(sources[0], keys)
            _refuse_existing(client, table)
            schema, origin = _read_definition(sources, keys, csv, skip=skip, ignore_definition=ignore_definition)
            new = plan_new_table(table, schema, origin, key=keys, buckets=buckets, settings=settings, no_key=no_key)
            _create_table(client, table, new)
            if new.restored and new.definition.arguments["primary_key"]:
                mode = mode or Mode.OVERWRITE
        _load(client, table, sources, csv, mode or Mode.MERGE, rejects, track_changes=track_changes)
    if rejects is not None and rejects.count:
        raise typer.Exit(SOME_REJECTED)


def _check_bootstrap(key: str | None, *, is_other_given: bool) -> None:
    """Raises UsageError if a bootstrap has no key, or an option that bootstraps do not take."""
    if is_other_given or not key:
        raise UsageError(
            "--bootstrap needs --key, and takes only --buckets, --tablets, --set, --mode, --duplicates and "
            "--from-scratch: leave out the other options"
        )


def _refuse_bootstrap_options(duplicates: DuplicateRows, *, from_scratch: bool, tablets: int | None) -> None:
    """Raises UsageError if an option is given that is only for bootstraps."""
    if duplicates is not DuplicateRows.ERROR:
        raise UsageError("--duplicates is for --bootstrap: leave it out")
    if from_scratch:
        raise UsageError("--from-scratch is for --bootstrap: leave it out")
    if tablets is not None:
        raise UsageError("--tablets is for --bootstrap: leave it out, or create the table first with `scankv create`")


def check_delimiter(source: Input, delimiter: str | None) -> None:
    """Raises UsageError if a delimiter is given for a file that has none."""
    if delimiter is not None and source.format is not Format.CSV:
        raise UsageError(f"--delimiter is for csv, and {source.name} is {source.format}: leave it out")


def _require_key(source: Input, key: list[str]) -> None:
    """Raises UsageError where only --key can name the key, rather than after a long file was read for its columns."""
    if not key and source.format not in (Format.PARQUET, Format.ARROW):
        raise UsageError(NEEDS_KEY)


def _read_definition(
    sources: list[Input], key: list[str], csv: CsvOptions, *, skip: bool, ignore_definition: bool
) -> tuple[pa.Schema, Origin | None]:
    """Reads the columns of the files, and the table that they were exported from, if they were and it counts."""
    first = sources[0]
    # Bad rows are reported when they are read for loading.
    schema = infer_schema(first, BadRows(first.name, skip=skip), csv, _warn)
    _check_key(first, schema, key)
    if ignore_definition:
        return schema, None
    origin = Origin.of(schema)
    _refuse_two_definitions(sources, origin)
    return schema, origin


def _create_table(client: sync.Client, name: str, new: NewTable) -> None:
    """Creates a table, and reports what it has unlike the table that the files were exported from."""
    made = new.definition.create(client)
    typer.echo(f"created {name}: {printable(format_schema(made.schema))}")
    for note in new.notes:
        typer.echo(f"unlike the exported table: {printable(note)}", err=True)


def _check_key(source: Input, schema: pa.Schema, key: list[str]) -> None:
    """Raises UsageError if a key column is not in the file. The message lists the columns of the file."""
    for name in key:
        if name not in schema.names:
            shown = ", ".join(f'"{column}"' for column in schema.names[:_MOST_SHOWN])
            separated = source.format is Format.CSV and len(schema) == 1
            hint = "; if the fields are not separated by commas, give --delimiter" if separated else ""
            raise UsageError(f'{source.name} has no column "{name}", which --key names: its columns are {shown}{hint}')


def _refuse_two_definitions(sources: list[Input], origin: Origin | None) -> None:
    """Raises UsageError if the files of a directory were exported from different tables.

    Otherwise all definitions but the first would be dropped silently.
    """
    for source in sources[1:]:
        other = Origin.of(infer_schema(source, BadRows(source.name, skip=False)))
        if (other and (other.table, other.definition)) != (origin and (origin.table, origin.definition)):
            raise UsageError(
                f"{source.name} was exported from another table than {sources[0].name}, or has another definition: "
                "load the files of each table separately, or give --ignore-definition with --key"
            )


def _refuse_existing(client: sync.Client, name: str) -> None:
    with suppress(TableNotFound):
        client.table(name)
        raise TableExists(f"the table {name} already exists: leave out --create, or drop it first", table=name)


def _load(
    client: sync.Client,
    name: str,
    sources: list[Input],
    csv: CsvOptions,
    mode: Mode,
    rejects: RejectedRows | None,
    *,
    track_changes: bool,
) -> None:
    try:
        table = client.table(name)
    except TableNotFound as error:
        raise error.with_advice("to create it from the file, add --create and --key COLUMN") from None
    if mode is Mode.OVERWRITE or not track_changes:
        require_key(name, table.primary_key, "rows are appended: leave out --mode overwrite and --no-track-changes")
    defaults = defaults_of(table)
    if len(sources) > 1:
        # Checked before the first write, so that nothing is written if a later file has other columns.
        for source in sources:
            with convert_errors(source.name):
                names = infer_schema(source, BadRows(source.name, skip=rejects is not None)).names
                check_file_columns(names, table.schema, defaults)
    started = time.monotonic()
    loading = Loading(client, table, mode.value, track_changes=track_changes)
    with _report_rows_of_a_part(loading, name, rejects), _progress(sources) as (report, show), rejects or nullcontext():
        for source in sources:
            bad = BadRows(source.name, skip=False)
            if rejects is not None:
                bad = BadRows(source.name, skip=True, report=report, keep=rejects.write)
            blocks = read_blocks(source, table.schema, bad, csv, defaults)
            loading.run(blocks, bad, lambda: show(loading.rows, loading.rows / (time.monotonic() - started)))
    seconds = time.monotonic() - started
    typer.echo(f"loaded {counted(loading.rows, 'row')} into {name} in {seconds:.2f} s{rate(loading.rows, seconds)}")
    _name_rejected(rejects)


@contextmanager
def _report_rows_of_a_part(loading: Loading, name: str, rejects: RejectedRows | None) -> Iterator[None]:
    """Reports how many rows are in the table, and which were rejected, if the load ends early, for whatever reason."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, ScanKvError) as error:
        # The message of BadFile already contains the number.
        if not isinstance(error, BadFile):
            ended = "stopped" if isinstance(error, ScanKvError) else "interrupted"
            more = f"; up to {loading.unsure:,} more may be" if loading.unsure else ""
            written = f"{counted(loading.rows, 'row is', 'rows are')} in {name}{more}"
            if not loading.rows and not loading.unsure:
                written = f"nothing was written to {name}"
            typer.echo(f"{ended}: {written}", err=True)
        _name_rejected(rejects)
        raise


def _name_rejected(rejects: RejectedRows | None) -> None:
    """Reports where the rejected rows are, if there are any."""
    if rejects is not None and rejects.count and rejects.is_usable:
        typer.echo(f"skipped {counted(rejects.count, 'bad row')}: see {printable(str(rejects.path))}", err=True)


@contextmanager
def _progress(sources: list[Input]) -> Iterator[tuple[Callable[[str], None], Callable[[int, float], None]]]:
    """Shows a progress bar on standard error if it is a terminal.

    Yields a function that prints a message, and one that updates the bar with the number of rows and rows per second.
    """
    console = stderr_console()
    if not console.is_terminal:
        yield _report, lambda rows, rows_per_second: None
        return
    from rich.progress import BarColumn, Progress, TextColumn  # on use: every command would wait for it

    columns = BarColumn(), TextColumn("{task.fields[rows]}  {task.fields[rate]:,.0f} rows/s")
    with Progress(*columns, console=console, transient=True) as progress:
        sizes = [source.size_bytes for source in sources]
        total = None if None in sizes else sum(filter(None, sizes))
        task = progress.add_task("", total=total, rows=counted(0, "row"), rate=0.0)

        def show(rows: int, rows_per_second: float) -> None:
            # The end of a zip archive is read twice, so `bytes_read` can exceed the size.
            read = sum(min(source.bytes_read, source.size_bytes or source.bytes_read) for source in sources)
            progress.update(task, completed=read, rows=counted(rows, "row"), rate=rows_per_second)

        yield _report, show


def _warn(message: str) -> None:
    _report(f"scankv: warning: {message}")


def _report(message: str) -> None:
    # A message about a row contains values from the file, which may contain control characters.
    typer.echo(printable(message, lines=True), err=True)
