"""The call that the current task serves, so that log messages can name it."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence


class AnswerClaim(Protocol):
    """The memory that the answer of a call takes."""

    def expect(self, size: int) -> None:
        """Checks that the answer probably has room. Raises ServerBusy otherwise."""

    def claim(self, size: int, *, may_refuse: bool = True) -> None:
        """Sets how many bytes the answer takes. Raises ServerBusy if no room is left."""


Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"
"""What a client sends before its message."""

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class CurrentCall:
    """What is known about a running call.

    Attributes:
        method: The method, as `SERVICE/METHOD`.
        client: The address of the client: of the browser if the server's own gateway makes the call for one.
        table: The name of the table that the call reads. Empty: none, or not known.
        scan_id: The id of its scan. Empty: it is not a scan.
        waited_seconds: For how long the call has waited for its client, for changes, or for locks.
        may_last: Whether the call may last forever, as it follows changes or another worker answers it.
        error: The reason of the error with which the call ends. Empty: none, or not known.
        stream_pace: Takes the bytes of a message, and returns the seconds to hold it back. None: no limit.
        on_end: Called with the name of the status and the seconds when the call has ended.
        answer: Counts the memory of the answer. None: the call streams its answer.
        explain: Returns a description of what the call reads, without values of rows, keys or predicates.
        rows_scanned: How many rows its scan has read, once the scan has ended.
        bytes_returned: How many bytes of Arrow data its scan has returned, once the scan has ended.
        trace_id: The trace of the call. Empty: calls are not traced.
        span_id: Its span within the trace. Empty: calls are not traced.

    Args:
        method: The method.
        metadata: The metadata that the client has sent, as pairs of a name and a value.
        client: See the attribute.
    """

    __slots__ = (
        "_request_id",
        "answer",
        "bytes_returned",
        "client",
        "error",
        "explain",
        "may_last",
        "metadata",
        "method",
        "on_end",
        "rows_scanned",
        "scan_id",
        "span_id",
        "stream_pace",
        "table",
        "trace_id",
        "waited_seconds",
    )

    def __init__(self, method: str, metadata: Metadata, client: str) -> None:
        self.method = method
        self.metadata = metadata
        self.client = client
        self.table = ""
        self.scan_id = ""
        self.waited_seconds = 0.0
        self.may_last = False
        self.error = ""
        self.stream_pace: Callable[[int], float] | None = None
        self.on_end: Callable[[str, float], None] | None = None
        self.answer: AnswerClaim | None = None
        self.explain: Callable[[], Awaitable[str]] | None = None
        self.rows_scanned = 0
        self.bytes_returned = 0
        self.trace_id = ""
        self.span_id = ""
        self._request_id = ""

    @property
    def request_id(self) -> str:
        """The `x-request-id` of the client if it is well-formed; otherwise one that is generated on first use."""
        if not self._request_id:
            given = next((value for name, value in self.metadata if name == "x-request-id"), "")
            well_formed = _REQUEST_ID.fullmatch(given) if isinstance(given, str) else None
            self._request_id = well_formed[0] if well_formed else uuid.uuid4().hex
        return self._request_id


CALL_METADATA: Final[ContextVar[Metadata]] = ContextVar("scankv_call_metadata", default=())
"""The metadata of the call that the current task serves."""

CURRENT_CALL: Final[ContextVar[CurrentCall | None]] = ContextVar("scankv_current_call", default=None)
"""The call that the current task serves, if it serves one."""


def current_client() -> str:
    """Returns the address of the client whose call the current task serves; empty if it serves none."""
    call = CURRENT_CALL.get()
    return "" if call is None else call.client


@contextmanager
def count_waiting() -> Iterator[None]:
    """Counts the time in the block as waiting of the current call, so that the call does not count as slow."""
    call, began = CURRENT_CALL.get(), time.perf_counter()
    try:
        yield
    finally:
        if call is not None:
            call.waited_seconds += time.perf_counter() - began


def expect_answer(size: int) -> None:
    """Checks that the answer of the current call probably has room for at most this many bytes.

    Raises:
        ServerBusy: No room is left for it.
    """
    if (call := CURRENT_CALL.get()) is not None and call.answer is not None:
        call.answer.expect(size)


def claim_answer(size: int) -> None:
    """Claims memory for the answer of the current call, as soon as its approximate size is known.

    Raises:
        ServerBusy: No room is left for it.
    """
    if (call := CURRENT_CALL.get()) is not None and call.answer is not None:
        call.answer.claim(size)
