"""`create` and `drop`."""

import sys
from typing import Annotated

import typer

from aio_client import sync
from scankv.cli.options import Buckets, Indexes, Settings, TableName, Url, names_of, settings_of
from table_model.errors import UsageError
from table_model.types import parse_schema


def create(
    table: TableName,
    schema: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help='Such as "player string, score int64 not null".', show_default=False),
    ],
    key: Annotated[str, typer.Option(metavar="A,B", help="The columns of the primary key.", show_default=False)],
    bucket_key: Annotated[
        str | None,
        typer.Option(metavar="A", help="The key columns that choose the bucket. Default: the whole key."),
    ] = None,
    buckets: Buckets = None,
    index: Indexes = None,
    set_: Settings = None,
    url: Url = None,
) -> None:
    """Create a table."""
    with sync.connect(url) as client:
        client.create_table(
            table,
            parse_schema(schema),
            primary_key=names_of(key),
            bucket_key=names_of(bucket_key),
            buckets=buckets,
            indexes=[names_of(columns) for columns in index or ()],
            **settings_of(set_),
        )
    typer.echo(f"created {table}")


def drop(
    table: TableName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
) -> None:
    """Drop a table with all its rows."""
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"dropping {table} deletes all its rows; confirm it with --yes")
    with sync.connect(url) as client:
        # Asked only about a table that is there.
        rows = client.table(table).count()
        if not yes:
            typer.confirm(f"Drop {table} with its {rows:,} rows?", abort=True, err=True)
        client.drop_table(table)
    typer.echo(f"dropped {table}")
