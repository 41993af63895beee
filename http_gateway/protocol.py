"""Connections of the gateway: uvicorn's, with limits against clients that are slow, silent or too many."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import uuid
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from http_gateway.access_log import REQUEST_ID, LoggedRequest
from http_gateway.answers import ABORT, KNOWN
from http_gateway.limited_log import LimitedLog
from http_gateway.strict_requests import RequestRefused, StrictConnection
from scankv.model.forwarded_peers import peer_text

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from http_gateway.connections import Connections
    from http_gateway.settings import GatewaySettings

_malformed = LimitedLog(logging.getLogger(__name__))


class GuardedProtocol(H11Protocol):
    """One connection. It is ended if a request does not arrive in time, or if an answer is not read.

    uvicorn waits without a limit for the first request, for the rest of a request, and for a reader that takes nothing.
    """

    def __init__(self, settings: GatewaySettings, open_connections: Connections, **uvicorns: Any) -> None:  # noqa: ANN401
        super().__init__(**uvicorns)
        self.conn = self._requests = StrictConnection()
        self._settings = settings
        self._open_connections = open_connections
        self._application = self.app
        self.app = self._serve
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._serving: asyncio.Task[Any] | None = None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._serving = asyncio.current_task()
        scope[ABORT] = self._break
        scope[KNOWN] = self._record_known
        scope[REQUEST_ID] = uuid.uuid4().hex
        if not self._settings.access_log:
            await self._application(scope, receive, send)
            return
        # The next request of the connection has another cycle, and begins only after this one.
        logged = LoggedRequest(scope, self.cycle, send)
        try:
            await self._application(scope, receive, logged.send)
        finally:
            logged.log()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._open_connections.hand_over(self._file_number, self)
        # What the reader has not taken counts at once, not only beyond a mark. With 0, asyncio's TLS pauses for ever.
        transport.set_write_buffer_limits(high=1, low=0)
        self._await_request()

    @property
    def _file_number(self) -> int:
        raw = self.transport.get_extra_info("socket")
        return -1 if raw is None else int(raw.fileno())

    def _record_known(self) -> None:
        """Records an authenticated call; on a server without tokens, any call."""
        self._open_connections.forget_unknown(self._file_number)

    def awaits_request(self) -> bool:
        """Whether no request has arrived completely, and nothing of an answer is left to send."""
        return self._is_incomplete and not self.transport.get_write_buffer_size()

    @property
    def _is_incomplete(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def end(self) -> None:
        """Ends the connection, whatever it has not sent."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)
        # The client of a caller at its limit repeats calls for a long time. An answer that has begun ends by itself.
        if self._serving is not None and self.cycle is not None and not self.cycle.response_started:
            self._serving.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The timer runs from the first byte of a request to its last one, whatever arrives in between.
        if self._is_incomplete:
            if self._request_timer is None:
                self._await_request()
        elif self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuses a malformed request. uvicorn's method fails with a traceback if an answer has begun or follows."""
        error = self._requests.refusal
        status = 400 if error is None else error.error_status_hint
        reason = str(error) if isinstance(error, RequestRefused) else "it is not a valid HTTP/1.1 request"
        _malformed.info("a malformed request from %s was refused: %s", peer_text(*(self.client or ("", 0))), reason)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state is h11.SEND_BODY:
            self._break()
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write_refusal(status, reason)
        self.transport.close()

    def _write_refusal(self, status: int, reason: str) -> None:
        body = f"{reason}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        headers.append(("Connection", "close"))
        answer = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
        self.transport.write(self.conn.send(answer) or b"")
        # An answer to HEAD has no body.
        with suppress(h11.LocalProtocolError):
            self.transport.write(self.conn.send(h11.Data(data=body)) or b"")
            self.conn.send(h11.EndOfMessage())

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._settings.stall_seconds, self._break)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _await_request(self) -> None:
        self._request_timer = self.loop.call_later(self._settings.request_seconds, self.transport.abort)

    def _stop_timers(self) -> None:
        for timer in (self._request_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._request_timer = self._stall_timer = None

    def _break(self) -> None:
        """Breaks the connection so that its reader sees an error, and does not take the answer for complete."""
        raw = self.transport.get_extra_info("socket")
        if raw is not None:
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
