"""`backup`: creates, lists, verifies, restores and removes backups."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aio_client import BackupStatus
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, Url
from scankv.cli.outcome import FAILED, complain, require_extra
from scankv.cli.show import show_json, show_table, stderr_console
from scankv.formats.amounts import size
from scankv.model.counts import counted
from scankv.model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from streaming_server.engine.backups.restore import RestoredTable
    from streaming_server.engine.backups.restore_plan import RestorePlan
    from streaming_server.storage.backup.backup_manifest import BackupManifest
    from streaming_server.storage.backup.backup_store import BackupStore

app: typer.Typer = typer.Typer(
    help="Backups of all tables of a server, in a directory or an object store.", no_args_is_help=True
)

Location = Annotated[
    str,
    typer.Argument(
        metavar="LOCATION",
        help="The server's backup location: a directory, or a URI such as s3://bucket/backups.",
        show_default=False,
    ),
]


@app.command()
def create(json: Json = False, url: Url = None) -> None:
    """Have the server create a backup at its --backup-location.

    The exit code is 1 if damaged tables had to be left out.
    """
    with open_client(url) as client, _bar("backup") as show:

        def on_progress(status: BackupStatus) -> None:
            show(status.done_bytes, status.total_bytes)

        status = client.create_backup(on_progress=on_progress)
    if json:
        show_json(
            {
                "backup_id": status.backup_id,
                "tables": status.tables,
                "bytes": status.total_bytes,
                "new_bytes": status.new_bytes,
                "left_out": dict(status.left_out),
            }
        )
    else:
        typer.echo(
            f"{status.backup_id}: {counted(status.tables, 'table')}, {size(status.total_bytes)}, of which "
            f"{size(status.new_bytes)} were copied"
        )
    for name, why in status.left_out.items():
        complain(f"the backup lacks {name}: {why}")
    if status.left_out:
        raise typer.Exit(FAILED)


@app.command("list")
def list_(location: Location, json: Json = False) -> None:
    """List the backups at a location, the oldest first."""
    with require_extra("server"):
        from streaming_server.engine.backups.restore_plan import archive_reach, instant_text
        from streaming_server.storage.backup.backup_manifest import read_manifest
    store = _open(location)
    newest: BackupManifest | None = None
    reach: int | None = None
    shown: list[dict[str, Any]] = []
    problems: list[str] = []
    for backup_id in store.manifests():
        try:
            found = read_manifest(store, backup_id)
        except ScanKvError as error:
            problems.append(error.message)
            continue
        newest, rows = found, [table.rows for table in found.tables]
        shown.append(
            {
                "backup_id": found.backup_id,
                "taken_at": _instant_of(found.micros).isoformat(),
                "tables": len(found.tables),
                "rows": None if None in rows else sum(filter(None, rows)),
                "bytes": found.bytes,
                "new_bytes": found.new_bytes,
                "left_out": dict(found.left_out),
            }
        )
    try:
        reach = None if newest is None else archive_reach(store, newest)
    except ScanKvError as error:
        problems.append(error.message)
    if json:
        show_json(shown)
    else:
        show_table(
            ["backup", "tables", "rows", "size", "copied", "left out"],
            [
                [
                    each["backup_id"],
                    each["tables"],
                    "not counted" if each["rows"] is None else each["rows"],
                    size(each["bytes"]),
                    size(each["new_bytes"]),
                    ", ".join(each["left_out"]),
                ]
                for each in shown
            ],
        )
        if reach is not None:
            typer.echo(f"The archive reaches up to {instant_text(reach)}: restore with --as-of.")
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(FAILED)


@app.command()
def verify(
    location: Location,
    backup_id: Annotated[
        str | None,
        typer.Argument(metavar="[BACKUP]", help="Verify only this backup; `latest` is the newest.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare only sizes, and read nothing.")] = False,
    json: Json = False,
) -> None:
    """Read all files of backups and of the archive, and compare them with their checksums.

    The exit code is 1 if one is damaged.
    """
    with require_extra("server"):
        from streaming_server.storage.backup.backup_manifest import find_backup
        from streaming_server.storage.backup.verify import verify as verify_backups
        from streaming_server.storage.backup.verify import verify_archive
    store = _open(location)
    # The newest backup is looked up even if all are verified, because it is an error if there is none.
    newest_or_named = find_backup(store, backup_id or "latest")
    chosen = [newest_or_named] if backup_id is not None else store.manifests()
    total = sum(store.objects().values())
    with _byte_bar("verify", total) as on_bytes:
        found = verify_backups(store, chosen, quick=quick, on_bytes=on_bytes)
        if backup_id is None and store.segments():
            found["archive"] = verify_archive(store, quick=quick)
    if json:
        show_json(found)
    else:
        for each, problems in found.items():
            typer.echo(f"{each}: {counted(len(problems), 'problem') if problems else 'complete'}")
    for each, problems in found.items():
        for problem in problems:
            complain(f"{each}: {problem}")
    if any(found.values()):
        raise typer.Exit(FAILED)


@app.command()
def restore(
    location: Location,
    data: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The data directory to restore to, which no server uses.", show_default=False),
    ],
    backup_id: Annotated[
        str | None,
        typer.Argument(metavar="[BACKUP]", help="The backup. Default: `latest`, the newest one.", show_default=False),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE[=NEW]",
            help="Restore only this table, under another name if one is given. Repeatable. Default: all tables.",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Restore tables as of this instant, such as 2026-11-24T14:02:00Z, exact to the commit; `latest` is "
            "the last one that the archive reaches.",
            show_default=False,
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --table: give the tables this many buckets. They begin without changes and consumers.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Restore a backup to a data directory, from which a server then serves it.

    Without --table, the directory must be new or empty; it gets all tables, and what the server remembered of committed
    transactions. With --table, tables are added to a directory, which may have others. The exit code is 1 if a table
    could not be restored, or only as of another instant than --as-of.
    """
    with require_extra("server"):
        from streaming_server.engine.backups.restore import restore_all, restore_tables
    names = _names_of(table or [])
    if buckets is not None and not names:
        raise UsageError("--buckets needs --table: name the tables")
    store = _open(location)
    plan = _plan_of(store, backup_id, as_of)
    total = sum(each.table.bytes for name, each in plan.sources.items() if not names or name in names)
    with _private_files(), _byte_bar("restore", total) as on_bytes:
        if names:
            result = restore_tables(store, plan, data, names, on_bytes, buckets=buckets)
        else:
            result = restore_all(store, plan, data, on_bytes)
    left_out = {} if names else {**plan.left_out, **result.left_out}
    if json:
        tables = [_summary(each) for each in result.tables]
        show_json({"backup_id": plan.manifest.backup_id, "tables": tables, "left_out": left_out})
    else:
        _show_restored(result.tables, data)
    if _complain_of_restore(result.tables, left_out):
        raise typer.Exit(FAILED)


