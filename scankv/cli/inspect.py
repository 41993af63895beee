"""`tables`, `describe` and `stats`: show tables and the state of the server."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Final

import pyarrow as pa
import pyarrow.types as pat
import typer

from aio_client import (
    DamagedTable,
    ServerStats,
    TableBases,
    sync,
)
from scankv.cli.connecting import open_client
from scankv.cli.defaults import default_texts, defaults_of
from scankv.cli.options import Json, TableName, Url
from scankv.cli.outcome import complain
from scankv.cli.show import show_json, show_pairs, show_sheet, show_table
from scankv.cli.stats_watch import watch_stats
from scankv.formats.amounts import duration, size
from scankv.formats.table_files import table_file_values, to_toml
from scankv.formats.table_sheets import (
    BASE_HEADERS,
    base_cells,
    bases_sheet,
    buckets_sheet,
    columns_sheet,
    definition_pairs,
    disk_text,
    indexes_sheet,
)
from scankv.model.errors import UsageError
from scankv.model.types.types import format_type

_INTERVAL_SECONDS: Final = 1.0
_LABELS: Final = {
    "resident_bytes": "memory",
    "peak_resident_bytes": "memory at its peak",
    "snapshot_bytes": "kept on disk by snapshots",
    "result_cache_bytes": "memory of the result cache",
    "bytes_returned": "returned by scans",
}


def tables(json: Json = False, url: Url = None) -> None:
    """List the tables, including damaged ones with the reasons."""
    with open_client(url) as client:
        found, damaged = client.tables(), {table.name: table for table in client.damaged_tables()}
    gone = [table for table in damaged.values() if not table.partial]
    if json:
        listed = [_summary(table) | _damage(damaged.get(table.name)) for table in found]
        listed += [{"name": table.name} | _damage(table) for table in gone]
        show_json(sorted(listed, key=lambda table: str(table["name"])))
    elif found or gone:
        rows: list[list[object]] = [
            [table.name, ", ".join(table.primary_key) or "none", len(table.schema), table.buckets]
            + ["partly damaged" if table.name in damaged else ""] * bool(damaged)
            for table in found
        ]
        rows += [[table.name, "", "", "", "damaged"] for table in gone]
        show_table(
            ["table", "key", "columns", "buckets", *(["state"] if damaged else [])],
            sorted(rows, key=lambda row: str(row[0])),
        )
        for table in damaged.values():
            complain(f"{table.name}: {table.reason}")
    else:
        typer.echo("there are no tables yet; create one with scankv create, or scankv load --create", err=True)


def describe(
    table: TableName,
    json: Json = False,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print only the definition, as `scankv create -f` reads it.")
    ] = False,
    url: Url = None,
) -> None:
    """Show the columns, the key, the indexes and the buckets of a table."""
    if json and toml:
        raise UsageError("--json and --toml exclude each other: give one of them")
    with open_client(url) as client:
        found = client.table(table)
        if toml:
            typer.echo(to_toml(table_file_values(found)), nl=False)
            return
        buckets, indexes, disk = found.stats(), found.index_status(), found.disk_use()
    if json:
        show_json(
            _summary(found)
            | {"index_status": [asdict(index) for index in indexes]}
            | {"disk_use": asdict(disk)}
            | {"stats": [asdict(bucket) for bucket in buckets]}
        )
        return
    show_pairs(definition_pairs(found, buckets, disk))
    show_sheet(columns_sheet(found, defaults_of(found)))
    if indexes:
        show_sheet(indexes_sheet(indexes))
    show_sheet(buckets_sheet(buckets))
    if (bases := bases_sheet(buckets)).rows:
        show_sheet(bases)


def stats(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the statistics again and again, with rates, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help=f"With --watch, show the statistics once in this time. Default: {_INTERVAL_SECONDS:g}.",
        ),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show statistics of the server. --json prints every value in its unit.

    With --watch, a terminal shows the current values in place, and what has happened per second since the values
    before. A pipe gets a block each time; with --json, it gets one line with the time, the values and the rates. While
    the server cannot be reached, the command says so and tries again. Ctrl-C ends it with exit code 0.
    """
    if interval is not None and not watch:
        raise UsageError("--interval is an option of --watch: add --watch")
    with open_client(url) as client:
        if watch:
            watch_stats(client, interval or _INTERVAL_SECONDS, stats_pairs, json=json)
            return
        found = client.stats()
    if json:
        show_json(asdict(found))
        return
    show_pairs(stats_pairs(found))
    if found.bases:
        show_table(*_bases(found.bases))


def stats_pairs(found: ServerStats) -> dict[str, str]:
    """Returns the statistics for people, by their labels; those of columnar bases are left out."""
    values = asdict(found)
    del values["bases"]
    values["disk"] = disk_text(found.disk)
    values["loop_turns"] = " ".join(f"{count:,}" for count in found.loop_turns)
    return {_label(name): _format_value(name, value) for name, value in values.items()}


def _damage(table: DamagedTable | None) -> dict[str, object]:
    if table is None:
        return {}
    return {"state": "partly damaged" if table.partial else "damaged", "damage": table.reason}


def _bases(tables: Sequence[TableBases]) -> tuple[list[str], list[list[object]]]:
    return ["columnar bases of", "buckets", *BASE_HEADERS], [
        [each.table, f"{each.bases} of {each.buckets}", *base_cells(each), "; ".join(each.unused_reasons)]
        for each in tables
    ]


def _column(table: sync.Table, field: pa.Field) -> dict[str, object]:
    column: dict[str, object] = {"name": field.name, "type": format_type(field.type), "nullable": field.nullable}
    defaults = default_texts(table)
    if field.name in defaults:
        is_plain = pat.is_boolean(field.type) or pat.is_integer(field.type) or pat.is_floating(field.type)
        column["default"] = defaults_of(table)[field.name].as_py() if is_plain else defaults[field.name]
    if field.name in table.column_comments:
        column["comment"] = table.column_comments[field.name]
    return column


def _summary(table: sync.Table) -> dict[str, object]:
    return {
        "name": table.name,
        "primary_key": list(table.primary_key),
        "bucket_key": list(table.bucket_key),
        "partition_by": list(table.partition_by),
        "buckets": table.buckets,
        "tablets": table.tablets,
        "columns": [_column(table, field) for field in table.schema],
        "options": dict(table.options),
        "indexes": [list(columns) for columns in table.indexes],
        "version_column": table.version_column,
        "sequence_column": list(table.sequence_column),
        "sequence_groups": [
            {"sequence": list(by), "columns": list(columns)} for by, columns in table.sequence_groups.items()
        ],
        "aggregators": {
            column: {"function": each.function, **dict(each.parameters)} for column, each in table.aggregators.items()
        },
    }


def _label(name: str) -> str:
    """Returns the name of a statistic without its unit, which is shown with the value."""
    return _LABELS.get(name) or re.sub("_bytes$", "", name).replace("_", " ")


def _format_value(name: str, value: object) -> str:
    """Formats a statistic for people: a size, a duration, which is the only kind of float, or a number."""
    if isinstance(value, int | float):
        if "bytes" in name.split("_"):
            return size(int(value))
        if isinstance(value, float):
            return duration(value) if abs(value) >= 1 else f"{value * 1000:.1f} ms"
        return f"{value:,}"
    return ", ".join(value) or "none" if isinstance(value, list | tuple) else str(value)
