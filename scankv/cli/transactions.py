"""`transactions`: what was staged and is neither committed nor aborted; listed, and aborted."""

from typing import Annotated

import typer

from aio_client import TransactionInfo, sync
from scankv.cli.options import Json, Url
from scankv.cli.outcome import FAILED, complain
from scankv.cli.show import duration, show_json, show_table
from table_model.errors import TransactionCommitted

app = typer.Typer(help="Transactions that are neither committed nor aborted.")


@app.callback(invoke_without_command=True)
def list_(context: typer.Context, json: Json = False, url: Url = None) -> None:
    """List the open transactions, the oldest first.

    `scankv transactions abort ID` aborts one. Those of which nothing is heard for their time to live are aborted by the
    server.
    """
    if context.invoked_subcommand is not None:
        context.obj = url
        return
    with sync.connect(url) as client:
        transactions = client.transactions()
    if json:
        show_json([_summary(each) for each in transactions])
    elif transactions:
        show_table(
            ["token", "id", "tables", "rows", "bytes", "age", "left"],
            [
                [
                    each.token,
                    each.id or "-",
                    ",".join(each.tables) or "-",
                    each.rows,
                    each.bytes,
                    duration(each.age_seconds),
                    "committing" if each.committing else duration(each.remaining),
                ]
                for each in transactions
            ],
        )
    else:
        typer.echo("there are no open transactions", err=True)


@app.command()
def abort(
    context: typer.Context,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Their ids, or tokens, as listed.", show_default=False)
    ],
    url: Url = None,
) -> None:
    """Abort transactions: what they have staged is removed, and whoever writes them is told.

    The exit code is 1 when one of them is not there, or is being committed; the others are aborted all the same.
    """
    failed = False
    with sync.connect(url or context.obj) as client:
        for id_ in ids:
            tokens = [each.token for each in client.transactions() if id_ in (each.id, each.token)]
            if not tokens:
                complain(f"there is no open transaction {id_}")
                failed = True
            for token in tokens:
                try:
                    client.abort_transaction(token)
                except TransactionCommitted as error:
                    complain(error.message)
                    failed = True
                else:
                    typer.echo(f"aborted {id_}")
    if failed:
        raise typer.Exit(FAILED)


def _summary(transaction: TransactionInfo) -> dict[str, object]:
    return {
        "token": transaction.token,
        "id": transaction.id,
        "conflict": transaction.conflict,
        "tables": list(transaction.tables),
        "rows": transaction.rows,
        "bytes": transaction.bytes,
        "age_seconds": round(transaction.age_seconds, 3),
        "ttl_seconds": transaction.ttl,
        "remaining_seconds": round(transaction.remaining, 3),
        "committing": transaction.committing,
    }
