"""Answers: JSON that is complete in memory, and bodies that are made while they are sent."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from http_gateway.limits import PIECE_BYTES
from scankv.formats.json_text import json_lines
from scankv.model.errors import ScanKvError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa
    from starlette.types import Receive, Scope, Send

    from http_gateway.bound import Bound

_log = logging.getLogger(__name__)

ABORT: Final = "scankv.abort"
"""Where the scope of a request has the function that breaks its connection."""

KNOWN: Final = "scankv.known"
"""Where the scope of a request has a function that records that its connection has had an authenticated call."""

NEEDS_TOKEN: Final = "scankv.needs_token"
"""Set in the scope of a request that the server has answered, and that needs a token if the server asks for tokens."""

# Encoding this many rows blocks the event loop for about a millisecond.
_ROWS_ON_LOOP: Final = 500


class BodyResponse(Response):
    """A complete body, which is sent in pieces, so that a slow reader is noticed. It counts as unsent until then."""

    def __init__(self, body: bytes, unsent: Bound, media_type: str = "application/json", status: int = 200) -> None:
        super().__init__(body, status, media_type=media_type)
        self._unsent = unsent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytes(self.body)
        with self._unsent.take(len(body)):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send_pieces(send, body)
            await send(_piece(b"", more=False))


class StreamedResponse(Response):
    """A body that is made while it is sent, and no faster than its reader takes it.

    If it cannot be made to its end, the connection is broken, so that no reader takes it for complete. If the reader
    goes, the generator is closed at once.
    """

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        media_type: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Called with the first piece, so that the generator has begun, and can be closed."""
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            writing = asyncio.create_task(self._write(send, is_head=scope["method"] == "HEAD"))
            leaving = asyncio.create_task(_wait_until_gone(receive))
            try:
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (writing, leaving):
                    task.cancel()
                await asyncio.wait({writing, leaving})
        error = None if writing.cancelled() else writing.exception()
        if error is None:
            return
        if isinstance(error, ScanKvError):
            _log.info("an answer was broken off: %s", error.message)
        else:
            _log.error("an answer has failed", exc_info=error)
        scope[ABORT]()
        await _wait_until_gone(receive)

    async def _write(self, send: Send, *, is_head: bool) -> None:
        if not is_head:
            await _send_pieces(send, self._first)
            async for data in self._rest:
                await _send_pieces(send, data)
        await send(_piece(b"", more=False))


async def _send_pieces(send: Send, data: bytes) -> None:
    for start in range(0, len(data), PIECE_BYTES):
        await send(_piece(data[start : start + PIECE_BYTES], more=True))


def _piece(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def rows_text(rows: pa.Table) -> str:
    """Returns rows as a JSON array of objects, in portable JSON."""
    if rows.num_rows <= _ROWS_ON_LOOP:
        return _rows_text(rows)
    return await asyncio.to_thread(_rows_text, rows)


def fields_text(fields: dict[str, Any], rows: str | None = None) -> bytes:
    """Returns a JSON object of these fields and, as `rows`, a JSON array."""
    text = json.dumps(fields, ensure_ascii=False)
    if rows is not None:
        text = f'{text[:-1]}{", " if fields else ""}"rows": {rows}}}'
    return f"{text}\n".encode()


def _rows_text(rows: pa.Table) -> str:
    lines = b"".join(json_lines(batch, portable=True).to_pybytes() for batch in rows.to_batches())
    # A JSON text on one line has no raw line break inside.
    return f"[{lines.decode().rstrip().replace(chr(10), ',')}]"
