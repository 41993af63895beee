"""`connect`: opens a client, in `async with` or by `await`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client._client.client import Client
from aio_client._input.awaitable import AwaitableOpener
from aio_client._transport.access import resolve_access
from aio_client._transport.config import ClientConfig
from aio_client._transport.profiles import ServerAccess
from aio_client._transport.tls import Tls
from aio_client._transport.tokens import TokenSource, token_source
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable


class ClientOpener(AwaitableOpener[Client]):
    """The result of `connect`: `async with connect(...) as client`, or `client = await connect(...)`."""

    call = "connect(...)"
    name = "client"
    result = Client

    def __init__(self, config: ClientConfig) -> None:
        """Called by `connect`; opens nothing."""
        self._config = config

    async def _open(self) -> Client:
        return Client(self._config)


def connect(
    url: str | None = None,
    *,
    token: str | os.PathLike[str] | TokenSource | Callable[[], str | Awaitable[str]] | None = None,
    tls: bool | Tls | None = None,
    profile: str | None = None,
    operation_timeout: float = 60.0,
    attempt_timeout: float = 10.0,
    next_chunk_timeout: float = 30.0,
    read_ahead_bytes: int = 2 * 1024 * 1024,
    read_ahead_chunks: int = 2,
) -> ClientOpener:
    """Opens a client, in `async with` or by `await`.

    The server need not run yet: the first call connects, and fails within milliseconds if nothing listens at the
    address. Some calls wait for an absent server, because they are safe to repeat: writes and transactions, which the
    server applies once however often they are repeated, and scans whose position is known: scans of a pinned snapshot,
    scans with a resume token, and streams of changes from given offsets or for a consumer.

    The address, the token and the TLS settings each come from the first place that has them: the arguments; the
    profile; the environment variables `SCANKV_URL`, `SCANKV_TOKEN` or `SCANKV_TOKEN_FILE`, `SCANKV_TLS_CA`,
    `SCANKV_CLIENT_CERTIFICATE` and `SCANKV_CLIENT_KEY`; the profile in `SCANKV_PROFILE`. The variables, and the profile
    in `SCANKV_PROFILE`, are used only for the server that they name, if they name one.

    Args:
        url: The server as `host:port`, `scankv://host:port` (never with TLS) or `scankvs://host:port` (always with
            TLS), an IPv6 host in brackets. Default: as above, then `localhost:7070`.
        token: The token that authenticates the client. A `pathlib.Path` or `TokenFile` names a file that is read again
            when it changes, a `TokenEnv` names an environment variable. A function that returns a token is called for
            the first call, before a JSON web token expires, and when the server refuses a token. It runs in a thread
            unless it is a coroutine function. A token is not sent without TLS beyond this machine.
        tls: Whether to use TLS, or a `Tls` with certificates. True: trust the authorities that this machine trusts.
        profile: A profile in `~/.config/scankv/config.toml`.
        operation_timeout: Seconds for one operation with all its attempts; for a scan, the time without progress.
        attempt_timeout: Seconds until the first message of an answer.
        next_chunk_timeout: Seconds until the next chunk or heartbeat of a scan, while the caller waits for it.
        read_ahead_bytes: Bytes of a scan that the server may send ahead, 64 KiB to 64 MiB.
        read_ahead_chunks: The same in chunks, 1 to 1024; the lesser of both counts.

    Returns:
        An object for `async with` or `await`, which opens a `Client`.

    Raises:
        UsageError: The url cannot be parsed, a number is out of range, the token or the TLS settings are not valid, or
            there is no such profile.
    """
    if not isinstance(tls, bool | Tls | None):
        raise UsageError(f"tls must be True, False or a Tls, not a {type(tls).__name__}", option="tls")
    url, source, settings = resolve_access(ServerAccess(url=url, token=token_source(token), tls=tls), profile)
    return ClientOpener(
        ClientConfig(
            url=url,
            token=source,
            tls=settings,
            operation_timeout=operation_timeout,
            attempt_timeout=attempt_timeout,
            next_chunk_timeout=next_chunk_timeout,
            read_ahead_bytes=read_ahead_bytes,
            read_ahead_chunks=read_ahead_chunks,
        )
    )
