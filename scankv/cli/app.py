"""Which commands there are."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

import scankv
from scankv.cli import (
    check,
    consumers,
    demo,
    indexes,
    inspect,
    load,
    locks,
    rows,
    scan,
    scans,
    serve,
    snapshots,
    tables,
    tail,
    top,
    transactions,
)
from scankv.cli.outcome import TERMINATED, Commands
from scankv.cli.without_pandas import keep_pandas_out


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"scankv {scankv.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="scankv",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A live primary-key table server, and what fills, scans and looks after its tables."""


for command in (
    serve.serve,
    serve.wait,
    tables.create,
    load.load,
    scan.scan,
    rows.get,
    rows.put,
    rows.delete,
    rows.count,
    top.top,
    tail.tail,
    tables.drop,
    inspect.tables,
    inspect.describe,
    inspect.stats,
    check.check,
    scans.ps,
    scans.cancel,
    demo.demo,
):
    app.command()(command)
app.add_typer(consumers.app, name="consumers")
app.add_typer(indexes.app, name="index")
app.add_typer(locks.app, name="locks")
app.add_typer(transactions.app, name="transactions")
app.add_typer(snapshots.app, name="snapshot")


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    # SIGTERM unwinds like Ctrl-C, so that no half file and no embedded server stay behind.
    keep_pandas_out()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    app(prog_name="scankv")
