"""Prints results: tables in the width of the terminal, or JSON."""

from __future__ import annotations

import io
import json
import sys
from typing import IO, TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.types as pat
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scankv.formats.printable import PrintableStream, printable, printable_texts
from scankv.formats.text import to_text
from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from scankv.formats.table_sheets import Sheet

_LONGEST_CELL: Final = 60
_GAP: Final = 3
_NULL: Final = "null"
_LEAST_ROWS_OF_RATE: Final = 1_000
# A width in characters at which nothing is cut.
_UNBOUNDED: Final = 1_000_000


def show_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def show_pairs(pairs: Mapping[str, str]) -> None:
    """Prints names and values, one pair per line."""
    show(pairs_table(pairs))


def pairs_table(pairs: Mapping[str, str]) -> Table:
    """Returns names and values as a printable table, one pair per line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        grid.add_row(Text(printable(name), style="dim"), Text(printable(value, lines=True)))
    return grid


def show_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table. Integers are aligned right. A narrow terminal wraps lines, so that ids stay complete."""
    numeric = [all(isinstance(row[index], int) for row in rows) for index in range(len(headers))]
    table = _empty_table(headers, numeric)
    for row in rows:
        texts = (f"{cell:,}" if isinstance(cell, int) else printable(str(cell), lines=True) for cell in row)
        table.add_row(*map(Text, texts))
    show(table, width=_UNBOUNDED)


def show_sheet(sheet: Sheet) -> None:
    """Prints a sheet as `show_table` does."""
    show_table(sheet.headers, sheet.rows)


def show_rows(rows: pa.Table) -> None:
    """Prints rows of a scan. On a terminal, prints as many columns as fit, and the names of the others."""
    table, hidden = rows_table(rows, Console().width if is_terminal() else None)
    show(table)
    if hidden:
        typer.echo(no_width_for(hidden), err=True)


def rows_table(
    rows: pa.Table, width: int | None, leading: Mapping[str, Sequence[Text]] | None = None
) -> tuple[Table, list[str]]:
    """Returns rows as a printable table, and the names of the last columns, which did not fit.

    Args:
        rows: The rows; the first column is always shown.
        width: The available width in characters. None: unlimited.
        leading: Columns to show before those of the rows, by their headers; aligned right.
    """
    leading = leading or {}
    cells = {name: text_cells(rows.column(name).combine_chunks()) for name in rows.column_names}
    width_left = _UNBOUNDED if width is None else width
    for header, texts in leading.items():
        width_left -= max(map(len, (header, *map(str, texts)))) + _GAP
    hidden = _hidden(cells, width_left)
    shown = rows.schema.names[: len(rows.schema) - len(hidden)]
    types = [rows.schema.field(name).type for name in shown]
    numeric = [pat.is_integer(t) or pat.is_floating(t) or pat.is_decimal(t) for t in types]
    table = _empty_table([*leading, *shown], [True] * len(leading) + numeric)
    for row in zip(*leading.values(), *(cells[name] for name in shown), strict=True):
        table.add_row(*(_cell(value) for value in row))
    return table, hidden


def no_width_for(hidden: Sequence[str]) -> str:
    """Returns the message about columns that did not fit."""
    return f"not enough width for: {printable(', '.join(hidden))}; choose with --columns"


def rate(rows: int, seconds: float) -> str:
    """Returns ` (n rows/s)`; empty if there are so few rows that the rate would only measure the start."""
    return f" ({rows / seconds:,.0f} rows/s)" if rows >= _LEAST_ROWS_OF_RATE else ""


def output() -> IO[bytes]:
    """Returns standard output for data: exact bytes in a pipe or a file, printable characters on a terminal."""
    exact: IO[bytes] = sys.stdout.buffer
    return cast("IO[bytes]", PrintableStream(exact)) if is_terminal() else exact


def is_terminal() -> bool:
    return sys.stdout.isatty()


def stderr_console() -> Console:
    return Console(stderr=True)


def text_cells(column: pa.Array) -> list[str | None]:
    """Returns the values as short texts that are safe to print; None for nulls."""
    texts = printable_texts(to_text(column))
    long = pc.greater(pc.utf8_length(texts), _LONGEST_CELL)
    shortened = pc.binary_join_element_wise(pc.utf8_slice_codeunits(texts, 0, _LONGEST_CELL - 1), "…", "")
    cells: list[str | None] = pc.if_else(long, shortened, texts).to_pylist()
    return cells


def _cell(value: Text | str | None) -> Text:
    if isinstance(value, Text):
        return value
    return Text(_NULL, style="dim") if value is None else Text(value)


def _hidden(cells: Mapping[str, Sequence[str | None]], width_left: int) -> list[str]:
    """Returns the last columns that do not fit. The first column is always shown."""
    width_left += _GAP
    names = list(cells)
    for index, name in enumerate(names):
        width_left -= max(len(cell or _NULL) for cell in [name, *cells[name]]) + _GAP
        if width_left < 0:
            return names[max(index, 1) :]
    return []


def _empty_table(headers: Sequence[str], numeric: Sequence[bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header, right in zip(headers, numeric, strict=True):
        table.add_column(Text(printable(header)), justify="right" if right else "left", no_wrap=True)
    return table


def show(shown: RenderableType, width: int | None = None) -> None:
    """Prints an object of rich. On a terminal, cuts it at the given width, or at the terminal's own."""
    if is_terminal():
        Console(width=width).print(shown)
        return
    text = io.StringIO()
    Console(file=text, width=_UNBOUNDED).print(shown)
    typer.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))
