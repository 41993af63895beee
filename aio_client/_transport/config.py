"""The settings of a client: the server's address, token and TLS, timeouts, and the read-ahead."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from aio_client._transport.tls import Tls
from aio_client._transport.tokens import TokenSource
from scankv.model.errors import UsageError
from scankv.model.limits import DEFAULT_CHUNK_BYTES
from scankv.model.shown_uris import show_server

DEFAULT_URL: Final = "localhost:7070"

MIN_READ_AHEAD_BYTES: Final = 64 * 1024
_MAX_READ_AHEAD_BYTES: Final = 64 * 1024 * 1024
_MAX_READ_AHEAD_CHUNKS: Final = 1024
_MAX_HEARTBEAT_SECONDS: Final = 3600.0
_PLAIN: Final = "scankv://"
_ENCRYPTED: Final = "scankvs://"
_ADDRESS: Final = re.compile(r"(?:scankvs?://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The settings of a client, as `connect` has found them. Immutable; `Client(config)` opens an equal client.

    Picklable, unless it has a token that was given as text, or a key that was given as bytes. A pickle has the path or
    name of a secret, and no secret.

    Four timeouts bound a scan. The three of the client run only while the caller waits in a read, never between two
    reads. Each of them bounds one thing:

    - `operation_timeout`: all attempts together, as long as nothing of the answer arrives;
    - `attempt_timeout`: one attempt that gets no answer at all;
    - `next_chunk_timeout`: one attempt whose answer stops in the middle;
    - the server's `stall_timeout_seconds`: a scan whose reader takes nothing, with `ScanStalled`.

    Attributes:
        url: The server as `host:port`, `scankv://host:port` (never with TLS) or `scankvs://host:port` (always with
            TLS); an IPv6 host in brackets. Default `localhost:7070`.
        token: Where the token is that authenticates the client. None: the client has none.
        tls: The TLS settings. None: the connection is not encrypted.
        operation_timeout: Seconds that one operation with all its attempts may take, more than 0. For a scan and for a
            write of many requests, it is the time without progress, not the complete duration, and excludes the time
            that the caller takes. Progress of a scan is a chunk, a heartbeat or the end; a header alone is not.
        attempt_timeout: Seconds until the first message of an answer must arrive, more than 0.
        next_chunk_timeout: Seconds within which the server must send the next chunk or heartbeat of a scan while the
            caller waits for it, more than 0.
        read_ahead_bytes: How much of a scan the server may send ahead, in bytes, 64 KiB to 64 MiB. It is the receive
            window of the connection, so it also bounds the rows in flight. A single larger message is received
            completely.
        read_ahead_chunks: The same in chunks of the size that the scan asks for, 1 to 1024. The lesser of both counts,
            but at least 64 KiB, the initial window of HTTP/2.
    """

    url: str = DEFAULT_URL
    token: TokenSource | None = None
    tls: Tls | None = None
    operation_timeout: float = 60.0
    attempt_timeout: float = 10.0
    next_chunk_timeout: float = 30.0
    read_ahead_bytes: int = 2 * 1024 * 1024
    read_ahead_chunks: int = 2

    def __post_init__(self) -> None:
        """Raises UsageError, which names the field that is out of range."""
        _split_address(self.url)
        self._check_access()
        for field in ("operation_timeout", "attempt_timeout", "next_chunk_timeout"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise UsageError(f"{field} must be a number of seconds greater than 0, not {value!r}", option=field)
        value = self.read_ahead_bytes
        if type(value) is not int or not MIN_READ_AHEAD_BYTES <= value <= _MAX_READ_AHEAD_BYTES:
            raise UsageError(
                f"read_ahead_bytes must be between {MIN_READ_AHEAD_BYTES:,} and {_MAX_READ_AHEAD_BYTES:,}, not "
                f"{value!r}",
                option="read_ahead_bytes",
            )
        value = self.read_ahead_chunks
        if type(value) is not int or not 1 <= value <= _MAX_READ_AHEAD_CHUNKS:
            raise UsageError(
                f"read_ahead_chunks must be between 1 and {_MAX_READ_AHEAD_CHUNKS:,}, not {value!r}",
                option="read_ahead_chunks",
            )

    def _check_access(self) -> None:
        if self.tls is not None and not isinstance(self.tls, Tls):
            raise UsageError(f"tls must be a Tls or None, not a {type(self.tls).__name__}", option="tls")
        if self.tls is None and is_encrypted(self.url):
            object.__setattr__(self, "tls", Tls())
        if self.tls is not None and is_plain(self.url):
            raise UsageError(
                f"the url {self.url} says that the connection is not encrypted, and TLS settings are given: write "
                f"{_ENCRYPTED}{self.address}, or leave the settings out",
                option="tls",
            )
        if self.token is not None and not isinstance(self.token, TokenSource):
            raise UsageError("token must be a TokenFile, a TokenEnv or None; connect also takes text", option="token")
        if self.token is not None and self.tls is None and not is_loopback(_split_address(self.url)[0]):
            raise UsageError(
                f"the token must not be sent to {self.address} over a connection that is not encrypted, where others "
                f"could read it: connect to {_ENCRYPTED}{self.address}, or leave the token out",
                option="token",
            )

    @property
    def address(self) -> str:
        """The server as `host:port`, without a scheme."""
        return address_of(self.url)

    @property
    def call_timeout(self) -> float:
        """Seconds that one call has until the first message of its answer."""
        return min(self.attempt_timeout, self.operation_timeout)

    @property
    def heartbeat_interval(self) -> float:
        """The longest time between two messages of a scan: a third of the timeouts that would end a waiting scan."""
        return max(0.001, min(_MAX_HEARTBEAT_SECONDS, min(self.next_chunk_timeout, self.operation_timeout) / 3))

    @property
    def min_silence(self) -> float:
        """How long a call must be silent to suggest that its connection is broken.

        A shorter silence, because the operation was nearly over, suggests nothing.
        """
        return min(self.attempt_timeout, self.next_chunk_timeout, self.operation_timeout) / 2

    def window_bytes(self, chunk_bytes: int | None) -> int:
        """Returns the receive window of a scan in bytes.

        It has `read_ahead_chunks` chunks, rounded up to a power of two so that there are few different windows, and at
        most `read_ahead_bytes`.

        Args:
            chunk_bytes: The most bytes of a chunk. None: the default.
        """
        chunks = self.read_ahead_chunks * (chunk_bytes or DEFAULT_CHUNK_BYTES)
        rounded = 1 << (chunks - 1).bit_length()
        return max(MIN_READ_AHEAD_BYTES, min(self.read_ahead_bytes, rounded))


def address_of(url: str) -> str:
    """Returns the server of a url as `host:port`. Raises UsageError if the url cannot be parsed."""
    host, port = _split_address(url)
    return f"{host}:{port}"


def is_plain(url: str) -> bool:
    """Returns whether a url says that the connection is not encrypted. One without a scheme says nothing."""
    return isinstance(url, str) and url.startswith(_PLAIN)


def is_encrypted(url: str) -> bool:
    """Returns whether a url says that the connection is encrypted. One without a scheme says nothing."""
    return isinstance(url, str) and url.startswith(_ENCRYPTED)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _split_address(url: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(url) if isinstance(url, str) else None
    port = int(match["port"]) if match else 0
    if match is None or not 1 <= port <= 65535:
        shown = show_server(url) if isinstance(url, str) else url
        raise UsageError(
            f"{shown!r} is not the address of a server: write host:port or scankv://host:port, or scankvs://host:port "
            "for TLS, with a port from 1 to 65535, and an IPv6 host in brackets; for example localhost:7070 or "
            "[::1]:7070",
            option="url",
        )
    return match["host"], port
