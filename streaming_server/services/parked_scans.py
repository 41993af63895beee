"""Parked scans: one call opens the view of a scan, and another call reads its rows.

The owner of a table opens the views of all tablets at one instant, and the reader of the table then reads each of them
at the owner of the tablet. Each view lasts as long as the call that has opened it.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc

from scankv.model.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scankv.model.errors import ScanKvError
    from streaming_server.scan.admission.live_scans import Abortable

_CLAIM_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.2

_FIRST: Final = "first-"
"""How the ticket of the first part of a scan begins."""

Context = grpc.aio.ServicerContext


class ParkedScan:
    """A scan with an open view that waits for its reader. Bound to the event loop.

    Args:
        source: What the scan reads.
        seconds: For how long it waits for its reader. None: as long as the call that has opened it lasts.

    Attributes:
        token_head: The beginning of the resume tokens of the complete scan. Empty until a call claims this part.
    """

    def __init__(self, source: Abortable, seconds: float | None) -> None:
        self._source = source
        loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._reader: asyncio.Future[Context[Any, Any]] = loop.create_future()
        self._end: asyncio.Future[BaseException | None] = loop.create_future()
        self._last: asyncio.Future[bytes] = loop.create_future()
        self.token_head = b""

    async def wait_for_reader(self) -> Context[Any, Any]:
        """Returns the call that reads the scan. Raises Unavailable if none does in time."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._reader
        except TimeoutError:
            raise Unavailable(
                f"no reader has claimed the scan within {self._seconds:g} s: start it again",
                retry_after=_RETRY_SECONDS,
            ) from None

    def abort(self, error: ScanKvError) -> None:
        """Ends the scan, also while it waits for its reader."""
        self._source.abort(error)
        for waiting in (self._reader, self._last):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # Marks the error as retrieved, because no task may wait for it.

    async def last_message(self) -> bytes:
        """Returns the last message once the reader has all messages.

        Raises the error that ends the scan at once, even if the reader takes nothing and its call cannot end yet.
        """
        return await asyncio.shield(self._last)

    def end(self, error: Exception | None, last: bytes = b"") -> None:
        """Ends the call that reads the scan. Call it once no message is being sent to that call."""
        if not self._end.done():
            self._end.set_result(error)
        if not self._last.done():
            if error is None:
                self._last.set_result(last)
            else:
                self._last.set_exception(error)
                self._last.exception()

    async def read(self, context: Context[Any, Any], token_head: bytes) -> None:
        """Has the scan send its messages to a call. Returns after the last one. Raises the error that ends the scan."""
        self.token_head = token_head
        self._reader.set_result(context)
        error = await asyncio.shield(self._end)
        if error is not None:
            raise error

    @property
    def is_claimed(self) -> bool:
        """Whether a call reads the scan."""
        return self._reader.done()


class ParkedScans:
    """The parked scans of this process, by ticket. Bound to the event loop."""

    def __init__(self) -> None:
        self._scans: dict[str, ParkedScan] = {}

    @contextmanager
    def park(self, ticket: str, source: Abortable) -> Iterator[ParkedScan]:
        """Lets another call read a scan, for the length of the block.

        The first part of a scan waits a few seconds for its reader. Other parts wait as long as the scan lasts, because
        the reader reads the parts before them first.
        """
        parked = self._scans[ticket] = ParkedScan(source, _CLAIM_SECONDS if ticket.startswith(_FIRST) else None)
        try:
            yield parked
        finally:
            del self._scans[ticket]
            if not parked.is_claimed:
                parked.end(gone())

    def find(self, ticket: str) -> ParkedScan:
        """Returns a scan that no call reads yet. Raises Unavailable if no such scan exists."""
        parked = self._scans.get(ticket)
        if parked is None or parked.is_claimed:
            raise gone()
        return parked


def new_tickets(parts: Sequence[int]) -> dict[int, str]:
    """Returns a ticket for each part of a scan, given in the order in which they are read."""
    return {part: f"{_FIRST if part == parts[0] else ''}{uuid.uuid4().hex}" for part in parts}


def gone() -> Unavailable:
    """Returns the error for the reader of a part whose scan has ended."""
    return Unavailable("the scan of this part has ended: start it again", retry_after=_RETRY_SECONDS)
