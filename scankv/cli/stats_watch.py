"""`stats --watch`: shows the statistics of a server and their rates periodically, in place on a terminal."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from aio_client import ConnectionFailed
from scankv.cli.show import is_terminal, pairs_table, show
from scankv.formats.amounts import size
from scankv.formats.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import RenderableType

    from aio_client import ServerStats, sync

_RATES: Final = {
    "calls": "calls",
    "scans_started": "scans started",
    "stalled_scans": "scans ended because they stalled",
    "rows_scanned": "rows scanned",
    "rows_written": "rows written",
    "bytes_returned": "returned by scans",
}
"""The statistics whose rates are shown, with their labels."""


def watch_stats(
    client: sync.Client, interval: float, pairs_of: Callable[[ServerStats], Mapping[str, str]], *, json: bool
) -> None:
    """Shows the statistics until Ctrl-C, which is the normal end.

    Args:
        client: The client of the server.
        interval: Seconds between two answers.
        pairs_of: Formats the statistics for people.
        json: Whether each answer is printed as one line of JSON, even on a terminal.

    Raises:
        ConnectionFailed: The server cannot be reached at the beginning.
    """
    in_place = not json and is_terminal() and not Console().is_dumb_terminal
    try:
        found: ServerStats | ConnectionFailed = client.stats()
        before: ServerStats | None = None
        due = time.monotonic()
        with Live(console=Console(), auto_refresh=False, screen=False) if in_place else nullcontext() as live:
            while True:
                at = datetime.now(UTC)
                if json:
                    _print_json(found, before, at)
                elif live is None:
                    _print_block(_screen(found, before, at, pairs_of))
                else:
                    live.update(_screen(found, before, at, pairs_of), refresh=True)
                before = None if isinstance(found, ConnectionFailed) else found
                due = max(due + interval, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    found = client.stats()
                except ConnectionFailed as error:
                    found = error
    except KeyboardInterrupt:
        return


def rates(before: ServerStats | None, now: ServerStats) -> dict[str, float] | None:
    """Returns the changes per second, by statistic. None without values before, or if the server was started since."""
    if before is None or before.incarnation != now.incarnation or now.uptime <= before.uptime:
        return None
    # By the clock of the server, since answers may take different times to arrive.
    seconds = now.uptime - before.uptime
    return {name: round((getattr(now, name) - getattr(before, name)) / seconds, 3) for name in _RATES}


def _print_json(found: ServerStats | ConnectionFailed, before: ServerStats | None, at: datetime) -> None:
    values: dict[str, object] = {"taken_at": at.isoformat(timespec="milliseconds")}
    if isinstance(found, ConnectionFailed):
        values["error"] = found.message
    else:
        values |= {"stats": asdict(found), "per_second": rates(before, found)}
    typer.echo(json.dumps(values))


def _print_block(block: RenderableType) -> None:
    show(block)
    typer.echo()


def _screen(
    found: ServerStats | ConnectionFailed,
    before: ServerStats | None,
    at: datetime,
    pairs_of: Callable[[ServerStats], Mapping[str, str]],
) -> RenderableType:
    title = f"{at.astimezone():%H:%M:%S}"
    if isinstance(found, ConnectionFailed):
        return Text(printable(f"{title}  reconnecting: {found.message}"), style="yellow")
    changes = rates(before, found)
    shown = {
        f"{label} per second": "" if changes is None else _rate(name, changes[name]) for name, label in _RATES.items()
    }
    return Group(Text(title, style="bold"), pairs_table(shown), Text(), pairs_table(pairs_of(found)))


def _rate(name: str, rate: float) -> str:
    return size(int(rate)) if name == "bytes_returned" else f"{rate:,.1f}"
