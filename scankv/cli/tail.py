"""`tail`: the changes of a table as they happen."""

import json
import sys
from enum import StrEnum
from functools import cache, partial
from typing import Annotated, Final

import pyarrow as pa
import typer
from rich.console import Console
from rich.text import Text

from aio_client import ClearedRange, ScanSource
from scankv.cli.connecting import open_client
from scankv.cli.options import Columns, Limit, TableName, Url, Where, split_names
from scankv.cli.positions import parse_start, parse_stop
from scankv.cli.show import is_terminal, output, text_cells
from scankv.formats.debezium import debezium_lines
from scankv.formats.json_text import json_lines
from scankv.formats.printable import printable
from scankv.model import lazy_compute as pc
from scankv.model.changes.log_positions import PositionKind, Unmatched, Untracked
from scankv.model.errors import UsageError
from scankv.model.tables.columns import CHANGE_COLUMNS

_STYLES: Final = {"+I": "green", "-U": "dim", "+U": "yellow", "-D": "red"}


class TailFormat(StrEnum):
    """Output formats of `tail`."""

    TABLE = "table"
    JSONL = "jsonl"
    DEBEZIUM_JSONL = "debezium-jsonl"


def tail(
    table: TableName,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="START",
            help="full (all rows, then the changes), lake:URI (the same, with the rows of the files that `scankv "
            "publish` has written there), earliest, latest, last:N, offsets as 0=12,1=7 or as JSON with log_offsets "
            "and table_incarnation, or a time as 2026-01-31T12:00:00Z.",
        ),
    ] = "latest",
    until: Annotated[
        str | None,
        typer.Option(
            metavar="STOP", help="latest (the end as of now), offsets as for --from, or a time. Default: until Ctrl-C."
        ),
    ] = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format_: Annotated[
        TailFormat | None,
        typer.Option(
            "--format",
            help="The output format. Default: a table on a terminal, else jsonl: one JSON object per line. "
            "debezium-jsonl has an envelope for each change, with the row before and after.",
        ),
    ] = None,
    unmatched: Annotated[
        Unmatched,
        typer.Option(
            help="How to show rows that do not match WHERE and may have matched before, in tables with "
            'changelog="upsert": refuse the command, or print a deletion.',
        ),
    ] = Unmatched.REFUSE,
    untracked: Annotated[
        Untracked,
        typer.Option(
            help="What to do where rows were written or deleted without tracking of changes: fail, or print all rows "
            "of the written key ranges again, as updates, and each deleted range as one deletion. With rescan, "
            "WHERE may need --unmatched delete.",
        ),
    ] = Untracked.FAIL,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="If START is older than the oldest change that is kept, start there.")
    ] = False,
    url: Url = None,
) -> None:
    """Show the changes of a table as they happen.

    +I is a new row, -U and +U are a row before and after an update, -D is a row that was deleted. With --where, a row
    that begins to match is +I, and a row that no longer matches is -D. Ctrl-C ends the command with exit code 0.
    """
    chosen = format_ or (TailFormat.TABLE if is_terminal() else TailFormat.JSONL)
    start = parse_start("--from", from_)
    if limit is not None and start.kind is PositionKind.LAKE:
        raise UsageError("--limit is not for --from lake:URI: give --until, or end the output, as with `head -n 10`")
    stop = None if until is None else parse_stop("--until", until)
    with open_client(url) as client:
        scan = client.table(table).scan(columns=split_names(columns) or None, where=where, limit=limit)
        changes = scan.with_source(ScanSource.LOG).start_from(start, clamp=clamp).stop_at(stop).with_row_kind()
        changes = changes.with_unmatched(unmatched.value).with_untracked(untracked.value)
        stream = changes.stream()
        # Debezium has no event for some rows of a table.
        if untracked is Untracked.RESCAN and chosen is not TailFormat.DEBEZIUM_JSONL:
            stream.on_cleared(partial(_print_cleared, chosen))
        try:
            for rows in stream:
                _print(rows, chosen, table)
        except KeyboardInterrupt:
            return


def _print(rows: pa.RecordBatch, format_: TailFormat, table: str) -> None:
    match format_:
        case TailFormat.TABLE:
            _print_lines(rows)
        case TailFormat.JSONL:
            output().write(json_lines(rows).to_pybytes())
        case TailFormat.DEBEZIUM_JSONL:
            database, _, name = table.partition(".")
            output().write(debezium_lines(rows, database, name).to_pybytes())
    # A reader of a pipe sees changes as they arrive.
    sys.stdout.flush()


def _print_cleared(format_: TailFormat, cleared: ClearedRange) -> None:
    """Prints a line that says which rows were deleted at once."""
    if format_ is TailFormat.JSONL:
        values = {"_change_type": "-D", "_log_offset": cleared.offset, "_bucket": cleared.bucket}
        typer.echo(json.dumps(values | {"_deleted": cleared.text}, ensure_ascii=False, separators=(",", ":")))
    else:
        where = f"{cleared.bucket}:{cleared.offset}"
        line = Text(f"{'':15}  -D  {where:>8}  rows deleted at once: {printable(cleared.text)}", style=_STYLES["-D"])
        _print_line(line)
    sys.stdout.flush()


def _print_lines(rows: pa.RecordBatch) -> None:
    """Prints one line per change: time, row kind, bucket and offset, and the columns by name."""
    names = rows.schema.names[len(CHANGE_COLUMNS) :]
    times = pc.fill_null(pc.strftime(rows.column("_commit_timestamp"), "%H:%M:%S"), "")
    cells = [text_cells(rows.column(name)) for name in names]
    kinds = rows.column("_change_type").to_pylist()
    locations = zip(rows.column("_bucket").to_pylist(), rows.column("_log_offset").to_pylist(), strict=True)
    for time, kind, (bucket, offset), *row in zip(times.to_pylist(), kinds, locations, *cells, strict=True):
        where = f"{bucket}:{'' if offset is None else offset}"
        values = "  ".join(
            f"{printable(name)}={'null' if value is None else value}" for name, value in zip(names, row, strict=True)
        )
        _print_line(Text(f"{time:15.15}  {kind}  {where:>8}  {values}", style=_STYLES[kind]))


def _print_line(line: Text) -> None:
    if is_terminal():
        _console().print(line)
    else:
        typer.echo(line.plain)


@cache
def _console() -> Console:
    return Console(soft_wrap=True, highlight=False)
