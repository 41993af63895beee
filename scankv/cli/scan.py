"""`scan`: writes the rows of a table to a terminal, a pipe or a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Final

import pyarrow as pa
import typer

from aio_client import sync
from scankv.cli.connecting import open_client
from scankv.cli.named_snapshots import snapshot_id
from scankv.cli.options import Columns, Limit, TableName, Url, Where, split_names
from scankv.cli.positions import parse_version
from scankv.cli.show import is_terminal, show_rows
from scankv.cli.show import output as standard_output
from scankv.formats.files import Format, format_of_name
from scankv.formats.printable import printable
from scankv.formats.writers import atomic_file, row_writer
from scankv.model.counts import counted
from scankv.model.errors import UsageError

_TERMINAL_ROWS: Final = 100
_NOT_WRITTEN: Final = (".gz", ".bz2", ".xz", ".zst", ".zip", ".xlsx", ".xlsm", ".xls", ".ods")


class OutputFormat(StrEnum):
    """Output formats of `scan`."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


class IsolationChoice(StrEnum):
    """Isolations of `scan`."""

    READ_COMMITTED = "read_committed"
    READ_LATEST = "read_latest"


class ConsistencyChoice(StrEnum):
    """Consistencies of `scan`."""

    TABLE = "table"
    OWNER = "owner"


def scan(
    table: TableName,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Return all rows in key order, across buckets.")] = False,
    lake: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Read the files that `scankv publish` has written there, and from the server what has changed since.",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="SNAPSHOT|TIME|VERSION",
            help="Read a pinned snapshot: the id that `scankv snapshots create` printed, or TABLE@NAME for a name. "
            "With --lake also an earlier version alone: the last one until a time as 2026-01-31T12:00:00Z, or one by "
            "its number.",
        ),
    ] = None,
    isolation: Annotated[
        IsolationChoice,
        typer.Option(
            "--isolation",
            help="read_committed waits until what it shows is durable; read_latest shows what is applied, which a "
            "power failure may undo.",
        ),
    ] = IsolationChoice.READ_COMMITTED,
    consistency: Annotated[
        ConsistencyChoice,
        typer.Option(
            "--consistency",
            help="Of a table with tablets: table shows all rows as of one instant; owner shows the rows of each worker "
            "as of one instant, which delays writers less.",
        ),
    ] = ConsistencyChoice.TABLE,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what the server would read and decode, and read nothing.")
    ] = False,
    format_: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            help="The output format. Default: by the name of the output file, else a table on a terminal and csv in a "
            "pipe.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to a file. The file appears when it is complete."),
    ] = None,
    url: Url = None,
) -> None:
    """Read a table as of one instant: now, or the instant of a snapshot or of a published version.

    A table on a terminal stops after 100 rows unless --limit says otherwise.
    """
    chosen = _choose_format(format_, output)
    version = None if as_of is None else parse_version(as_of)
    if version is not None and lake is None:
        raise UsageError(f"--as-of {as_of} needs --lake URI: the location where the table is published")
    with open_client(url) as client:
        wanted = client.table(table).scan(columns=split_names(columns) or None, where=where, limit=limit)
        instant = snapshot_id(client, as_of) if as_of is not None and version is None else version
        wanted = wanted.ordered() if ordered else wanted
        wanted = wanted if instant is None else wanted.as_of(instant)
        wanted = wanted if lake is None else wanted.read_path("lake", lake)
        wanted = wanted.isolation(isolation.value).consistency(consistency.value)
        if explain:
            typer.echo(printable(str(wanted.explain()), lines=True))
        elif chosen is OutputFormat.TABLE:
            _show(wanted, cut=limit is None and is_terminal())
        else:
            _write(wanted, Format(chosen), output)


def _choose_format(asked: OutputFormat | None, output: Path | None) -> OutputFormat:
    """Returns the output format. Raises UsageError if a file, or a terminal, cannot have it."""
    if output is not None:
        if asked is OutputFormat.TABLE:
            raise UsageError("--format must be csv or jsonl or parquet or arrow to write a file, not table")
        if asked is None and output.suffix.lower() in _NOT_WRITTEN:
            rest = output.stem or "rows"
            other = rest if format_of_name(rest) else f"{rest}.csv"
            raise UsageError(f"{output}: compressed files and workbooks cannot be written: name a file such as {other}")
        return asked or OutputFormat(format_of_name(output.name) or Format.CSV)
    if not is_terminal():
        return asked or OutputFormat.CSV
    if asked in (OutputFormat.PARQUET, OutputFormat.ARROW):
        raise UsageError(f"{asked} cannot be shown on a terminal: name a file with -o, or pipe it into a program")
    return asked or OutputFormat.TABLE


def _show(wanted: sync.Scan, *, cut: bool) -> None:
    # One row more than is shown tells whether the table has more rows.
    with (wanted.limit(_TERMINAL_ROWS + 1) if cut else wanted).stream() as stream:
        _report_fallback(stream)
        rows = pa.Table.from_batches(list(stream), stream.schema)
    shown = rows.slice(0, _TERMINAL_ROWS) if cut else rows
    show_rows(shown)
    more = ", and there are more; --limit shows them" if shown.num_rows < rows.num_rows else ""
    if is_terminal():
        typer.echo(f"{counted(shown.num_rows, 'row')}{more}", err=True)


def _write(wanted: sync.Scan, format_: Format, output: Path | None) -> None:
    with wanted.stream() as stream, _destination(output) as out:
        _report_fallback(stream)
        with row_writer(format_, out, stream.schema, seekable=output is not None) as writer:
            for rows in stream:
                writer.write(rows)
                # The reader of a pipe sees rows as they arrive, and a closed pipe ends the command at once.
                out.flush()
        out.flush()


def _report_fallback(stream: sync.ScanStream) -> None:
    if stream.lake_fallback is not None:
        typer.echo(printable(f"scankv: warning: the server is read alone, because {stream.lake_fallback}"), err=True)


@contextmanager
def _destination(output: Path | None) -> Iterator[IO[bytes]]:
    if output is None:
        yield standard_output()
        return
    try:
        with atomic_file(output) as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror or error}") from error
