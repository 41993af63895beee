"""Formats a watched top-N, as a table that shows how rows move, or as a line of JSON. Does no I/O."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Group
from rich.text import Text

from scankv.cli.show import no_width_for, rows_table, text_cells
from scankv.formats.json_text import to_json
from scankv.formats.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from aio_client import ScanKvError, TopN

# Lines around the rows: two of the header, two below, and one for the cursor.
_LINES_AROUND: Final = 5
_FEWEST_ROWS: Final = 3
_MOST_LEFT: Final = 5


class PollingStatus(Protocol):
    """The state of the watch behind a screen."""

    @property
    def unchanged(self) -> int:
        """How many answers in a row had the same rows as now."""

    @property
    def current_error(self) -> ScanKvError | None:
        """The error of the latest attempt to reach the server; None while the server answers."""


class TopScreen:
    """A top-N on a terminal, in the terminal's size: the latest rows, how they moved, and the state of the watch.

    rich draws it periodically in its own thread, even while nothing changes.
    """

    def __init__(self, going: PollingStatus, *, now: Callable[[], datetime] = datetime.now) -> None:
        """Shows no rows before the first `change`.

        Args:
            going: The state of the watch; read whenever the screen is drawn.
            now: Returns the time of day to show.
        """
        self._going = going
        self._now = now
        self._shown: tuple[TopN, bool, datetime] | None = None

    def change(self, top: TopN) -> None:
        """Shows the next answer from now on."""
        self._shown = top, self._shown is None, self._now()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws the screen; called by rich."""
        parts = []
        if self._shown is not None:
            top, first, changed_at = self._shown
            yield top_block(top, first=first, width=options.max_width, height=console.height)
            parts.append(f"last change {changed_at:%H:%M:%S}")
        trouble = self._going.current_error
        if trouble is not None:
            parts.append(f"reconnecting: {trouble.message}")
        elif self._shown is not None:
            parts.append(f"unchanged answers since: {self._going.unchanged:,}")
        yield _line("  ".join(parts) or "waiting for the first answer", "dim" if trouble is None else "yellow")


def top_block(top: TopN, *, first: bool, width: int | None = None, height: int | None = None) -> RenderableType:
    """Returns the rows of an answer with their ranks and movements, followed by the rows that left.

    Args:
        top: The answer.
        first: Whether this is the first answer, in which no row has moved.
        width: The available width in characters. None: unlimited.
        height: The available height in lines. None: unlimited.
    """
    left = None if first or not top.left.num_rows else _line(_left_text(top.left), "dim")
    rows = top.rows
    if height is not None:
        rows = rows.slice(0, max(_FEWEST_ROWS, height - _LINES_AROUND - (left is not None)))
    marks = [Text()] * rows.num_rows if first else movements(top, rows.num_rows)
    ranks = [Text(str(rank), style="dim") for rank in range(1, rows.num_rows + 1)]
    table, hidden = rows_table(rows, width, {"#": ranks, "": marks})
    parts: list[RenderableType] = [table]
    more = top.rows.num_rows - rows.num_rows
    notes = [f"and {more:,} more"] if more else []
    notes += [no_width_for(hidden)] if hidden else []
    if notes:
        parts.append(_line("; ".join(notes), "dim"))
    if left is not None:
        parts.append(left)
    return Group(*parts)


def movements(top: TopN, rows: int) -> list[Text]:
    """Returns how each of the first rows has moved: `▲2`, `▼1`, `new`, or an empty text."""
    marks = [Text() for _ in range(rows)]
    for rank in top.entered.column("rank").to_pylist():
        if rank <= rows:
            marks[rank - 1] = Text("new", style="cyan")
    for before, rank in zip(
        top.moved.column("rank_before").to_pylist(), top.moved.column("rank").to_pylist(), strict=True
    ):
        if rank <= rows:
            up = before - rank
            marks[rank - 1] = Text(f"▲{up}", style="green") if up > 0 else Text(f"▼{-up}", style="red")
    return marks


def top_json(top: TopN, at: datetime, *, first: bool) -> str:
    """Returns an answer as one JSON object: its time, its rows, and the keys of rows that entered, left or moved.

    Args:
        top: The answer.
        at: When the answer arrived, with a time zone.
        first: Whether this is the first answer. The object says so, because then no row counts as entered.
    """
    parts = {"rows": top.rows} | {"entered": top.entered, "left": top.left, "moved": top.moved}
    texts = [f'"{name}":[{",".join(_json_rows(rows))}]' for name, rows in parts.items()]
    return f'{{"taken_at":{json.dumps(at.isoformat())},"first":{json.dumps(first)},{",".join(texts)}}}'


def _json_rows(rows: pa.Table) -> Iterator[str]:
    for batch in rows.to_batches():
        yield from to_json(batch.to_struct_array()).to_pylist()


def _left_text(left: pa.Table) -> str:
    shown = left.slice(0, _MOST_LEFT)
    keys = [name for name in shown.column_names if name != "rank"]
    columns = [text_cells(shown.column(name).combine_chunks()) for name in keys]
    names = [", ".join(str(part) for part in key) for key in zip(*columns, strict=True)]
    ranks = shown.column("rank").to_pylist()
    texts = [f"{name} (was {rank})" for name, rank in zip(names, ranks, strict=True)]
    more = left.num_rows - shown.num_rows
    return f"left: {'; '.join(texts)}" + (f"; and {more:,} more" if more else "")


def _line(text: str, style: str) -> Text:
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")
