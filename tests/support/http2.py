"""A client of HTTP/2 that speaks frame by frame, for floods that no gRPC library sends."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 1
END_STREAM: Final = 1
END_HEADERS: Final = 4

REFUSED_STREAM: Final = 7
ENHANCE_YOUR_CALM: Final = 11

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = 9


class Frame(NamedTuple):
    """A frame that the server has sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def error(self) -> int:
        """The error code of a GOAWAY or RST_STREAM frame."""
        at = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")


class Http2Connection:
    """A connection to a server, which reads nothing until it is told to."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._received = b""
        self.send(_PREFACE + frame(SETTINGS, 0, 0))

    def set_timeout(self, seconds: float) -> None:
        """Sets after which time a send fails with TimeoutError, if the server does not read."""
        self._socket.settimeout(seconds)

    def send(self, data: bytes) -> None:
        """Sends bytes. Waits while the server does not read."""
        self._socket.sendall(data)

    def send_until_closed(self, data: bytes, times: int) -> int:
        """Sends the same bytes again and again. Returns how often, until the server closed the connection."""
        for number in range(times):
            try:
                self.send(data)
            except OSError:
                return number
        return times

    def frames(self) -> Iterator[Frame]:
        """Yields the frames that the server sends, until it closes the connection, or sends nothing for 30 s."""
        while True:
            while len(self._received) < _HEAD or len(self._received) < _HEAD + self._length():
                try:
                    data = self._socket.recv(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    return
                self._received += data
            end = _HEAD + self._length()
            kind, flags, stream = struct.unpack_from(">BBI", self._received, 3)
            payload, self._received = self._received[_HEAD:end], self._received[end:]
            yield Frame(kind, flags, stream, payload)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _length(self) -> int:
        return int.from_bytes(self._received[:3], "big")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns a frame."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def begin_call(stream: int, path: str, metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the frame that begins a call of a method, without its message."""
    return frame(HEADERS, END_HEADERS, stream, header_block(path, metadata))


def header_block(path: str, metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the headers of a call, each in plain text: RFC 7541, 6.2.2."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in (headers | dict(metadata or {})).items())


def _text(text: str) -> bytes:
    data, length = text.encode(), len(text)
    if length < 127:
        return bytes([length]) + data
    head, length = bytearray([127]), length - 127
    while length >= 128:
        head.append(length % 128 + 128)
        length //= 128
    return bytes([*head, length]) + data


def send_message(stream: int, message: bytes, *, size: int | None = None, compressed: bool = False) -> bytes:
    """Returns the frames of a message; `size`: the size that its head names, if not its own."""
    data = bytes([compressed]) + (len(message) if size is None else size).to_bytes(4, "big") + message
    flags = END_STREAM if size is None else 0
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    return b"".join(frame(DATA, flags if part is parts[-1] else 0, stream, part) for part in parts)
