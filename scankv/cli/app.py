"""The commands of `scankv`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any, Final

import typer

import scankv
from scankv.cli.connecting import PROFILE
from scankv.cli.outcome import TERMINATED, Commands
from scankv.cli.without_pandas import keep_pandas_out


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"scankv {scankv.__version__}")
        raise typer.Exit


_LOCATIONS: Final = {
    "serve": "serve.serve",
    "wait": "serve.wait",
    "http": "http.http",
    "upgrade": "upgrade.upgrade",
    "create": "tables.create",
    "load": "load.load",
    "scan": "scan.scan",
    "get": "rows.get",
    "put": "rows.put",
    "delete": "rows.delete",
    "truncate": "rows.truncate",
    "replace": "replace.replace",
    "count": "rows.count",
    "top": "top.top",
    "tail": "tail.tail",
    "alter": "tables.alter",
    "drop": "tables.drop",
    "publish": "publish.publish",
    "tables": "inspect.tables",
    "describe": "inspect.describe",
    "stats": "inspect.stats",
    "check": "check.check",
    "doctor": "doctor.doctor",
    "bench": "bench.bench",
    "ps": "scans.ps",
    "cancel": "scans.cancel",
    "slow": "slow.slow",
    "demo": "demo.demo",
    "consumers": "consumers.app",
    "indexes": "indexes.app",
    "partitions": "partitions.app",
    "locks": "locks.app",
    "owners": "owners.app",
    "transactions": "transactions.app",
    "snapshots": "snapshots.app",
    "backups": "backups.app",
    "tokens": "tokens.app",
    "monitoring": "monitoring.app",
}
"""Where each command is, as `module.function` or `module.group`, in the order of `--help`."""


class _LazyCommands(Mapping[str, Any]):
    """The commands by name, each imported on use, so that no command waits for the imports of another."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # typer has moved the class of its commands
        module, attribute = _LOCATIONS[name].split(".")
        found = getattr(import_module(f"scankv.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(found)
            group.name = name
            return _unwrap_help(group)
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        return _unwrap_help(typer.main.get_command(alone))

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


app: typer.Typer = typer.Typer(
    name="scankv",
    cls=_AllCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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
    """A live primary-key table server, and commands that fill, scan and maintain its tables."""
    PROFILE.set(profile)


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    keep_pandas_out()
    # SIGTERM unwinds like Ctrl-C, so that no partial file and no embedded server remain.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    app(prog_name="scankv")
