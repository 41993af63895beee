"""Which requests are refused while they are read: large ones, and those that a proxy may read differently.

h11 accepts lines that end in a bare LF, header lines that continue on the next line, and a length beside chunks, as
RFC 9112 permits. Its limits apply only to what is still incomplete.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import h11
from h11._receivebuffer import ReceiveBuffer

from http_gateway.limits import MAX_BODY_BYTES, MAX_HEAD_BYTES

if TYPE_CHECKING:
    from h11._events import Event

_BARE_LINE_FEED: Final = re.compile(rb"(?<!\r)\n")
_CONTINUED_LINE: Final = re.compile(rb"\n[ \t]")


class RequestRefused(h11.RemoteProtocolError):
    """A request is refused. Unlike h11's, its message has nothing of the request, which may have a token."""


class StrictConnection(h11.Connection):
    """The server's side of a connection.

    Attributes:
        refusal: Why the last request is refused; None if it is not.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._receive_buffer = _StrictBuffer()
        self._body_bytes = 0
        self.refusal: h11.RemoteProtocolError | None = None

    def next_event(self) -> Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Returns the next event. Raises h11.RemoteProtocolError."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._body_bytes = 0
                _check_length(event)
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                _check_size("body", self._body_bytes, MAX_BODY_BYTES, 413)
        except h11.RemoteProtocolError as error:
            self.refusal = error
            raise
        return event


class _StrictBuffer(ReceiveBuffer):
    """What has been received and not read yet."""

    def __init__(self) -> None:
        super().__init__()
        # A head that arrives byte by byte must not be read again with each of them.
        self._checked_bytes = 0

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Returns the lines of a head, or of the trailers of a body, if they are complete."""
        data = self._data
        # A body without trailers ends with an empty line. The next request may follow.
        if data[:2] != b"\r\n":
            begin = max(0, self._checked_bytes - 3)
            found = data.find(b"\r\n\r\n", begin, MAX_HEAD_BYTES)
            end = len(data) if found < 0 else found + 4
            _check_size("head", end, MAX_HEAD_BYTES, 431)
            # Unlike in a slice, the first expression sees the byte before the first one.
            if _BARE_LINE_FEED.search(data, begin, end):
                raise _refusal("a line ends without a carriage return")
            if _CONTINUED_LINE.search(data, begin, end):
                raise _refusal("a header continues on the next line")
            self._checked_bytes = end
        return super().maybe_extract_lines()

    def _extract(self, count: int) -> bytearray:
        self._checked_bytes = 0
        return super()._extract(count)


def _check_length(request: h11.Request) -> None:
    # h11 has checked that each of the two is valid and occurs at most once.
    headers = dict(request.headers)
    length, is_chunked = headers.get(b"content-length"), b"transfer-encoding" in headers
    if is_chunked and length is not None:
        raise _refusal("the request has both Content-Length and Transfer-Encoding")
    if is_chunked and request.http_version != b"1.1":
        raise _refusal("the request has Transfer-Encoding, which only HTTP/1.1 has")
    if length is not None:
        _check_size("body", int(length), MAX_BODY_BYTES, 413)


def _check_size(what: str, number: int, limit: int, status: int) -> None:
    if number > limit:
        raise _refusal(f"the {what} of the request has more than {limit:,} bytes", status)


def _refusal(message: str, status: int = 400) -> RequestRefused:
    return RequestRefused(message, error_status_hint=status)
