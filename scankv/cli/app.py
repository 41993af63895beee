"""The commands of `scankv`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any, Final

import typer

import scankv
from scankv.cli.connecting import PROFILE
from scankv.cli.help_text import in_plain_text, write_options, write_sections, write_start
from scankv.cli.outcome import TERMINATED, Commands
from scankv.cli.without_pandas import keep_pandas_out


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"scankv {scankv.__version__}")
        raise typer.Exit


_SECTIONS: Final = {
    "Data": {
        "load": ("load.load", "Write the rows of a file to a table"),
        "scan": ("scan.scan", "Read a table as of one instant"),
        "sql": ("sql.sql", "Run a query in SQL over live tables and files"),
        "get": ("rows.get", "Show rows by their keys"),
        "put": ("rows.put", "Insert a row, or change columns of one"),
        "delete": ("rows.delete", "Delete rows by their keys, or by a predicate"),
        "truncate": ("rows.truncate", "Delete all rows"),
        "replace": ("replace.replace", "Replace all rows by those of a file, at one instant"),
        "count": ("rows.count", "Count rows"),
        "top": ("top.top", "Show the first rows in the order of a column"),
    },
    "Tables": {
        "create": ("tables.create", "Create a table"),
        "tables": ("inspect.tables", "List the tables"),
        "describe": ("inspect.describe", "Show columns, key, indexes and buckets"),
        "alter": ("tables.alter", "Change options and columns"),
        "drop": ("tables.drop", "Drop a table with all its rows"),
        "indexes": ("indexes.app", "Add and drop indexes"),
        "partitions": ("partitions.app", "List and drop partitions"),
        "snapshots": ("snapshots.app", "Pin a table as of one instant, and export it"),
        "publish": ("publish.publish", "Publish a table as Delta Lake or Iceberg"),
    },
    "Streams": {
        "tail": ("tail.tail", "Show changes as they happen"),
        "consumers": ("consumers.app", "Named readers of changes, and their positions"),
    },
    "Server": {
        "serve": ("serve.serve", "Run a server"),
        "wait": ("serve.wait", "Wait until the server is ready"),
        "http": ("http.http", "Run the HTTP gateway and the console"),
        "tokens": ("tokens.app", "Create and revoke tokens"),
        "doctor": ("doctor.doctor", "Inspect this host, and say what to change"),
        "upgrade": ("upgrade.upgrade", "Show or confirm the format of a data directory"),
        "demo": ("demo.demo", "See real data load, stream and change"),
    },
    "Operations": {
        "stats": ("inspect.stats", "Show statistics of the server"),
        "ps": ("scans.ps", "List live scans"),
        "cancel": ("scans.cancel", "End live scans"),
        "slow": ("slow.slow", "List the latest slow calls"),
        "check": ("check.check", "Check that rows, counts and indexes are consistent"),
        "bench": ("bench.bench", "Measure how fast the server answers"),
        "backups": ("backups.app", "Create and restore backups"),
        "transactions": ("transactions.app", "List open and stuck transactions"),
        "locks": ("locks.app", "List and release column locks"),
        "owners": ("owners.app", "Give what a principal owns to another one"),
        "monitoring": ("monitoring.app", "Export a dashboard and alert rules"),
    },
}
"""The commands in the order of `--help`: where each is, as `module.function` or `module.group`, and what it does.

The list of commands has its own texts, so that it fits on a screen, and appears without importing all commands.
"""

_LOCATIONS: Final = {name: where for section in _SECTIONS.values() for name, (where, _) in section.items()}


class _LazyCommands(Mapping[str, Any]):
    """The commands by name, each imported on use, so that no command waits for the imports of another."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # typer has moved the class of its commands
        module, attribute = _LOCATIONS[name].split(".")
        found = getattr(import_module(f"scankv.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(in_plain_text(found))
            group.name = name
            return _unwrap_help(group)
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        return _unwrap_help(typer.main.get_command(in_plain_text(alone)))

    def __iter__(self) -> Iterator[str]:
        return iter(_LOCATIONS)

    def __len__(self) -> int:
        return len(_LOCATIONS)


def _unwrap_help(command: Any) -> Any:  # noqa: ANN401
    """Removes the line breaks within paragraphs of the help, which Typer would keep in all but the first."""
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in cleandoc(command.help).split("\n\n"))
    for subcommand in getattr(command, "commands", {}).values():
        _unwrap_help(subcommand)
    return command


class _AllCommands(Commands):
    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # whatever typer gives
        super().__init__(**attributes)
        self.commands = _LazyCommands()  # type: ignore[assignment]  # typer adds no more to it

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        return list(self.commands)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        write_start(formatter)
        self.format_commands(ctx, formatter)
        write_options(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        texts = {
            section: [(name, text) for name, (_, text) in commands.items()] for section, commands in _SECTIONS.items()
        }
        write_sections(formatter, texts)


app: typer.Typer = typer.Typer(
    name="scankv",
    cls=_AllCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="scankv COMMAND --help shows the options of a command.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Connect with this profile of ~/.config/scankv/config.toml. Default: $SCANKV_PROFILE.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a server of live primary-key tables, and fill, scan and maintain its tables."""
    PROFILE.set(profile)


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    keep_pandas_out()
    # The messages of commands say what gRPC's own lines on standard error would say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # SIGTERM unwinds like Ctrl-C, so that no partial file and no embedded server remain.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    app(prog_name="scankv")
