"""Runs a gateway: its client, its application, and uvicorn."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvicorn

from aio_client import Client, ClientConfig, Tls
from aio_client._transport.tokens import CallerToken
from http_gateway.app import Application
from http_gateway.bound import Bound
from http_gateway.charts.sampler import Sampler
from http_gateway.connections import Connections, CountingListener
from http_gateway.console.session_files import SessionFiles
from http_gateway.gateway import Gateway
from http_gateway.limits import MAX_DOWNLOADS
from http_gateway.protocol import GuardedProtocol
from http_gateway.sql_queries import SqlRunner
from http_gateway.tls import https_context, name_in_certificate

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

    from http_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)

_DRAIN_SECONDS: Final = 5
_BACKLOG: Final = 256


async def serve(
    settings: GatewaySettings,
    listener: socket.socket,
    until: Callable[[], Awaitable[None]],
    config: ClientConfig | None = None,
) -> None:
    """Serves until `until` returns. Then running answers get some seconds to end.

    Args:
        settings: The settings of the gateway.
        listener: A socket that is bound.
        until: Waits until the gateway shall end.
        config: The settings of the client. None: those that follow from `settings`.

    Raises:
        UsageError: A certificate or the token file of the charts cannot be used.
    """
    tokens = CallerToken()
    async with AsyncExitStack() as stack:
        sessions = stack.enter_context(_open_sessions(settings))
        client = await stack.enter_async_context(Client(config_of(settings, tokens, config)))
        sampler = await stack.enter_async_context(Sampler(client, tokens, settings))
        sql = await stack.enter_async_context(SqlRunner(client, settings))
        gateway = Gateway(
            client=client,
            tokens=tokens,
            settings=settings,
            sessions=sessions,
            sampler=sampler,
            event_streams=Bound("streams of events", settings.max_event_streams),
            downloads=Bound("downloads", MAX_DOWNLOADS),
            sql=sql,
        )
        server = _Server(Application(gateway), settings)
        serving = asyncio.create_task(server.serve([listener]))
        ending = asyncio.create_task(_ask(until))
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            gateway.ending.set()
            server.should_exit = True
            await serving
        finally:
            ending.cancel()
            serving.cancel()
            await asyncio.wait({serving, ending})


def config_of(settings: GatewaySettings, tokens: CallerToken, given: ClientConfig | None) -> ClientConfig:
    """Returns the settings of the client, whose calls send the tokens of callers.

    Args:
        settings: The settings of the gateway.
        tokens: The tokens of callers.
        given: Where the server is, and whom to trust. None: as `settings` say.
    """
    if given is None:
        tls = None
        if settings.server_certificate:
            # The server's own certificate is the only one that is trusted, whatever name and authority it has.
            name = name_in_certificate(settings.server_certificate, settings.server_key)
            tls = Tls(ca=settings.server_certificate, server_name=name)
        given = ClientConfig(url=settings.url, tls=tls)
    return ClientConfig(url=given.url, tls=given.tls, token=tokens, operation_timeout=given.operation_timeout)


class _Server(uvicorn.Server):
    """uvicorn without its handlers of signals, and with TLS that follows its files."""

    def __init__(self, application: Application, settings: GatewaySettings) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=GuardedProtocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # The client of a request is the peer of its connection; a header cannot claim another address.
                proxy_headers=False,
                timeout_keep_alive=max(1, int(settings.request_seconds)),
                timeout_graceful_shutdown=_DRAIN_SECONDS,
                reset_contextvars=True,
            )
        )
        self._settings = settings
        self._connections = Connections(settings)
        self._tls = https_context(settings) if settings.is_encrypted else None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens. uvicorn's own would let a TLS handshake take a minute."""
        loop = asyncio.get_running_loop()
        limit = None if self._tls is None else self._settings.request_seconds
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=CountingListener(listener, self._connections),
                ssl=self._tls,
                ssl_handshake_timeout=limit,
                backlog=_BACKLOG,
            )
            for listener in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> GuardedProtocol:
        return GuardedProtocol(
            self._settings, self._connections, config=self.config, server_state=self.server_state, app_state={}
        )


@contextmanager
def _open_sessions(settings: GatewaySettings) -> Iterator[SessionFiles]:
    with ExitStack() as stack:
        # Only its owner can read it, as for the directory of a server.
        directory = settings.sessions or stack.enter_context(tempfile.TemporaryDirectory(prefix="scankv-sessions-"))
        seconds, idle_seconds = settings.session_seconds, settings.session_idle_seconds
        yield SessionFiles(Path(directory), seconds=seconds, idle_seconds=idle_seconds)


async def _ask(until: Callable[[], Awaitable[None]]) -> None:
    await until()
