"""`http`: run a gateway that answers HTTP with calls to a server, here or on another machine."""

import asyncio
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from scankv.cli.connecting import PROFILE
from scankv.cli.options import Url
from scankv.cli.outcome import require_extra
from scankv.model.errors import UsageError


def http(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")] = 7080,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate and its chain, in PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of the certificate.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authorities that must sign the certificates of browsers.")
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", help="Let pages of another web site, such as https://example.com, read answers."
        ),
    ] = None,
    charts_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Sample the server for charts all the time, with the token in this file, such as one with read:*.",
        ),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request, without its query.")] = False,
    session_seconds: Annotated[
        float, typer.Option(min=1, max=365 * 86_400, help="How long a login to the console lasts at most.")
    ] = 43_200.0,
    session_idle_seconds: Annotated[
        float, typer.Option(min=1, max=365 * 86_400, help="How long a login to the console lasts without use.")
    ] = 3600.0,
    sql_memory_bytes: Annotated[
        int, typer.Option(min=2**20, max=2**40, help="How much memory a query in SQL may take; up to four run at once.")
    ] = 2**30,
    sql_seconds: Annotated[
        float, typer.Option(min=0.01, max=86_400, help="How long a query in SQL may take, with its reader.")
    ] = 60.0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow to listen beyond this machine without TLS.")
    ] = False,
    url: Url = None,
) -> None:
    """Answer HTTP with calls to a server: queries, downloads, events and a console, until SIGTERM or Ctrl-C.

    `scankv serve --http-port` runs the same beside the server. Each request needs the token that its call needs, in the
    header Authorization; a token in the profile or the environment of this command is not used. The charts of the
    console are sampled all the time with the token of --charts-token-file, and without one only while a page with
    charts is open, with the token of its reader. When the gateway is ready, it prints one line, `scankv http ready on
    URL`.
    """
    with require_extra("http"):
        from http_gateway.charts.source import FileToken
        from http_gateway.serving import serve
        from http_gateway.settings import GatewaySettings
    from aio_client import ClientConfig
    from aio_client._transport.access import resolve_access
    from aio_client._transport.profiles import ServerAccess

    found, _, tls = resolve_access(ServerAccess(url=url, token=None, tls=None), PROFILE.get())
    settings = GatewaySettings(
        host=host,
        tls_certificate=str(tls_certificate or ""),
        tls_key=str(tls_key or ""),
        tls_client_ca=str(tls_client_ca or ""),
        origins=tuple(origin or ()),
        insecure=insecure,
        charts_token_file="" if charts_token_file is None else str(charts_token_file.absolute()),
        access_log=access_log,
        session_seconds=session_seconds,
        session_idle_seconds=session_idle_seconds,
        sql_memory_bytes=sql_memory_bytes,
        sql_seconds=sql_seconds,
    )
    if settings.charts_token_file:
        FileToken(settings.charts_token_file)  # Raises UsageError if it cannot be used.
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    listener = _listen(host.strip("[]"), port)
    bare = f"[{host.strip('[]')}]" if ":" in host else host
    scheme = "https" if settings.is_encrypted else "http"
    typer.echo(f"scankv http ready on {scheme}://{bare}:{listener.getsockname()[1]}")
    asyncio.run(serve(settings, listener, _wait_for_signal, ClientConfig(url=found, tls=tls)))


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port or --host") from error


async def _wait_for_signal() -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
