"""`consumers`: lists, resets and deletes the consumers of a table."""

from typing import Annotated

import typer

from aio_client import Consumer
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, TableName, Url
from scankv.cli.outcome import FAILED, complain
from scankv.cli.positions import parse_start
from scankv.cli.show import show_json, show_table
from scankv.formats.amounts import duration
from scankv.model.errors import ConsumerNotFound

app: typer.Typer = typer.Typer(
    help="Consumers: named readers of the changelog of a table, and their positions.", no_args_is_help=True
)

ConsumerId = Annotated[str, typer.Argument(metavar="ID", help="The id of the consumer.", show_default=False)]


@app.command("list")
def list_(
    table: TableName,
    consumer_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="List only this consumer, or those that match a pattern such as 'etl-*'.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the consumers of a table, with their lag in changes and their last commit."""
    with open_client(url) as client:
        consumers = client.table(table).consumers(consumer_id)
    if consumer_id is not None and not consumers:
        raise ConsumerNotFound(f"the table {table} has no consumer {consumer_id}; see: scankv consumers list {table}")
    if json:
        show_json([_summary(consumer) for consumer in consumers])
    elif consumers:
        show_table(
            ["consumer", "lag", "reads", "committed at (UTC)", "state", "principal", "offsets"],
            [_cells(consumer) for consumer in consumers],
        )
    else:
        typer.echo("the table has no consumers; a stream creates one: table.changes(consumer_id=...)", err=True)


@app.command()
def reset(
    table: TableName,
    consumer_id: ConsumerId,
    to: Annotated[
        str,
        typer.Option(
            metavar="START",
            help="full (all rows, then the changes), earliest, latest, last:N, offsets as 0=12,1=7 or as "
            "the JSON of a listing, or a time as 2026-01-31T12:00:00Z.",
            show_default=False,
        ),
    ],
    clamp: Annotated[
        bool, typer.Option("--clamp", help="If START is no longer kept, move to the nearest change that is.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Move a consumer to another position. An open stream of the consumer ends."""
    start = parse_start("--to", to)
    with open_client(url) as client:
        offsets = client.table(table).reset_consumer(consumer_id, start, clamp=clamp)
    if json:
        show_json({"id": consumer_id, "log_offsets": offsets, "table_incarnation": offsets.table_incarnation})
    else:
        typer.echo(f"reset {consumer_id} of {table} to {_offsets(offsets)}")


@app.command()
def accept(table: TableName, consumer_id: ConsumerId, json: Json = False, url: Url = None) -> None:
    """Let a consumer continue at the position that a restored or recovered table has for it.

    Until then, the server refuses streams of the consumer, because its program may have acted on changes that no
    longer exist.
    """
    with open_client(url) as client:
        offsets = client.table(table).accept_consumer(consumer_id)
    if json:
        show_json({"id": consumer_id, "log_offsets": offsets, "table_incarnation": offsets.table_incarnation})
    else:
        typer.echo(f"{consumer_id} of {table} continues at {_offsets(offsets)}")


@app.command()
def delete(
    table: TableName,
    consumer_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="The ids of consumers, or patterns such as 'etl-*'.", show_default=False),
    ],
    url: Url = None,
) -> None:
    """Delete consumers. Their open streams end.

    In a pattern, * stands for any characters, ? for one, and [a-c] for one of several; put it in quotes. The exit code
    is 1 if a consumer does not exist or nothing matches; the others are deleted anyway.
    """
    failed = False
    with open_client(url) as client:
        found = client.table(table)
        for consumer_id in consumer_ids:
            if not (deleted := found.delete_consumers(consumer_id)):
                complain(f'the table {table} has no consumer "{consumer_id}"')
                failed = True
            for each in deleted:
                typer.echo(f"deleted {each} of {table}")
    if failed:
        raise typer.Exit(FAILED)


def _cells(consumer: Consumer) -> list[object]:
    committed = "never" if consumer.committed_at is None else f"{consumer.committed_at:%Y-%m-%d %H:%M:%S}"
    state = "live" if consumer.live else f"expires in {duration(consumer.remaining)}"
    if consumer.damage:
        state = f"damaged: {consumer.damage}"
    elif consumer.restored:
        state = "restored: accept or reset it"
    return [
        consumer.id,
        consumer.lag,
        consumer.phase,
        committed,
        state,
        consumer.principal or "-",
        _offsets(consumer.log_offsets),
    ]


def _offsets(offsets: dict[int, int]) -> str:
    return ",".join(f"{bucket}={offset}" for bucket, offset in sorted(offsets.items()))


def _summary(consumer: Consumer) -> dict[str, object]:
    return {
        "id": consumer.id,
        "lag": consumer.lag,
        "phase": consumer.phase,
        "committed_at": None if consumer.committed_at is None else consumer.committed_at.isoformat(),
        "live": consumer.live,
        "remaining": round(consumer.remaining, 3),
        "log_offsets": consumer.log_offsets,
        "table_incarnation": consumer.log_offsets.table_incarnation,
        "restored": consumer.restored,
        "damage": consumer.damage,
        "principal": consumer.principal,
    }
