"""Where and how a command writes rows: a table on a terminal, or a format in a pipe or a file."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Final

import pyarrow as pa
import typer

from scankv.cli.show import is_terminal, show_rows
from scankv.cli.show import output as standard_output
from scankv.formats.files import Format, format_of_name
from scankv.formats.writers import atomic_file, row_writer
from scankv.model.counts import counted
from scankv.model.errors import UsageError

TERMINAL_ROWS: Final = 100
_NOT_WRITTEN: Final = (".gz", ".bz2", ".xz", ".zst", ".zip", ".xlsx", ".xlsm", ".xls", ".ods")


class OutputFormat(StrEnum):
    """The formats of rows."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


FormatOption = Annotated[
    OutputFormat | None,
    typer.Option(
        "--format",
        help="The output format. Default: by the name of the output file, else a table on a terminal and csv in a "
        "pipe.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to a file. The file appears when it is complete."),
]


def choose_format(asked: OutputFormat | None, output: Path | None) -> OutputFormat:
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


def show_first(rows: pa.Table, *, cut: bool, remedy: str) -> None:
    """Shows rows as a table, and on a terminal how many they are.

    Args:
        rows: The rows.
        cut: Whether to show at most as many as a terminal should have.
        remedy: What shows those that are left out.
    """
    shown = rows.slice(0, TERMINAL_ROWS) if cut else rows
    show_rows(shown)
    more = f", and there are more; {remedy} shows them" if shown.num_rows < rows.num_rows else ""
    if is_terminal():
        typer.echo(f"{counted(shown.num_rows, 'row')}{more}", err=True)


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, format_: Format, output: Path | None) -> None:
    """Writes rows as they arrive to a file, or to standard output."""
    with _destination(output) as out:
        with row_writer(format_, out, schema, seekable=output is not None) as writer:
            for rows in batches:
                writer.write(rows)
                # The reader of a pipe sees rows as they arrive, and a closed pipe ends the command at once.
                out.flush()
        out.flush()


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
