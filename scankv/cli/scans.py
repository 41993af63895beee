"""`ps` and `cancel`: list and end live scans."""

from dataclasses import asdict
from typing import Annotated, Final

import typer

from aio_client import LiveScan
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, Url
from scankv.cli.outcome import FAILED, complain
from scankv.cli.show import show_json, show_table
from scankv.formats.amounts import duration
from scankv.model.counts import counted
from scankv.model.errors import ScanNotFound, UsageError

# Short enough to type, and long enough that a typing error does not match another scan.
_SHORTEST_PREFIX: Final = 6
_MOST_BUCKETS: Final = 8


def ps(json: Json = False, url: Url = None) -> None:
    """List the live scans of all clients, the oldest first."""
    with open_client(url) as client:
        scans = client.live_scans()
    if json:
        show_json([asdict(scan) for scan in scans])
    elif scans:
        show_table(
            ["scan", "table", "buckets", "age", "idle", "rows", "bytes", "peer", "snapshot"],
            [_cells(scan) for scan in scans],
        )
    else:
        typer.echo("no scan is live", err=True)


def cancel(
    scan_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="SCAN_ID...",
            help=f"The ids of scans, as `scankv ps` lists them; the first {_SHORTEST_PREFIX} characters are enough.",
            show_default=False,
        ),
    ],
    url: Url = None,
) -> None:
    """End live scans. Their readers get an error.

    The exit code is 1 if a scan does not exist; the others are ended anyway.
    """
    failed = False
    with open_client(url) as client:
        scans = client.live_scans()
        for given in scan_ids:
            try:
                scan = _find(given, scans)
                client.cancel_scan(scan.scan_id)
            except (ScanNotFound, UsageError) as error:
                complain(error.message)
                failed = True
            else:
                typer.echo(
                    f"ended scan {scan.scan_id} of {scan.table} by {scan.peer} after {counted(scan.rows, 'row')}"
                )
    if failed:
        raise typer.Exit(FAILED)


def _find(given: str, scans: list[LiveScan]) -> LiveScan:
    found = [scan for scan in scans if scan.scan_id == given]
    if not found and len(given) >= _SHORTEST_PREFIX:
        found = [scan for scan in scans if scan.scan_id.startswith(given)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} live scans begin with {given}: give more of the id")
    if not found and len(given) < _SHORTEST_PREFIX:
        raise UsageError(f"{given} is too short: give at least {_SHORTEST_PREFIX} characters of the id")
    if not found:
        raise ScanNotFound(f"no live scan has the id {given}; it may have ended: list live scans with scankv ps")
    return found[0]


def _cells(scan: LiveScan) -> list[object]:
    return [
        scan.scan_id,
        scan.table,
        _buckets(scan.buckets),
        duration(scan.age),
        duration(scan.idle),
        scan.rows,
        scan.bytes,
        scan.peer,
        scan.snapshot_id or "",
    ]


def _buckets(numbers: tuple[int, ...]) -> str:
    shown = ",".join(map(str, numbers[:_MOST_BUCKETS]))
    return shown if len(numbers) <= _MOST_BUCKETS else f"{shown},… ({len(numbers)})"
