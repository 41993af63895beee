"""The HTTP port for monitoring systems: metrics, liveness and readiness."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS: Final = 32
_MOST_HEAD_BYTES: Final = 16 * 1024
_SECONDS: Final = 10.0
_JSON: Final = "application/json"


class Endpoint:
    """Answers `GET /metrics`, `/healthz` and `/readyz`, one request for each connection. Bound to the event loop.

    It runs on the event loop of the server, so an answer of `/healthz` shows that the loop turns. At most 32
    connections are open at once, each for at most 10 seconds, with a request of at most 16 KiB. Others are closed.

    Args:
        metrics: Returns the media type and the text of the metrics.
        not_ready: Returns why the server is not ready for calls; None if it is ready.
    """

    def __init__(
        self, metrics: Callable[[], Awaitable[tuple[str, bytes]]], not_ready: Callable[[], str | None]
    ) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._server: asyncio.Server | None = None
        self._asks_for_certificates = False
        self._connections: set[asyncio.Task[None]] = set()
        # Several scrapes at once would only wait for each other.
        self._scraping = asyncio.Lock()

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None, *, is_shared: bool = False) -> int:
        """Listens, and returns the port. Raises OSError if it cannot.

        Args:
            host: The address.
            port: The port. 0 picks a free one.
            tls: The settings of HTTPS. If they verify certificates of clients, only clients with one may read metrics.
                Probes of liveness and readiness usually have none. None: HTTP.
            is_shared: Whether other worker processes listen on the same port.
        """
        self._asks_for_certificates = tls is not None and tls.verify_mode is not ssl.CERT_NONE
        self._server = await asyncio.start_server(
            self._serve,
            host.strip("[]"),
            port,
            limit=_MOST_HEAD_BYTES,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _SECONDS,
            reuse_port=is_shared or None,
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops listening, and ends all connections. Does nothing if it never listened."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) < _MOST_CONNECTIONS:
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)
                # A client that breaks the connection, sends too much or takes too long gets no answer.
                with suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(_SECONDS):
                        head = await reader.readexactly(1)
                        # Not a letter: a client with TLS, which waits for an answer, and takes any as a failure.
                        if head.isalpha():
                            head += await reader.readuntil(b"\r\n\r\n")
                        is_trusted = not self._asks_for_certificates or bool(writer.get_extra_info("peercert"))
                        writer.write(await self._answer(head, is_trusted=is_trusted))
                        await writer.drain()
        except asyncio.CancelledError:
            # By `close`. asyncio would report a cancelled handler of a connection as an error.
            writer.transport.abort()
        finally:
            writer.close()

    async def _answer(self, head: bytes, *, is_trusted: bool) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, _JSON, _text({"error": "only GET and HEAD are allowed"})
        else:
            try:
                status, kind, body = await self._get(path, is_trusted=is_trusted)
            except Exception:
                _log.exception("the metrics cannot be read")
                status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, _JSON, _text({"error": "see the server's log"})
        lines = f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"
        text = "\r\n".join((*lines, "Cache-Control: no-store", "Connection: close", "", ""))
        return text.encode() + (b"" if method == b"HEAD" else body)

    async def _get(self, path: bytes, *, is_trusted: bool) -> tuple[HTTPStatus, str, bytes]:
        if path == b"/metrics":
            if not is_trusted:
                return HTTPStatus.FORBIDDEN, _JSON, _text({"error": "metrics need a client certificate"})
            async with self._scraping:
                return HTTPStatus.OK, *await self._metrics()
        if path == b"/healthz":
            return HTTPStatus.OK, _JSON, _text({"alive": True})
        if path == b"/readyz":
            reason = self._not_ready()
            if reason is None:
                return HTTPStatus.OK, _JSON, _text({"ready": True})
            return HTTPStatus.SERVICE_UNAVAILABLE, _JSON, _text({"ready": False, "reason": reason})
        return HTTPStatus.NOT_FOUND, _JSON, _text({"error": "the paths are /metrics, /healthz and /readyz"})


def _text(values: dict[str, object]) -> bytes:
    return json.dumps(values).encode() + b"\n"