def _plan_of(store: BackupStore, backup_id: str | None, as_of: str | None) -> RestorePlan:
    """Returns how to restore a backup, or the tables as of an instant."""
    with require_extra("server"):
        from streaming_server.engine.backups.restore_plan import plan_backup, plan_instant
        from streaming_server.storage.backup.backup_manifest import read_backup
    if as_of is None:
        return plan_backup(read_backup(store, backup_id or "latest"))
    if backup_id is not None:
        raise UsageError("--as-of chooses the backups itself: leave out the backup")
    return plan_instant(store, None if as_of == "latest" else _micros_of(as_of))


def _complain_of_restore(tables: list[RestoredTable], left_out: Mapping[str, str]) -> bool:
    """Says which tables were not restored, or not as of the instant. Returns whether there are any."""
    with require_extra("server"):
        from streaming_server.engine.backups.restore_plan import instant_text
    earlier = [each for each in tables if each.why]
    for each in earlier:
        complain(f"{each.name} is only restored as of {instant_text(each.micros)}, when it was backed up: {each.why}")
    for name, why in left_out.items():
        complain(f"{name} is not restored: {why}")
    return bool(earlier or left_out)


def _show_restored(tables: list[RestoredTable], data: Path) -> None:
    with require_extra("server"):
        from streaming_server.engine.backups.restore_plan import instant_text
    for each in tables:
        rows = "" if each.rows is None else f", {counted(each.rows, 'row')}"
        renamed = "" if each.restored_as == each.name else f" as {each.restored_as}"
        typer.echo(f"{each.name}{renamed}{rows}, {size(each.bytes)}, as of {instant_text(each.micros)}")
        for consumer, what in each.consumers.items():
            typer.echo(f'{each.name}: the consumer "{consumer}" {what}')
    typer.echo(f"restored {counted(len(tables), 'table')}; to serve: scankv serve --data {data}")


def _summary(table: RestoredTable) -> dict[str, object]:
    values = asdict(table)
    micros = values.pop("micros")
    return values | {"taken_at": _instant_of(micros).isoformat()}


def _instant_of(micros: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


def _micros_of(text: str) -> int:
    """Parses an instant. Raises UsageError."""
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f'"{text}" is no instant: give one such as 2026-11-24T14:02:00Z') from error
    if instant.tzinfo is None:
        raise UsageError(f'"{text}" has no time zone: add one, such as Z for UTC or +01:00')
    return (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


@app.command()
def prune(
    location: Location,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many backups to keep.", show_default=False)],
    json: Json = False,
) -> None:
    """Remove all but the newest backups, and the files that no backup needs."""
    with require_extra("server"):
        from streaming_server.storage.backup.prune import prune as prune_backups
    pruned = prune_backups(_open(location), keep=keep)
    if json:
        show_json({"backups": pruned.backups, "files": pruned.objects, "bytes": pruned.bytes})
        return
    typer.echo(
        f"removed {counted(len(pruned.backups), 'backup')}, {counted(pruned.objects, 'file')} with {size(pruned.bytes)}"
    )


def _open(location: str) -> BackupStore:
    with require_extra("server"):
        from streaming_server.storage.backup.backup_store import BackupStore
    store = BackupStore(location)
    if store.local is not None and not store.local.is_dir():
        raise UsageError(f"{location} is not a directory: give the --backup-location of the server")
    return store


def _names_of(tables: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in tables:
        name, _, new = text.partition("=")
        if name in names:
            raise UsageError(f'"{name}" is named twice: name each table once')
        names[name] = new or name
    return names


@contextmanager
def _private_files() -> Iterator[None]:
    """Makes files that only this user can read, as the server does."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on standard error if it is a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # on use, like that of `check`

    with Progress(TextColumn(what), BarColumn(), DownloadColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)


@contextmanager
def _byte_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar; yields what to call with the number of each part's bytes."""
    done = 0
    with _bar(what) as show:

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            show(done, total)

        yield on_bytes
