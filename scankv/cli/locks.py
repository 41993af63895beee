"""`locks`: lists and releases column locks."""

from typing import Annotated

import typer

from aio_client import sync
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, Url
from scankv.cli.outcome import FAILED, complain
from scankv.cli.show import show_json, show_table
from scankv.formats.amounts import duration
from scankv.model.errors import LockLost

app: typer.Typer = typer.Typer(help="Column locks: exclusive write access to columns of a table.")


@app.callback(invoke_without_command=True)
def list_(
    context: typer.Context,
    table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="List only the locks of this table.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the column locks by table: owner, columns and remaining time.

    `scankv locks release ID` ends one.
    """
    if context.invoked_subcommand is not None:
        context.obj = url
        return
    with open_client(url) as client:
        locks = client.column_locks(table)
    if json:
        show_json([_summary(lock) for lock in locks])
    elif locks:
        show_table(
            ["lock", "table", "owner", "columns", "ttl", "left", "principal"],
            [
                [
                    lock.id,
                    lock.table,
                    lock.owner,
                    ",".join(lock.columns),
                    duration(lock.ttl),
                    duration(lock.remaining),
                    lock.principal or "-",
                ]
                for lock in locks
            ],
        )
    else:
        typer.echo("there are no column locks; a writer takes one: table.lock_columns([...], owner=...)", err=True)


@app.command()
def release(
    context: typer.Context,
    lock_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="The ids of locks, as `locks` lists them.", show_default=False)
    ],
    url: Url = None,
) -> None:
    """Release column locks. Their owners lose exclusive access to the columns.

    The exit code is 1 if a lock does not exist; the others are released anyway.
    """
    failed = False
    with open_client(url or context.obj) as client:
        for lock_id in lock_ids:
            try:
                client.release_column_lock(lock_id)
            except LockLost as error:
                complain(error.message)
                failed = True
            else:
                typer.echo(f"released {lock_id}")
    if failed:
        raise typer.Exit(FAILED)


def _summary(lock: sync.ColumnLock) -> dict[str, object]:
    return {
        "id": lock.id,
        "table": lock.table,
        "owner": lock.owner,
        "columns": lock.columns,
        "ttl": lock.ttl,
        "remaining": round(lock.remaining, 3),
        "principal": lock.principal,
    }
