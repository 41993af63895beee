"""`partitions`: lists, creates and drops partitions of a table."""

import datetime as dt
import sys
from typing import Annotated

import pyarrow as pa
import typer

from aio_client import PartitionInfo, sync
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, TableName, Url
from scankv.cli.show import show_json, show_sheet
from scankv.formats.scalar_text import scalars_from_text
from scankv.formats.table_sheets import partitions_sheet, value_text
from scankv.model.counts import counted
from scankv.model.errors import UsageError

app: typer.Typer = typer.Typer(help="Partitions of a table that was created with --partition-by.", no_args_is_help=True)

Values = Annotated[
    list[str],
    typer.Argument(
        metavar="COLUMN=VALUE...", help="The values of the first partition column, or more.", show_default=False
    ),
]


@app.command("list")
def list_(
    table: TableName,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COLUMN=VALUE...]", help="List only partitions with these values.", show_default=False),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """List partitions in key order: rows, bytes, age, and the time since the last write."""
    with open_client(url) as client:
        found = client.table(table)
        partitions = found.partitions(_values_of(found, values or []))
    if json:
        show_json([_summary(each) for each in partitions])
        return
    show_sheet(partitions_sheet(found, partitions, dt.datetime.now(dt.UTC)))


@app.command()
def create(table: TableName, values: Values, url: Url = None) -> None:
    """Create a partition without rows. The first write would create it as well."""
    with open_client(url) as client:
        found = client.table(table)
        created = found.create_partition(_values_of(found, values))
    typer.echo(f"created {' '.join(values)}" if created else f"{' '.join(values)} exists already")


@app.command()
def drop(
    table: TableName,
    values: Values,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Drop the partitions without asking.")] = False,
    url: Url = None,
) -> None:
    """Drop all partitions with these values, with all their rows."""
    with open_client(url) as client:
        found = client.table(table)
        wanted = _values_of(found, values)
        partitions = found.partitions(wanted)
        if not partitions:
            raise UsageError(
                f"{table} has no partition {' '.join(values)}: `scankv partitions list {table}` lists them"
            )
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError("dropping partitions deletes all their rows; confirm it with --yes")
            typer.confirm(f"Drop {_text(partitions)} of {table}?", abort=True, err=True)
        dropped = found.drop_partition(wanted)
    typer.echo(f"dropped {_text(dropped)} of {table}")


def _values_of(table: sync.Table, texts: list[str]) -> dict[str, object]:
    """Parses the values of partition columns. Raises UsageError."""
    values: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in table.partition_by:
            columns = " ".join(f"{column}=VALUE" for column in table.partition_by) or "no values"
            raise UsageError(f'"{text}" is not a value of a partition column of {table.name}: give {columns}')
        type_ = table.schema.field(name).type
        try:
            values[name] = scalars_from_text(pa.array([value]), type_)[0]
        except ValueError as error:
            raise UsageError(f'"{value}" is not a value of the column "{name}", which is {type_}') from error
    return values


def _text(partitions: list[PartitionInfo]) -> str:
    counts = [each.rows for each in partitions]
    rows = "an unknown number of rows" if None in counts else counted(sum(filter(None, counts)), "row")
    return f"{counted(len(partitions), 'partition')} with {rows}"


def _summary(partition: PartitionInfo) -> dict[str, object]:
    return {
        "values": {
            name: value if isinstance(value, bool | int | str) else value_text(value)
            for name, value in partition.values.items()
        },
        "rows": partition.rows,
        "disk_bytes": partition.disk_bytes,
        "created_at": partition.created_at.isoformat(),
        "expires_at": None if partition.expires_at is None else partition.expires_at.isoformat(),
        "last_write_at": None if partition.last_write_at is None else partition.last_write_at.isoformat(),
    }
