"""`load --bootstrap`: makes a new table from a table or from files in an open format, and shows how far it is."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from aio_client import BootstrapProgress
from aio_client._client.bootstrap import can_resume
from scankv.cli.show import rate, stderr_console
from scankv.formats.printable import printable
from scankv.model.counts import counted
from scankv.model.errors import BootstrapDiffers, BootstrapLost, ScanKvError
from scankv.model.types.types import format_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aio_client._client.bootstrap import Duplicates
    from aio_client._write.merging import WriteMode
    from aio_client.sync import Client


def bootstrap_table(
    client: Client,
    name: str,
    source: str,
    *,
    key: Sequence[str],
    buckets: int | None,
    tablets: int | None,
    settings: Mapping[str, Any],
    mode: WriteMode,
    duplicates: Duplicates,
    from_scratch: bool,
) -> None:
    """Bootstraps a table, and prints what was made. Raises the errors of `Client.bootstrap`."""
    began = time.monotonic()
    with _shown_progress() as show, _report_how_to_continue(show, source):
        table = client.bootstrap(
            name,
            source,
            primary_key=key,
            buckets=buckets,
            tablets=1 if tablets is None else tablets,
            mode=mode,
            duplicates=duplicates,
            from_scratch=from_scratch,
            on_progress=show,
            **settings,
        )
    rows, resumed, seconds = show.last.rows, show.last.resumed_rows, time.monotonic() - began
    typer.echo(f"created {name}: {printable(format_schema(table.schema))}")
    merged = "" if rows == show.last.rows_in_table else f", merged to {show.last.rows_in_table:,}"
    before = f", {resumed:,} of them before," if resumed else ""
    speed = rate(rows - resumed, seconds)
    typer.echo(f"loaded {counted(rows, 'row')}{before} into {name}{merged} in {seconds:.2f} s{speed}")


@contextmanager
def _report_how_to_continue(show: _Progress, source: str) -> Iterator[None]:
    """Says how to continue if a bootstrap ends early and can be resumed."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, ScanKvError) as error:
        if show.last.rows and can_resume(error) and not isinstance(error, BootstrapDiffers | BootstrapLost):
            ended = "stopped" if isinstance(error, ScanKvError) else "interrupted"
            typer.echo(
                f"{ended}: the server keeps {counted(show.last.rows, 'row')} of {printable(source)} for a day: the "
                "same command continues after them, and with --from-scratch it discards them",
                err=True,
            )
        raise


class _Progress:
    """Receives the progress, and shows it with a function."""

    def __init__(self, show: Callable[[BootstrapProgress], None]) -> None:
        self.last = BootstrapProgress()
        self._show = show

    def __call__(self, progress: BootstrapProgress) -> None:
        self.last = progress
        self._show(progress)


@contextmanager
def _shown_progress() -> Iterator[_Progress]:
    """Shows a progress bar on standard error if it is a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        yield _Progress(lambda progress: None)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn  # on use, as in `load`

    columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}")
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, text="")

        def show(progress: BootstrapProgress) -> None:
            known = progress.fraction is not None
            bar.update(
                task, total=1.0 if known else None, completed=progress.fraction or 0.0, text=progress_text(progress)
            )

        yield _Progress(show)


def progress_text(progress: BootstrapProgress) -> str:
    """Returns how far a bootstrap is, as text: rows, megabytes and how long the rest will take."""
    text = f"{counted(progress.rows, 'row')}, {progress.bytes / 1e6:,.0f} MB sent"
    if progress.resumed_rows:
        text += f", {counted(progress.resumed_rows, 'row')} of them before"
    if progress.merged_rows:
        text += f", {counted(progress.merged_rows, 'row')} merged"
    left = progress.remaining
    return text if left is None else f"{text}, {left:,.0f} s left"
