"""`snapshot`: creates, lists, renews and releases pinned snapshots."""

import re
from typing import Annotated, Final

import typer

from aio_client import sync
from scankv.cli.connecting import open_client
from scankv.cli.export import export
from scankv.cli.named_snapshots import find_snapshot
from scankv.cli.options import Json, TableName, Url
from scankv.cli.outcome import FAILED, complain
from scankv.cli.show import show_json, show_table
from scankv.formats.amounts import duration
from scankv.model.errors import SnapshotLost, UsageError

_SECONDS_OF: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

app: typer.Typer = typer.Typer(
    help="Pinned snapshots: a table as of one instant, kept until its lease ends.", no_args_is_help=True
)

app.command()(export)

SnapshotIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...", help="The ids that `snapshots create` printed, or TABLE@NAME for names.", show_default=False
    ),
]


@app.command()
def create(
    table: TableName,
    ttl: Annotated[
        str, typer.Option(metavar="TIME", help="The time to live without renewal: 90s, 10m, 2h, 7d.")
    ] = "10m",
    name: Annotated[
        str | None,
        typer.Option(help="A name for the snapshot, unique in its table: 1 to 128 of A-Z a-z 0-9 . _ -"),
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            help="The principal to whom the snapshot belongs. Only an admin of the table may name another one than "
            "that of the token. Default: the principal of the token.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
) -> None:
    """Pin a table as of now, and print the snapshot's id."""
    seconds = parse_duration(ttl)
    with open_client(url) as client:
        typer.echo(client.table(table).snapshot(ttl=seconds, name=name, principal=principal).id)


@app.command("list")
def list_(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="List only the snapshots of this table.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the snapshots, the oldest first."""
    with open_client(url) as client:
        snapshots = client.snapshots(table)
    if json:
        show_json([_summary(snapshot) for snapshot in snapshots])
    elif snapshots:
        show_table(
            ["snapshot", "table", "rows", "taken at (UTC)", "ttl", "left", "name", "principal", "view"],
            [
                [
                    snapshot.id,
                    snapshot.table,
                    "" if snapshot.rows is None else snapshot.rows,
                    f"{snapshot.taken_at:%Y-%m-%d %H:%M:%S}",
                    duration(snapshot.ttl),
                    duration(snapshot.remaining),
                    snapshot.name or "",
                    snapshot.principal or "-",
                    snapshot.view_id,
                ]
                for snapshot in snapshots
            ],
        )
    else:
        typer.echo("there are no snapshots; take one with: scankv snapshots create TABLE", err=True)


@app.command()
def renew(
    snapshot_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The id that `snapshots create` printed, or TABLE@NAME for a name.", show_default=False
        ),
    ],
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="A new time to live: 90s, 10m, 2h, 7d. Default: unchanged.")
    ] = None,
    url: Url = None,
) -> None:
    """Restart the time to live of a snapshot."""
    seconds = None if ttl is None else parse_duration(ttl)
    with open_client(url) as client:
        snapshot = find_snapshot(snapshot_id, client.snapshots())
        snapshot.renew(seconds)
        typer.echo(f"renewed {snapshot.id} for {duration(snapshot.ttl)}")


@app.command()
def release(snapshot_ids: SnapshotIds, url: Url = None) -> None:
    """Release snapshots. Scans that are reading them continue to their end.

    The exit code is 1 if a snapshot does not exist; the others are released anyway.
    """
    failed = False
    with open_client(url) as client:
        snapshots = client.snapshots()
        for given in snapshot_ids:
            try:
                find_snapshot(given, snapshots).release()
            except SnapshotLost as error:
                complain(error.message)
                failed = True
            else:
                typer.echo(f"released {given}")
    if failed:
        raise typer.Exit(FAILED)


def parse_duration(text: str, *, unit_for: str | None = None) -> float:
    """Returns the seconds of a duration such as 600, 90s, 10m, 2h or 7d.

    Args:
        text: The duration.
        unit_for: The option, if its duration must have a unit: its user may not think of seconds.

    Raises:
        UsageError: The text is not a duration, or has no unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip(), re.ASCII)
    if unit_for is not None and (match is None or not match[2]):
        raise UsageError(f'{unit_for} must be a time with a unit, as in 90s, 10m, 2h or 7d, not "{text}"')
    if match is None:
        raise UsageError(f'"{text}" is not a time: write seconds, as in 600, or 90s, 10m, 2h, 7d')
    return float(match[1]) * _SECONDS_OF[match[2]]


def _summary(snapshot: sync.Snapshot) -> dict[str, object]:
    return {
        "id": snapshot.id,
        "name": snapshot.name,
        "view_id": snapshot.view_id,
        "table": snapshot.table,
        "rows": snapshot.rows,
        "taken_at": snapshot.taken_at.isoformat(),
        "ttl": snapshot.ttl,
        "remaining": round(snapshot.remaining, 3),
        "log_offsets": snapshot.log_offsets,
        "table_incarnation": snapshot.log_offsets.table_incarnation,
        "principal": snapshot.principal,
    }
