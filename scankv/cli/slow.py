"""`slow`: lists the latest slow calls."""

from dataclasses import asdict
from typing import Final

import typer

from aio_client import SlowCall
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, Url
from scankv.cli.show import show_json, show_table
from scankv.formats.amounts import duration

_HEADINGS: Final = ["ended", "call", "table", "took", "waited", "status", "client", "request", "plan"]


def slow(json: Json = False, url: Url = None) -> None:
    """List the latest calls that kept the server busy for more than its slow_request_seconds, newest first.

    The server remembers up to 100. If it asks for tokens, this needs the role admin for all tables.
    """
    with open_client(url) as client:
        calls = client.slow_calls()
    if json:
        show_json([asdict(call) for call in calls])
    elif calls:
        show_table(_HEADINGS, [*map(_cells, calls)])
    else:
        typer.echo("no slow calls are remembered; those of a worker are forgotten when it is started again", err=True)


def _cells(call: SlowCall) -> list[object]:
    return [
        f"{duration(call.age)} ago",
        call.method,
        call.table or "",
        f"{call.elapsed:.3f} s",
        f"{call.waited:.3f} s",
        call.code,
        call.peer or "",
        call.request_id,
        call.plan or "",
    ]
