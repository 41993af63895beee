"""`scan`: writes the rows of a table to a terminal, a pipe or a file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from aio_client import sync
from scankv.cli.connecting import open_client
from scankv.cli.named_snapshots import snapshot_id
from scankv.cli.options import Columns, Limit, TableName, Url, Where, split_names
from scankv.cli.positions import parse_version
from scankv.cli.results import (
    TERMINAL_ROWS,
    FormatOption,
    OutputFormat,
    OutputOption,
    choose_format,
    show_first,
    write_batches,
)
from scankv.cli.show import is_terminal
from scankv.formats.files import Format
from scankv.formats.printable import printable
from scankv.model.errors import UsageError


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
    format_: FormatOption = None,
    output: OutputOption = None,
    url: Url = None,
) -> None:
    """Read a table as of one instant: now, or the instant of a snapshot or of a published version.

    A table on a terminal stops after 100 rows unless --limit says otherwise.
    """
    chosen = choose_format(format_, output)
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


def _show(wanted: sync.Scan, *, cut: bool) -> None:
    # One row more than is shown tells whether the table has more rows.
    with (wanted.limit(TERMINAL_ROWS + 1) if cut else wanted).stream() as stream:
        _report_fallback(stream)
        rows = pa.Table.from_batches(list(stream), stream.schema)
    show_first(rows, cut=cut, remedy="--limit")


def _write(wanted: sync.Scan, format_: Format, output: Path | None) -> None:
    with wanted.stream() as stream:
        _report_fallback(stream)
        write_batches(stream, stream.schema, format_, output)


def _report_fallback(stream: sync.ScanStream) -> None:
    if stream.lake_fallback is not None:
        typer.echo(printable(f"scankv: warning: the server is read alone, because {stream.lake_fallback}"), err=True)
