"""`monitoring`: the dashboard and the alert rules that come with the package."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from scankv.model.errors import UsageError

_FILES: Final = ("grafana-dashboard.json", "alerts.yml")

app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Export the Grafana dashboard and the alert rules for Prometheus."
)


@app.callback()
def monitoring() -> None:
    """Makes `export` a subcommand although it is the only one."""


@app.command()
def export(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory; created if it does not exist.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write the Grafana dashboard and the alert rules into a directory, and print their paths."""
    targets = {name: directory / name for name in _FILES}
    existing = [str(target) for target in targets.values() if target.exists()]
    if existing and not force:
        raise UsageError(f"{' and '.join(existing)} must not exist: give another directory, or --force to replace it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, target in targets.items():
            target.write_bytes(files("scankv.monitoring").joinpath(name).read_bytes())
            typer.echo(target)
    except OSError as error:
        raise UsageError(f"the files cannot be written to {directory}: {error.strerror}") from error
