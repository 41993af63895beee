"""How a client is set up: the address of the server, timeouts, and how much is read ahead."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from scankv.model.errors import UsageError
from scankv.model.limits import DEFAULT_CHUNK_BYTES

DEFAULT_URL: Final = "localhost:7070"
URL_VARIABLE: Final = "SCANKV_URL"

_MIN_READ_AHEAD_BYTES: Final = 64 * 1024
_MAX_READ_AHEAD_BYTES: Final = 64 * 1024 * 1024
_MAX_READ_AHEAD_CHUNKS: Final = 1024
_MAX_HEARTBEAT_MILLIS: Final = 3_600_000
_ADDRESS: Final = re.compile(r"(?:scankv://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What `connect` was told. Immutable, picklable; `connect(**dataclasses.asdict(config))` opens the same again.

    Four timeouts bound a scan. The three of the client run only while the caller waits in a read, never between two
    reads; each of them ends one thing:

    - `operation_timeout`: all attempts together, for as long as nothing of the answer comes;
    - `attempt_timeout`: one attempt that gets no answer at all;
    - `next_chunk_timeout`: one attempt whose answer stops in the middle;
    - the server's `stall_timeout_seconds`: a scan whose reader takes nothing, with `ScanStalled`.

    Attributes:
        url: The server as `host:port` or `scankv://host:port`; an IPv6 host stands in brackets. Default
            `localhost:7070`.
        operation_timeout: Seconds that one operation with all its attempts may take, more than 0. For a scan and for a
            write of many requests, the time without progress: never its length, nor the time that the caller takes.
            Progress of a scan is a chunk, a heartbeat or the end; a header alone is none.
        attempt_timeout: Seconds until the first message of an answer must be there, more than 0.
        next_chunk_timeout: Seconds within which a server must send the next chunk or heartbeat of a scan to a caller
            who waits for it, more than 0.
        read_ahead_bytes: How much of a scan the server may send before it is asked for, in bytes, 64 KiB to 64 MiB. It
            is the receive window of the connection, so it bounds rows, too: there are never more underway than fit.
            One message over it is received whole.
        read_ahead_chunks: The same in chunks of the size that the scan asks for, 1 to 1024. The lesser of both counts,
            but no less than 64 KiB, the window that HTTP/2 itself begins with.
    """

    url: str = DEFAULT_URL
    operation_timeout: float = 60.0
    attempt_timeout: float = 10.0
    next_chunk_timeout: float = 30.0
    read_ahead_bytes: int = 2 * 1024 * 1024
    read_ahead_chunks: int = 2

    def __post_init__(self) -> None:
        """Raises UsageError naming the field that is out of its range."""
        _split_address(self.url)
        for field in ("operation_timeout", "attempt_timeout", "next_chunk_timeout"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise UsageError(f"{field} is a number of seconds above 0, not {value!r}", option=field)
        value = self.read_ahead_bytes
        if type(value) is not int or not _MIN_READ_AHEAD_BYTES <= value <= _MAX_READ_AHEAD_BYTES:
            raise UsageError(
                f"read_ahead_bytes is {_MIN_READ_AHEAD_BYTES:,} to {_MAX_READ_AHEAD_BYTES:,} bytes, not {value!r}",
                option="read_ahead_bytes",
            )
        value = self.read_ahead_chunks
        if type(value) is not int or not 1 <= value <= _MAX_READ_AHEAD_CHUNKS:
            raise UsageError(
                f"read_ahead_chunks is 1 to {_MAX_READ_AHEAD_CHUNKS:,} chunks, not {value!r}",
                option="read_ahead_chunks",
            )

    @property
    def address(self) -> str:
        """The server as `host:port`, without a scheme."""
        host, port = _split_address(self.url)
        return f"{host}:{port}"

    @property
    def call_timeout(self) -> float:
        """Seconds that one call has until the first message of its answer."""
        return min(self.attempt_timeout, self.operation_timeout)

    @property
    def heartbeat_millis(self) -> int:
        """How often a scan must be heard from, so that neither of its timeouts ends one that waits: thrice in each."""
        return max(1, min(_MAX_HEARTBEAT_MILLIS, int(min(self.next_chunk_timeout, self.operation_timeout) * 1000 / 3)))

    @property
    def min_silence_seconds(self) -> float:
        """How long a call must have been silent to say something about its connection.

        One that had less, because its operation was nearly over, says nothing.
        """
        return min(self.attempt_timeout, self.next_chunk_timeout, self.operation_timeout) / 2

    def window_bytes(self, chunk_bytes: int | None) -> int:
        """The receive window of a scan: what it may be sent ahead, in bytes.

        `read_ahead_chunks` chunks rounded up to a power of two, so that there are few windows in all, and at most
        `read_ahead_bytes`.

        Args:
            chunk_bytes: The most bytes of a chunk. None: the default.
        """
        chunks = self.read_ahead_chunks * (chunk_bytes or DEFAULT_CHUNK_BYTES)
        rounded = 1 << (chunks - 1).bit_length()
        return max(_MIN_READ_AHEAD_BYTES, min(self.read_ahead_bytes, rounded))


def default_url() -> str:
    """The address of a client that was given none: `$SCANKV_URL`, else `localhost:7070`."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def _split_address(url: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(url) if isinstance(url, str) else None
    port = int(match["port"]) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise UsageError(
            f"{url!r} is not the address of a server: write host:port or scankv://host:port with a port from 1 to "
            "65535, and an IPv6 host in brackets; for example localhost:7070 or [::1]:7070",
            option="url",
        )
    return match["host"], port
