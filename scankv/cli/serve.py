"""`serve` and `wait`: run a server, and wait for one."""

import os
from pathlib import Path
from typing import Annotated

import typer

from scankv.cli.connecting import open_client
from scankv.cli.options import Settings, Url, settings_of
from scankv.cli.outcome import require_extra


def serve(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The data directory; may be empty, and is created if it does not exist."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 picks a free one. Default: 7070.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="The number of processes that share the tables; best one for each core. Default: 1."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file with settings.")] = None,
    set_: Settings = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow to listen beyond this machine without TLS or tokens.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(help="The port that serves metrics and health over HTTP. Default: none.")
    ] = None,
    metrics_host: Annotated[str | None, typer.Option(help="The address of this port. Default: 127.0.0.1.")] = None,
    http_port: Annotated[
        int | None, typer.Option(help="The port of the HTTP gateway: queries, downloads, console. Default: none.")
    ] = None,
    http_host: Annotated[str | None, typer.Option(help="The address of this port. Default: 127.0.0.1.")] = None,
    http_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", help="Let pages of another web site, such as https://example.com, read answers."
        ),
    ] = None,
    http_access_log: Annotated[
        bool, typer.Option("--http-access-log", help="Log each request over HTTP, without its query.")
    ] = False,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Log as text or json. Default: text.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file with tokens; see `scankv tokens`. Clients need one.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate of the server and its chain, in PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of the certificate.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authorities that must sign the certificates of clients.")
    ] = None,
    audit_log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append a line of JSON for each change and each refused call.")
    ] = None,
    backup_location: Annotated[
        str | None,
        typer.Option(metavar="LOCATION", help="Where `scankv backups create` stores backups: a directory, or s3://..."),
    ] = None,
    backup_every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Create a backup by itself so often. Default: only on request."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Log debug, info, warning or error messages. Default: info.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as TOML with comments, and do not serve.")
    ] = False,
) -> None:
    """Run a server until SIGTERM or Ctrl-C.

    When the server is ready, it prints one line, `scankv ready on HOST:PORT`. Its log goes to standard error. SIGTERM
    and Ctrl-C let running calls end first. Options take precedence over $SCANKV_<SETTING>, and $SCANKV_<SETTING> over
    the file.

    Only the user who runs the server can read what it writes. A directory with files of another program is refused.

    Exit codes: 0 after a drain, 3 if another server uses the directory, 4 if the port is taken, 5 if the directory is
    neither empty nor a data directory of ScanKV.
    """
    with require_extra("server"):
        from streaming_server.config import as_toml, load_config
        from streaming_server.server import run
        from streaming_server.storage.files.memory_limit import memory_limit
        from streaming_server.supervisor import run_workers
    flags = {
        "data": data,
        "host": host,
        "port": port,
        "workers": workers,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "http_port": http_port,
        "http_host": http_host,
        "http_origins": http_origin or None,
        "http_access_log": http_access_log or None,
        "log_format": log_format,
        "tokens": tokens,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "audit_log": audit_log,
        "backup_location": backup_location,
        "backup_every_seconds": backup_every,
        "log_level": log_level,
    }
    given = settings_of(set_) | {name: value for name, value in flags.items() if value is not None}
    settings = load_config(given, config, os.environ, memory_bytes=memory_limit())
    if print_config:
        typer.echo(as_toml(settings), nl=False)
        return
    raise typer.Exit(run(settings) if settings.workers == 1 else run_workers(settings))


def wait(
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait at most.")] = 60.0,
    url: Url = None,
) -> None:
    """Wait until the server is ready. The exit code is 1 if it is not ready in time."""
    with open_client(url, waits=True) as client:
        client.wait_ready(timeout)
