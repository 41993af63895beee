"""`upgrade`: shows the format of a data directory, and confirms the upgrade to a newer one."""

from pathlib import Path
from typing import Annotated

import typer

from scankv.cli.outcome import require_extra

_CHANGES = {
    2: "concurrent calls with one row share requests, whose refused rows the server remembers",
    3: "writes with track_changes=False, changes of the table option changelog, and its value input",
    4: "columns that are renamed, dropped, widened or reordered, or have defaults or comments",
    5: (
        "deletes of key ranges with track_changes=False; partitioned tables; tables whose rows expire; tables without "
        "a primary key, and changelogs that are kept for ever"
    ),
}
"""What each format adds."""


def upgrade(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.", show_default=False)],
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Give the directory the newest format. The server must be stopped.")
    ] = False,
) -> None:
    """Show the format of a data directory, or confirm its upgrade.

    A server keeps the format of a directory that an earlier version has written, so that the earlier version can still
    open it. What needs a newer format is not used until the upgrade is confirmed. There is no way back afterwards.
    """
    with require_extra("server"):
        from streaming_server.storage.tables.data_directory import NEWEST_FORMAT, DataDirectory, read_format

    found = read_format(data)
    if found == NEWEST_FORMAT:
        typer.echo(f"{data} has format {found}, the newest one: nothing to confirm")
        return
    if confirm:
        directory = DataDirectory(data)
        try:
            directory.confirm()
        finally:
            directory.close()
        typer.echo(f"{data} has format {NEWEST_FORMAT} now; before, it had format {found}")
        return
    typer.echo(f"{data} has format {found}; this version of ScanKV has format {NEWEST_FORMAT}, which adds:")
    for number in range(found + 1, NEWEST_FORMAT + 1):
        typer.echo(f"  format {number}: {_CHANGES[number]}")
    typer.echo("Until you confirm, earlier versions can open the directory. To confirm, stop the server and run:")
    typer.echo(f"  scankv upgrade {data} --confirm")
