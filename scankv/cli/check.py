"""`check`: checks that stored tables are consistent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aio_client import BucketCheck, TableNotFound, sync
from scankv.cli.backups import verify
from scankv.cli.connecting import open_client
from scankv.cli.options import Json, Url
from scankv.cli.outcome import FAILED, complain, require_extra, run_async
from scankv.cli.show import show_json, show_table, stderr_console
from scankv.model.counts import counted
from scankv.model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from streaming_server.engine.backups.offline_check import CheckedPart


def check(
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="Check only this table. Default: all tables.", show_default=False),
    ] = None,
    offline: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Check a complete data directory that no server uses, or a location of backups.",
            show_default=False,
        ),
    ] = None,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="With --offline DIR: restore what can be restored of the damaged parts. What is replaced is kept.",
        ),
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Read complete tables at the server, and check that rows, row counts and indexes are consistent.

    Tables stay readable and writable. The exit code is 1 if something is wrong, or a table is so damaged that it
    cannot be read.

    With --offline, also changelogs, columnar bases, snapshots, consumers and transactions are checked, and each problem
    is shown with what to do about it. Nothing in the directory is changed, unless --recover is given: then each damaged
    part is restored as far as possible, and what is lost is shown. Prefer a backup if you have one.
    """
    if recover and offline is None:
        raise UsageError("--recover needs --offline DIR: it works on a data directory that no server uses")
    if offline is not None:
        if table is not None:
            raise UsageError("--offline checks all tables of the directory: leave out the table")
        _check_offline(offline, recover=recover, json=json)
        return
    checked: dict[str, list[BucketCheck]] = {}
    with open_client(url) as client:
        damaged = [] if table is not None else [each for each in client.damaged_tables() if not each.partial]
        for found in client.tables() if table is None else [client.table(table)]:
            try:
                with _progress(found) as show:
                    checked[found.name] = client.check_table(found.name, on_bucket=show)
            except TableNotFound:
                # Dropped since the tables were listed.
                if table is not None:
                    raise
                continue
            if not json:
                _show(found.name, checked[found.name])
    wrong = [line for name, buckets in checked.items() for line in _problems(name, buckets)]
    wrong += [f"{each.name}: {each.reason}" for each in damaged]
    if json:
        show_json([_summary(name, buckets) for name, buckets in checked.items()])
    else:
        typer.echo(_conclusion(checked, len(wrong)))
    for line in wrong:
        complain(line)
    if wrong:
        raise typer.Exit(FAILED)


def _check_offline(directory: Path, *, recover: bool, json: bool) -> None:
    with require_extra("server"):
        from streaming_server.engine.backups.offline_check import OfflineCheck
    if (directory / "manifests").is_dir():
        if recover:
            raise UsageError(f"{directory} is a location of backups: restore one of them with `scankv backups restore`")
        verify(str(directory), json=json)
        return
    check = OfflineCheck(directory)

    async def run() -> list[CheckedPart]:
        found = []
        console = stderr_console()
        with console.status("") if console.is_terminal else nullcontext() as status:
            async for part in check.run():
                found.append(part)
                if status is not None:
                    status.update(f"checked {part.table} {part.part}")
        return found

    recovered: dict[str, str] = {}
    try:
        found = run_async(run())
        if recover:
            recovered = dict(_recover(part) for part in found if part.problem)
    finally:
        check.close()
    problems = [part for part in found if part.problem]
    if json:
        show_json([_offline_summary(part, recovered) for part in found])
    else:
        show_table(
            ["table", "part", "count", "result"],
            [[part.table, part.part, part.count, part.problem or "consistent"] for part in found],
        )
        typer.echo(
            f"{counted(len(found), 'part')} of {directory}: "
            f"{counted(len(problems), 'problem') if problems else 'all consistent'}"
        )
    for part in problems:
        outcome = f"Recovered: {recovered[_name(part)]}" if recovered.get(_name(part)) else f"To do: {part.advice}"
        complain(f"{_name(part)}: {part.problem}. {outcome}")
    if not all(recovered.get(_name(part)) for part in problems):
        raise typer.Exit(FAILED)


def _recover(part: CheckedPart) -> tuple[str, str]:
    """Recovers a part. Returns its name and what was done; empty: nothing."""
    try:
        return _name(part), "" if part.recover is None else part.recover()
    except (ScanKvError, OSError) as error:
        complain(f"{_name(part)} cannot be recovered: {error}")
        return _name(part), ""


def _name(part: CheckedPart) -> str:
    return f"{part.table} {part.part}".strip()


def _offline_summary(part: CheckedPart, recovered: dict[str, str]) -> dict[str, object]:
    return {
        "table": part.table,
        "part": part.part,
        "count": part.count,
        "problem": part.problem,
        "advice": part.advice,
        "recovered": recovered.get(_name(part), ""),
    }


@contextmanager
def _progress(table: sync.Table) -> Iterator[Callable[[BucketCheck], None] | None]:
    """Shows a progress bar on standard error if it is a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn  # on use: every command would wait for it

    columns = BarColumn(), TextColumn("{task.completed} of {task.fields[buckets]}  {task.fields[rows]}")
    with Progress(TextColumn(table.name), *columns, console=console, transient=True) as progress:
        buckets, rows = counted(table.buckets, "bucket"), 0
        task = progress.add_task("", total=table.buckets, buckets=buckets, rows=counted(0, "row"))

        def show(bucket: BucketCheck) -> None:
            nonlocal rows
            rows += bucket.rows
            progress.update(task, advance=1, rows=counted(rows, "row"))

        yield show


def _show(name: str, buckets: list[BucketCheck]) -> None:
    lines: list[list[object]] = []
    for bucket in buckets:
        lines.append([name, bucket.bucket, "rows", bucket.rows, bucket.problem or "consistent"])
        for index in bucket.indexes:
            state = index.problem or ("consistent" if index.ready else "not ready, not compared")
            lines.append([name, bucket.bucket, f"index {', '.join(index.columns)}", index.entries, state])
    show_table(["table", "bucket", "part", "count", "result"], lines)


def _problems(name: str, buckets: list[BucketCheck]) -> Iterator[str]:
    for bucket in buckets:
        if bucket.problem is not None:
            yield f"{name}, bucket {bucket.bucket}: {bucket.problem}"
        for index in bucket.indexes:
            if index.problem is not None:
                yield f"{name}, bucket {bucket.bucket}, index ({', '.join(index.columns)}): {index.problem}"


def _conclusion(checked: dict[str, list[BucketCheck]], wrong: int) -> str:
    buckets = [bucket for found in checked.values() for bucket in found]
    what = [
        counted(len(checked), "table"),
        counted(len(buckets), "bucket"),
        counted(sum(bucket.rows for bucket in buckets), "row"),
        counted(sum(index.entries for bucket in buckets for index in bucket.indexes), "index entry", "index entries"),
    ]
    return f"{', '.join(what)}: {counted(wrong, 'problem') if wrong else 'all consistent'}"


def _summary(name: str, buckets: list[BucketCheck]) -> dict[str, object]:
    return {
        "table": name,
        "is_consistent": all(bucket.is_consistent for bucket in buckets),
        "buckets": [asdict(bucket) for bucket in buckets],
    }
