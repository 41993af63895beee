"""`transactions`: lists and aborts open transactions, and gives up stuck ones."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from aio_client import TransactionInfo
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, Url
from scankv.cli.outcome import FAILED, complain
from scankv.cli.show import show_json, show_table
from scankv.formats.amounts import duration
from scankv.model.counts import counted
from scankv.model.errors import TransactionCommitted, UsageError

app: typer.Typer = typer.Typer(help="Transactions that are neither committed nor aborted, or that are stuck.")


@app.callback(invoke_without_command=True)
def list_(context: typer.Context, json: Json = False, url: Url = None) -> None:
    """List the open transactions, the oldest first.

    `scankv transactions abort ID` aborts one. The server aborts transactions without calls for their time to live. A
    transaction that is committed and could not be applied everywhere is stuck; `scankv transactions give-up ID` accepts
    its losses.
    """
    if context.invoked_subcommand is not None:
        context.obj = url
        return
    with open_client(url) as client:
        transactions = client.transactions()
    if json:
        show_json([_summary(each) for each in transactions])
    elif transactions:
        show_table(
            ["token", "id", "tables", "rows", "bytes", "locks", "age", "left", "principal"],
            [
                [
                    each.token,
                    each.id or "-",
                    ",".join(each.tables) or "-",
                    each.rows,
                    each.bytes,
                    each.locked_keys,
                    duration(each.age),
                    "stuck" if each.stuck else "committing" if each.committing else duration(each.remaining),
                    each.principal or "-",
                ]
                for each in transactions
            ],
        )
        for each in transactions:
            if each.waits_for:
                typer.echo(f"{each.id or each.token} waits for locks of {', '.join(each.waits_for)}", err=True)
            if each.stuck:
                typer.echo(f"{each.id or each.token}: {each.stuck}", err=True)
    else:
        typer.echo("there are no open transactions", err=True)


@app.command()
def abort(
    context: typer.Context,
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="The ids or tokens of transactions, as listed.", show_default=False),
    ],
    url: Url = None,
) -> None:
    """Abort transactions: remove what they have staged. Their writers get an error.

    The exit code is 1 if a transaction does not exist or is being committed; the others are aborted anyway.
    """
    failed = False
    with open_client(url or context.obj) as client:
        for id_ in ids:
            tokens = [each.token for each in client.transactions() if id_ in (each.id, each.token)]
            if not tokens:
                complain(f"no open transaction has the id or token {id_}")
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


@app.command()
def give_up(
    context: typer.Context,
    id_: Annotated[
        str, typer.Argument(metavar="ID", help="The id or token of a stuck transaction, as listed.", show_default=False)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Give up the transaction without asking.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Accept that a stuck transaction is lost where it cannot be applied, so that its tables are served again.

    Use this if stored data is damaged and there is no copy to restore. Everything that can be applied is applied first.
    Losses are printed, and are in the log of the server.
    """
    with open_client(url or context.obj) as client:
        stuck = [each for each in client.transactions() if each.stuck and id_ in (each.id, each.token)]
        if not stuck:
            complain(f"no stuck transaction has the id or token {id_}")
            raise typer.Exit(FAILED)
        found = stuck[0]
        rows = counted(found.rows, "row or key", "rows and keys")
        what = f"what the transaction {id_} has written to {', '.join(found.tables)} ({rows})"
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(f"giving up deletes {what}, as far as it cannot be applied; confirm it with --yes")
            typer.echo(found.stuck, err=True)
            typer.confirm(f"Give up {what}, as far as it cannot be applied?", abort=True, err=True)
        lost = client.give_up_transaction(found.token)
    if json:
        show_json([asdict(each) for each in lost])
    elif lost:
        show_table(
            ["table", "bucket", "rows", "applied", "lost because"],
            [
                [each.table, each.bucket, "unknown" if each.rows is None else each.rows, each.applied, each.reason]
                for each in lost
            ],
        )
    else:
        typer.echo(f"nothing is lost: all of {id_} is applied now")


def _summary(transaction: TransactionInfo) -> dict[str, object]:
    return {
        "token": transaction.token,
        "id": transaction.id,
        "conflict": transaction.conflict,
        "tables": list(transaction.tables),
        "rows": transaction.rows,
        "bytes": transaction.bytes,
        "age": round(transaction.age, 3),
        "ttl": transaction.ttl,
        "remaining": round(transaction.remaining, 3),
        "committing": transaction.committing,
        "stuck": transaction.stuck,
        "locked_keys": transaction.locked_keys,
        "waits_for": list(transaction.waits_for),
        "principal": transaction.principal,
    }
