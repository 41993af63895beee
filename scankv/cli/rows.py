"""`get`, `put`, `delete`, `truncate` and `count`: rows by their keys, or by a predicate."""

from typing import Annotated

import pyarrow as pa
import typer

from aio_client import sync
from scankv.cli.arguments import parse_rows
from scankv.cli.connecting import open_client
from scankv.cli.keyed_writes import delete_rows, encoded_keys, put_rows
from scankv.cli.options import Json, RowFormat, Rows, TableName, Url, Where
from scankv.cli.show import output, show_json, show_rows
from scankv.formats.json_text import json_lines
from scankv.formats.key_text import parse_keys
from scankv.formats.printable import printable
from scankv.model.counts import counted
from scankv.model.errors import UsageError
from scankv.model.tables.log_tables import require_key

Keys = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY...",
        help="The keys, one row each. Write a key of several columns with commas, as a line of CSV.",
        show_default=False,
    ),
]

TrackChanges = Annotated[
    bool,
    typer.Option(
        "--track-changes/--no-track-changes",
        help="With --no-track-changes, the changelog gets only the range of the deleted keys, so that any number of "
        "rows is deleted at once; the rows must be exactly one range of keys. Streams of changes, consumers and undo "
        "fail when they reach it.",
        show_default=False,
    ),
]


def get(table: TableName, keys: Keys, format_: Rows = RowFormat.TABLE, url: Url = None) -> None:
    """Show the rows with these keys.

    The exit code is 1 if a key has no row.
    """
    with open_client(url) as client:
        found = client.table(table)
        wanted = parse_keys(keys, _key_schema(found, "rows are not found by a key: use scan --where"))
        rows = found.lookup(wanted)
    if format_ is RowFormat.JSONL:
        for batch in rows.to_batches():
            output().write(json_lines(batch).to_pybytes())
    elif rows.num_rows:
        show_rows(rows)
    present = set(encoded_keys(rows, wanted.schema.names))
    missing = [
        key
        for key, encoded in zip(keys, encoded_keys(wanted, wanted.schema.names), strict=True)
        if encoded not in present
    ]
    if missing:
        raise UsageError(f"{table} has no row with the key {' or '.join(missing)}")


def put(
    table: TableName,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="COLUMN=VALUE...",
            help="The values of one row, or rows as JSON objects.",
            show_default=False,
        ),
    ],
    url: Url = None,
) -> None:
    """Insert a row, or change the row with the same key. Columns that are not given stay as they are.

    In a new row they have their default, or are null. If a column that is not given must not be null, or the table's
    merge engine needs complete rows, give all columns: of a new row, those that have no default. In a table without a
    primary key, each row is a new one.
    """
    with open_client(url) as client:
        found = client.table(table)
        rows = parse_rows(values, found.schema)
        written = put_rows(found, rows)
    typer.echo(f"wrote {counted(written, 'row')}")


def delete(
    table: TableName,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY...]",
            help="The keys, one row each. Write a key of several columns with commas, as a line of CSV.",
            show_default=False,
        ),
    ] = None,
    where: Where = None,
    track_changes: TrackChanges = True,
    url: Url = None,
) -> None:
    """Delete the rows with these keys, or all rows that match a predicate.

    A key without a row is reported, but is not an error. With --where, all rows are deleted at one instant;
    `scankv count --where` shows how many there are.
    """
    if bool(keys) is (where is not None):
        raise UsageError("name the keys of the rows to delete, or select the rows with --where; not both")
    if not track_changes and where is None:
        raise UsageError("--no-track-changes is for deletes with --where: leave it out")
    with open_client(url) as client:
        found = client.table(table)
        if where is not None:
            written = found.delete(where=where, track_changes=track_changes)
            typer.echo(_deleted(written.rows))
            return
        given = keys or []
        deleted, missing = delete_rows(found, parse_keys(given, _key_schema(found, "rows are not deleted")))
    typer.echo(_deleted(deleted))
    if missing:
        note = f"{table} has no row with the key {' or '.join(given[place] for place in missing)}"
        typer.echo(printable(f"scankv: {note}"), err=True)


def truncate(table: TableName, track_changes: TrackChanges = True, url: Url = None) -> None:
    """Delete all rows of a table at one instant, whatever its delete_behavior is."""
    with open_client(url) as client:
        typer.echo(_deleted(client.table(table).truncate(track_changes=track_changes).rows))


def count(table: TableName, where: Where = None, json: Json = False, url: Url = None) -> None:
    """Count the rows of a table, or the rows that match a predicate."""
    with open_client(url) as client:
        rows = client.table(table).count(where)
    if json:
        show_json({"table": table, "rows": rows})
    else:
        typer.echo(rows)


def _deleted(rows: int) -> str:
    return f"deleted {counted(rows, 'row')}"


def _key_schema(table: sync.Table, consequence: str) -> pa.Schema:
    """Returns the key columns. Raises NoPrimaryKey, which states the consequence, if the table has none."""
    require_key(table.name, table.primary_key, consequence)
    return pa.schema([table.schema.field(name) for name in table.primary_key])
