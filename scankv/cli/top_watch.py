"""`top --watch`: shows a top-N whenever it changes: in place on a terminal that can do so, else as blocks or lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.live import Live

from scankv.cli.show import is_terminal, output, show
from scankv.cli.top_screen import TopScreen, top_block, top_json

if TYPE_CHECKING:
    from aio_client import sync

# How often the last line is drawn again while nothing changes.
_REFRESHES_PER_SECOND: Final = 4


def watch_top(watched: sync.TopNWatch, *, json: bool) -> None:
    """Shows every change until Ctrl-C, which is the normal end.

    Args:
        watched: The watch; closed at the end.
        json: Whether each change is printed as one line of JSON, even on a terminal.
    """
    try:
        with watched:
            if json:
                _lines(watched)
            elif is_terminal() and not Console().is_dumb_terminal:
                _live(watched)
            else:
                _blocks(watched)
    except KeyboardInterrupt:
        return


def _live(watched: sync.TopNWatch) -> None:
    screen = TopScreen(watched)
    with Live(screen, console=Console(), refresh_per_second=_REFRESHES_PER_SECOND) as live:
        for top in watched:
            screen.change(top)
            live.refresh()


def _lines(watched: sync.TopNWatch) -> None:
    for number, top in enumerate(watched):
        out = output()
        out.write(top_json(top, datetime.now(UTC), first=number == 0).encode() + b"\n")
        out.flush()


def _blocks(watched: sync.TopNWatch) -> None:
    for number, top in enumerate(watched):
        if number:
            typer.echo()
        typer.echo(f"{datetime.now():%H:%M:%S}")
        show(top_block(top, first=number == 0))
