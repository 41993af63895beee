"""`snapshots export`: writes a table as of one instant to Parquet or Arrow files."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
import typer

from aio_client import sync
from scankv.cli.connecting import open_client
from scankv.cli.named_snapshots import find_snapshot
from scankv.cli.options import Columns, Url, Where, split_names
from scankv.formats.amounts import size
from scankv.formats.files import Format, format_of_name
from scankv.formats.origin import Origin
from scankv.formats.parquet_types import parquet_schema
from scankv.formats.table_files import table_file_values
from scankv.formats.writers import atomic_directory, atomic_file, row_writer
from scankv.model.counts import counted
from scankv.model.errors import SnapshotLost, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_PART: Final = re.compile(r"part-\d{4}-of-\d{4}\.(parquet|arrow)")


class ExportFormat(StrEnum):
    """File formats of an export."""

    PARQUET = "parquet"
    ARROW = "arrow"


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TABLE_OR_SNAPSHOT",
            help="A table, which is pinned during the export, or the id of a snapshot, or TABLE@NAME.",
            show_default=False,
        ),
    ],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The target, which appears when it is complete.", show_default=False)
    ],
    format_: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="The file format. Default: by the name of the file, else parquet."),
    ] = None,
    columns: Columns = None,
    where: Where = None,
    files: Annotated[
        int | None,
        typer.Option(min=1, max=1024, metavar="N", help="Create a directory with this number of files of equal size."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier export.")] = False,
    url: Url = None,
) -> None:
    """Write a table as of one instant to a Parquet or Arrow file, with log offsets and its definition in the metadata.

    `scankv load --create` restores the table from it.
    """
    _check_target(path, overwrite, is_directory=files is not None)
    chosen = _format_for(path, format_)
    with open_client(url) as client:
        table, pinned = _find_source(client, source)
        # The export has its own lease, renewed until it ends, even if the user gave a snapshot.
        with table.snapshot(same_view_as=pinned) as snapshot:
            scan = table.scan(columns=split_names(columns) or None, where=where).as_of(snapshot)
            schema = _columns_of(snapshot.schema, split_names(columns))
            if chosen is Format.PARQUET:
                parquet_schema(schema)
            origin = _origin(table, snapshot, where)
            parts = [scan] if files is None else scan.splits(files)
            rows, total = _write(parts, path, chosen, origin, is_directory=files is not None)
            time = f"{snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC"
    typer.echo(f"exported {counted(rows, 'row')} of {table.name} as of {time} to {path} ({size(total)})")


def _check_target(path: Path, overwrite: bool, *, is_directory: bool) -> None:
    """Raises UsageError if the target exists already, before anything is read."""
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory")
    if not path.exists():
        return
    if path.is_dir() is not is_directory:
        found = "a file: leave out --files" if is_directory else "a directory: add --files"
        raise UsageError(f"{path} is {found}, or choose another name")
    if not overwrite:
        raise UsageError(f"{path} already exists: choose another name, or add --overwrite")
    others = [each.name for each in path.iterdir() if not _PART.fullmatch(each.name)] if is_directory else []
    if others:
        raise UsageError(f"{path} has files that are not part of an export, such as {others[0]}: choose another name")


def _format_for(path: Path, format_: ExportFormat | None) -> Format:
    if format_ is not None:
        return Format(format_)
    named = format_of_name(path.name)
    if named in (Format.CSV, Format.JSONL):
        raise UsageError(
            f"an export must be parquet or arrow, not {named}; use: scankv scan --as-of SNAPSHOT -o {path}"
        )
    return named or Format.PARQUET


def _find_source(client: sync.Client, source: str) -> tuple[sync.Table, str | None]:
    """Returns the table to export, and the id of the snapshot if the source is one."""
    if "@" in source:
        named = find_snapshot(source, client.snapshots())
        return client.table(named.table), named.id
    if "." in source:
        return client.table(source), None
    for snapshot in client.snapshots():
        if snapshot.id == source:
            return client.table(snapshot.table), source
    raise SnapshotLost(
        f"{source} is neither a table, as database.table, nor the id of a snapshot, nor TABLE@NAME; see: scankv "
        "snapshots list"
    )


def _columns_of(schema: pa.Schema, names: list[str]) -> pa.Schema:
    # The server refuses names that do not exist, with a better message.
    known = set(schema.names)
    return pa.schema([schema.field(name) for name in names if name in known]) if names else schema


def _origin(table: sync.Table, snapshot: sync.Snapshot, where: str | None) -> Origin:
    return Origin(
        table=table.name,
        schema_id=snapshot.schema_id,
        definition=table_file_values(table, snapshot.schema),
        table_incarnation=snapshot.log_offsets.table_incarnation,
        log_offsets={str(bucket): offset for bucket, offset in sorted(snapshot.log_offsets.items())},
        view_time=snapshot.taken_at.isoformat(),
        where=where,
    )


def _write(
    parts: list[sync.Scan], path: Path, format_: Format, origin: Origin, *, is_directory: bool
) -> tuple[int, int]:
    """Writes each part to a file; returns the number of rows and the total size of the files in bytes."""
    try:
        if not is_directory:
            rows = _write_file(parts[0], path, format_, origin)
            return rows, path.stat().st_size
        with atomic_directory(path) as directory:
            rows = 0
            for number, part in enumerate(parts):
                name = f"part-{number:04}-of-{len(parts):04}.{format_}"
                rows += _write_file(part, directory / name, format_, origin)
        return rows, _bytes_of(path.iterdir())
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path} cannot be written: {reason}") from error


def _write_file(scan: sync.Scan, path: Path, format_: Format, origin: Origin) -> int:
    rows = 0
    with scan.stream() as stream, atomic_file(path) as out:
        schema = stream.schema.with_metadata(origin.metadata())
        with row_writer(format_, out, schema, seekable=True) as writer:
            for batch in stream:
                writer.write(batch)
                rows += batch.num_rows
    return rows


def _bytes_of(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)
