"""`create`, `alter` and `drop`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from aio_client import sync
from scankv.cli.column_changes import column_changes
from scankv.cli.connecting import open_client
from scankv.cli.options import (
    Buckets,
    Indexes,
    KeyColumns,
    NoKey,
    Settings,
    TableName,
    Tablets,
    Url,
    split_names,
    table_settings_of,
)
from scankv.formats.table_files import TableFile, read_table_file, table_file_values
from scankv.model.counts import counted
from scankv.model.errors import DataLoss, UsageError
from scankv.model.types.types import parse_schema


def create(
    table: Annotated[str | None, typer.Argument(help="The table, as database.table.", show_default=False)] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help='The columns, such as "player string, score int64 not null".', show_default=False
        ),
    ] = None,
    key: KeyColumns = None,
    no_key: NoKey = False,
    bucket_key: Annotated[
        str | None,
        typer.Option(
            metavar="A",
            help="The key columns that choose the bucket. Default: the complete key. With --no-key, any columns; by "
            "default, the buckets take turns.",
        ),
    ] = None,
    buckets: Buckets = None,
    tablets: Tablets = None,
    index: Indexes = None,
    partition_by: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Partition by these columns, the first ones of the key.", show_default=False),
    ] = None,
    set_: Settings = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Take the definition from a TOML file, as `describe --toml` prints it, and from no other option.",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Take the definition of this table, without its rows. --buckets and --set change parts of it.",
        ),
    ] = None,
    url: Url = None,
) -> None:
    """Create a table, from options, from a file, or like another table.

    The page "Column types" of the documentation has the types of columns. The page "Table options" has the options for
    --set, with their values and defaults.
    """
    if file is not None:
        given: tuple[object, ...] = table, schema, key, bucket_key, buckets, tablets, index, partition_by, set_, like
        if no_key or any(each is not None for each in given):
            raise UsageError("--file defines the complete table: leave out all other options of the table")
        table_file = read_table_file(file)
        with open_client(url) as client:
            table_file.create(client)
        typer.echo(f"created {table_file.table}")
        return
    if like is not None:
        given = schema, key, bucket_key, tablets, index, partition_by
        if table is None or no_key or any(each is not None for each in given):
            raise UsageError("--like takes the name of the new table, --buckets and --set, and no other option")
        with open_client(url) as client:
            _definition_like(client.table(like), table, buckets, set_).create(client)
        typer.echo(f"created {table}")
        return
    if table is None or schema is None or (key is None and not no_key):
        raise UsageError(
            "a new table needs a name, --schema and --key: give all three, or --no-key for a table to which rows are "
            "only appended, or --file, or --like"
        )
    if key is not None and no_key:
        raise UsageError("--key and --no-key exclude each other: give one of them")
    with open_client(url) as client:
        client.create_table(
            table,
            parse_schema(schema),
            primary_key=split_names(key),
            bucket_key=split_names(bucket_key),
            buckets=buckets,
            tablets=1 if tablets is None else tablets,
            indexes=[split_names(columns) for columns in index or ()],
            partition_by=split_names(partition_by),
            **table_settings_of(set_),
        )
    typer.echo(f"created {table}")


def alter(
    table: TableName,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="Set an option of the table. Repeatable."),
    ] = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Set an option to its default. Repeatable.")
    ] = None,
    add_columns: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help='Add columns at the end, such as "team string, since date".'),
    ] = None,
    drop_columns: Annotated[str | None, typer.Option(metavar="NAMES", help="Drop columns, such as a,b.")] = None,
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a column. Repeatable.")] = None,
    widen: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help='Give columns wider types, such as "score int64".')
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Set the default of a column, also of an added one. Repeatable."),
    ] = None,
    comment: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=TEXT", help="Say what a column means. Repeatable.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Put all columns into another order, such as b,a,c.")
    ] = None,
    url: Url = None,
) -> None:
    """Change the options and columns of a table, while it is read and written: all of it, or nothing.

    changelog, log_retention_seconds, log_retention_bytes, columnar_base, row_deduplicate, ttl_seconds, ttl_column,
    ttl_changes, partition_ttl, partition_ttl_column and partition_ttl_format can change. `scankv indexes` adds and
    drops indexes. Columns are dropped, renamed, widened and added, in this order; --default, --comment and --order
    take the names after that.
    """
    options = table_settings_of(set_)
    for name in reset or ():
        if name in options:
            raise UsageError(f'the option "{name}" is given with --set and with --reset: give one of them')
        options[name] = None
    if not any((options, add_columns, drop_columns, rename, widen, default, comment, order)):
        raise UsageError("there is nothing to alter: give --set, --reset, --add-columns or another change of columns")
    with open_client(url) as client:
        changes = column_changes(
            client.table(table).schema,
            add=add_columns,
            drop=drop_columns,
            rename=rename,
            widen=widen,
            default=default,
            comment=comment,
            order=order,
        )
        client.alter_table(table, **changes, **options)
    typer.echo(f"altered {table}")


def drop(
    table: TableName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Drop the table without asking.")] = False,
    url: Url = None,
) -> None:
    """Drop a table with all its rows."""
    with open_client(url) as client:
        # Checked first, so that the command does not ask about a table that does not exist.
        try:
            found = client.table(table)
            rows = "all its rows" if yes else _rows_of(found)
        except DataLoss:
            # A damaged table can be dropped.
            rows = "all its rows, which cannot be counted because the table is damaged"
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(f"dropping {table} deletes all its rows; confirm it with --yes")
            typer.confirm(f"Drop {table} with {rows}?", abort=True, err=True)
        client.drop_table(table)
    typer.echo(f"dropped {table}")


def _definition_like(table: sync.Table, name: str, buckets: int | None, settings: list[str] | None) -> TableFile:
    """Returns the definition of a table with another name, and with what the command line changes."""
    definition = TableFile.of_values(table_file_values(table), table.name)
    if buckets is not None:
        definition.arguments["buckets"] = buckets
    return replace(definition, table=name, options=definition.options | table_settings_of(settings))


def _rows_of(table: sync.Table) -> str:
    """Returns how many rows would be deleted, without reading any row, because the table may be damaged."""
    counts = [None if bucket.damage else bucket.rows for bucket in table.stats()]
    return "all its rows" if None in counts else f"its {counted(sum(filter(None, counts)), 'row')}"
