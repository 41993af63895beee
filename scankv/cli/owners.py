"""`owners`: gives what belongs to one principal to another one."""

from typing import Annotated

import typer

from scankv.cli.connecting import open_client
from scankv.cli.options import Url
from scankv.model.counts import counted

app: typer.Typer = typer.Typer(help="Owners: the principals to whom snapshots, consumers, writers and locks belong.")


@app.callback()
def group() -> None:
    """Makes `assign` a command of a group, to which others may come."""


@app.command()
def assign(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.", show_default=False)],
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="The principal to whom they will belong.", show_default=False)
    ],
    current: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PRINCIPAL",
            help="The principal to whom they belong now. Default: those without an owner.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
) -> None:
    """Give the snapshots, consumers, writers and column locks of a table to a principal.

    Without --from, those that have no owner, because they were made before the server had tokens or owners.
    """
    with open_client(url) as client:
        given = client.assign_owner(table, principal, current=current)
    typer.echo(
        f"{principal} owns {counted(given.snapshots, 'more snapshot')}, {counted(given.consumers, 'consumer')}, "
        f"{counted(len(given.writers), 'writer')} and {counted(given.column_locks, 'column lock')} of {table}"
    )
