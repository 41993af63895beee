"""`connect`: opens a client, in `async with` or by `await`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client._client.client import Client
from aio_client._input.awaitable import AwaitableOpener
from aio_client._transport.config import ClientConfig, default_url

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType


class ClientOpener(AwaitableOpener):
    """The result of `connect`: `async with connect(...) as client`, or `client = await connect(...)`."""

    call = "connect(...)"
    name = "client"
    result = Client

    def __init__(self, config: ClientConfig) -> None:
        """Called by `connect`; opens nothing."""
        self._config = config
        self._client: Client | None = None

    def __await__(self) -> Generator[None, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.aclose()

    async def _open(self) -> Client:
        return Client(self._config)


def connect(
    url: str | None = None,
    *,
    operation_timeout: float = 60.0,
    attempt_timeout: float = 10.0,
    next_chunk_timeout: float = 30.0,
    read_ahead_bytes: int = 2 * 1024 * 1024,
    read_ahead_chunks: int = 2,
) -> ClientOpener:
    """Opens a client, in `async with` or by `await`.

    The server need not run yet: the first call connects, and fails within milliseconds if nothing listens at the
    address. Only calls that are safe to repeat wait for an absent server: writes, which the server applies once however
    often they are repeated, and scans with a known position, which are those of a pinned snapshot or with a resume
    token.

    Args:
        url: The server as `host:port` or `scankv://host:port`, an IPv6 host in brackets. Default: `$SCANKV_URL`, or
            `localhost:7070` without it.
        operation_timeout: Seconds for one operation with all its attempts; for a scan, the time without progress.
        attempt_timeout: Seconds until the first message of an answer.
        next_chunk_timeout: Seconds until the next chunk or heartbeat of a scan, while the caller waits for it.
        read_ahead_bytes: Bytes of a scan that the server may send ahead, 64 KiB to 64 MiB.
        read_ahead_chunks: The same in chunks, 1 to 1024; the lesser of both counts.

    Returns:
        An object for `async with` or `await`, which opens a `Client`.

    Raises:
        UsageError: The url cannot be parsed, or a number is out of range.
    """
    return ClientOpener(
        ClientConfig(
            url=default_url() if url is None else url,
            operation_timeout=operation_timeout,
            attempt_timeout=attempt_timeout,
            next_chunk_timeout=next_chunk_timeout,
            read_ahead_bytes=read_ahead_bytes,
            read_ahead_chunks=read_ahead_chunks,
        )
    )
