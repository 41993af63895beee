"""`doctor`: inspects the host of a server, and says what to change."""

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scankv.cli.options import Json, Settings, settings_of
from scankv.cli.outcome import FAILED, require_extra
from scankv.cli.show import show_json
from scankv.formats.printable import printable
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from scankv.cli.findings import Finding
    from streaming_server.config import ServerConfig


def doctor(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA_DIR]",
            help="The data directory; need not exist. Default: as for serve, without --data.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on. Default: 7070.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The file with settings.")] = None,
    set_: Settings = None,
    metrics_port: Annotated[int | None, typer.Option(help="The port for metrics. Default: none.")] = None,
    json: Json = False,
) -> None:
    """Inspect this host for a server, and say what to change.

    Checks packages, memory, swap, open files, clock, ports, and the data directory with its disk, against the settings
    that `serve` would have. Run it as the user of the server, with the same limits. It writes a file of 32 MiB into the
    directory to measure the disk, and removes it. Nothing else is changed, and a server may run.

    The exit code is 1 if a check fails, or a setting is wrong. What could not be read is reported as unknown.
    """
    with require_extra("server"):
        from scankv.cli.host_checks import examine
        from scankv.cli.host_facts import read_host

    flags = {"data": data, "host": host, "port": port, "metrics_port": metrics_port}
    settings, directory, refusal = _settings(
        settings_of(set_) | {k: v for k, v in flags.items() if v is not None}, config
    )
    ports = [
        ("port", settings.host, settings.port),
        ("metrics_port", settings.metrics_host, settings.metrics_port),
        ("http_port", settings.http_host, settings.http_port),
    ]
    findings = examine(read_host(directory, ports), settings, refusal)
    if json:
        show_json([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(FAILED)


def _settings(given: dict[str, Any], file: Path | None) -> tuple["ServerConfig", Path | None, str | None]:
    """Returns the settings that a server would have, its directory, and why it would not listen on its addresses.

    No directory: nothing names one.
    """
    from streaming_server.config import load_config
    from streaming_server.storage.files.memory_limit import memory_limit

    def load(more: dict[str, Any]) -> "ServerConfig":
        return load_config(given | more, file, os.environ, memory_bytes=memory_limit())

    more: dict[str, Any] = {}
    refusal = None
    while True:
        try:
            settings = load(more)
        except UsageError as error:
            option = error.details.get("option")
            if option == "data":
                more["data"] = Path()
            elif option in ("host", "metrics_host") and "insecure" not in more:
                more["insecure"], refusal = True, error.message
            else:
                raise
        else:
            return settings, None if "data" in more else settings.data, refusal


def _show(findings: list["Finding"]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        color = {"ok": "green", "warn": "yellow", "fail": "red"}.get(finding.verdict, "cyan")
        typer.secho(f"{finding.verdict:<8}", fg=color, nl=False)
        typer.echo(f"{finding.check:<{width}}  {printable(finding.found)}")
        if finding.advice:
            indent = " " * (8 + width + 2)
            typer.echo(f"{indent}why: {finding.reason}")
            typer.echo(f"{indent}change: {printable(finding.advice)}")
    counts = Counter(str(finding.verdict) for finding in findings)
    texts = (f"{counts[verdict]} {verdict}" for verdict in ("ok", "warn", "fail", "unknown"))
    typer.echo(f"{len(findings)} checks: {', '.join(texts)}")
