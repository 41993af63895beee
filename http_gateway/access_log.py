"""The access log: one line for each request, with what was answered and to whom, and without what may be secret.

A line has no query, header or body, since they may contain tokens and values of rows.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from scankv.model.forwarded_peers import peer_text

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.types import Scope, Send
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

REQUEST_ID: Final = "scankv.request_id"
"""Where the scope of a request has its id, which the calls for it send to the server."""

_log = logging.getLogger(__name__)

_MOST_PATH: Final = 1000  # characters
_SESSION: Final = re.compile(rb"(/console/+)[^/]+")
_VISIBLE: Final = frozenset(range(0x21, 0x7F)) - frozenset(b'"\\')


class LoggedRequest:
    """One request, from its head to the end of its answer.

    Args:
        scope: The request.
        cycle: Its answer, as uvicorn knows it.
        send: Sends messages of the answer.
    """

    def __init__(self, scope: Scope, cycle: RequestResponseCycle, send: Send) -> None:
        self._scope = scope
        self._cycle = cycle
        self._send = send
        self._began = time.perf_counter()
        self._status: int | None = None
        self._bytes = 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Sends a message of the answer, and counts what the reader takes of it."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        await self._send(message)
        if not self._cycle.disconnected and self._scope["method"] != "HEAD":
            self._bytes += len(message.get("body", b""))

    def log(self) -> None:
        """Writes the line. Called once, at the end of the request."""
        fields = {
            "peer": peer_text(*self._scope["client"]) if self._scope["client"] else "",
            "method": self._scope["method"],
            "path": path_text(self._scope["raw_path"]),
            "status": self._status,
            "bytes": self._bytes,
            "millis": round((time.perf_counter() - self._began) * 1000, 1),
            "outcome": "complete" if self._cycle.response_complete else "aborted",
            "request_id": self._scope[REQUEST_ID],
        }
        text = '{peer} "{method} {path}" {status} {outcome}, {bytes} bytes, {millis} ms, request {request_id}'
        _log.info("%s", text.format_map(fields), extra={"fields": fields})


def path_text(raw: bytes) -> str:
    """Returns the path of a request as visible ASCII without quotes, so that it cannot end a line or a field.

    The secret path of a session of the console is replaced with "-".

    Args:
        raw: The target of the request without its query. One that names a host is not shown: it may have a password.
    """
    if not raw.startswith((b"/", b"*")):
        return "-"
    path = raw.partition(b"#")[0]
    # To the application, a percent-encoded path is the same path.
    if _SESSION.search(plain := unquote_to_bytes(path)):
        path = _SESSION.sub(rb"\1-", plain)
    path = path[:_MOST_PATH]
    return "".join(chr(byte) if byte in _VISIBLE else f"%{byte:02X}" for byte in path)
