"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from scankv.model.errors import UsageError


class RowFormat(StrEnum):
    """Output formats of `get` and `top`."""

    TABLE = "table"
    JSONL = "jsonl"


Url = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The server; scankvs://HOST:PORT for TLS. Default: $SCANKV_URL, then localhost:7070."
    ),
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table, as database.table.", show_default=False)]
Columns = Annotated[str | None, typer.Option(metavar="A,B", help="Return only these columns, in this order.")]
Where = Annotated[
    str | None,
    typer.Option(metavar="PREDICATE", help="Select only rows that match, such as \"score > 100 AND v LIKE 'a%'\"."),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="Return at most this many rows.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Rows = Annotated[RowFormat, typer.Option("--format", help="The output format. jsonl has one JSON object per line.")]
KeyColumns = Annotated[
    str | None, typer.Option("--key", metavar="A,B", help="The columns of the primary key.", show_default=False)
]
NoKey = Annotated[
    bool, typer.Option("--no-key", help="The table has no primary key: rows are only appended.", show_default=False)
]
Buckets = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="The number of buckets of the table. Default: 4.")
]
Tablets = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Divide the buckets into tablets, which the workers of a server share.", show_default=False
    ),
]
Indexes = Annotated[
    list[str] | None,
    typer.Option("--index", metavar="A,B", help="An index on these columns, in this order. Repeatable."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="Set any other option. Repeatable.")
]

_OPTION_OF: Final = {
    "name": "TABLE",
    "schema": "--schema",
    "key": "--key",
    "primary_key": "--key",
    "bucket_key": "--bucket-key",
    "buckets": "--buckets",
    "tablets": "--tablets",
    "indexes": "--index",
    "partition_by": "--partition-by",
    "aggregators": "--file",
    "sequence_groups": "--file",
}


def split_names(text: str | None) -> list[str]:
    """Returns the column names in a comma-separated list; none for no text."""
    return [name.strip() for name in text.split(",")] if text else []


def table_settings_of(settings: list[str] | None) -> dict[str, Any]:
    """Returns the table options given as `--set option=value`.

    Raises:
        UsageError: A setting has no `=`, or names something that the command has its own option for.
    """
    pairs = settings_of(settings)
    for name in pairs:
        if name in _OPTION_OF:
            raise UsageError(f'--set is for table options, and "{name}" is not one: give {_OPTION_OF[name]}')
    return pairs


def settings_of(settings: list[str] | None) -> dict[str, Any]:
    """Returns the options given as `--set option=value`.

    Raises:
        UsageError: A setting has no `=`.
    """
    pairs: dict[str, Any] = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f'--set "{setting}" has no value; write --set option=value')
        pairs[name.strip()] = value.strip()
    return pairs
