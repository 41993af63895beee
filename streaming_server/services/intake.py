"""Receives requests: one message per call, bounded in memory and time, parsed or refused with a typed error.

Rule: every message costs the server a bounded amount of memory and of time on its event loop, even before anything is
known about it. gRPC's own handlers receive and parse a message before our code runs. So `guarded_method.py` registers
each handler as one that reads its message itself, by the intake.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

import grpc

from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError, ServerBusy
from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.current_call import CURRENT_CALL
from streaming_server.scan.admission.memory_pressure import MemoryPressure
from streaming_server.scan.admission.unread_answers import UnreadAnswers
from streaming_server.services.calls import Calls
from streaming_server.services.prompt_turns import PromptTurns

MAX_MESSAGE_BYTES: Final = MAX_REQUEST_BYTES + 64 * 1024
"""The most bytes of one message: the Arrow data of a request and its other fields."""

WINDOW_BYTES: Final = 64 * 1024
"""The receive window of a stream: how many bytes gRPC receives of a call before its handler reads. A message that fits
is not counted against the memory for requests, because the limit of calls per connection bounds their number."""

_PROMPT_CALLS: Final = 4
"""How many messages may be arriving at once without a claim on the memory for requests."""

_PROMPT_SECONDS: Final = 0.02
"""How long a message may be arriving without a claim. Then it claims the memory of the largest message, or is refused.
So the bytes that arrive without a claim are bounded by the speed of the network."""

_PROMPT_SECONDS_IN_QUEUE: Final = 0.005
"""The same for a message whose call had to wait for others. If it is small, it has arrived while its call waited."""

_OPEN_MESSAGE_BYTES: Final = 4096
"""The most bytes of the message of a health call."""

_OPEN_RECEIVE_SECONDS: Final = 2.0
"""How long the message of a health call may take to arrive."""

_LATE_OPEN_CALLS: Final = 4
"""How many messages of health calls may take longer than `_PROMPT_SECONDS` at once. gRPC would receive each of them, up
to the size of the largest message."""

_RETRY_SECONDS: Final = 0.25

Context = grpc.aio.ServicerContext


class Intake:
    """Receives the request of every call, and counts the memory of requests.

    The size of a message is unknown until it has arrived. Small messages arrive at once. A message that takes longer
    than 20 ms claims the memory of the largest message until its size is known. If too little memory is left, it is
    refused with `ServerBusy` before all of it has arrived. The claim ends with the call; for a call that streams its
    response, it ends once the message is parsed.

    Bound to the event loop.

    Attributes:
        calls: The measured calls.
        unread: The answers that clients have not taken yet.
        pressure: Whether the process has memory left for calls.
        claimed_bytes: The memory that requests of more than 64 KiB claim now.
        refused: The number of requests that were refused for lack of memory since the start.
    """

    def __init__(
        self,
        max_bytes: int,
        receive_seconds: float,
        calls: Calls | None = None,
        unread: UnreadAnswers | None = None,
        pressure: MemoryPressure | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Creates an intake without claims.

        Args:
            max_bytes: The most bytes of requests over 64 KiB that may be in memory at once.
            receive_seconds: The seconds after the beginning of its call within which a message must have arrived.
            calls: Measures the calls. None: an object that logs none of them.
            unread: Bounds the memory of answers. None: nothing does.
            pressure: Says when the process has too little memory left for calls. None: never.
            max_message_bytes: A larger message is refused.
        """
        self.calls = calls or Calls(slow_seconds=0)
        self.pressure = pressure or MemoryPressure(None)
        self.unread = unread or UnreadAnswers(sys.maxsize, 0)
        self._max_bytes = max_bytes
        self._receive_seconds = receive_seconds
        self._max_message_bytes = max_message_bytes
        self._prompt = PromptTurns(_PROMPT_CALLS)
        self.claimed_bytes = 0
        self.refused = 0

    async def receive(self, context: Context[Any, Any]) -> tuple[bytes | None, int]:
        """Receives the next message of a call.

        Returns:
            The message, and the bytes that it claims, to be passed to `release`. None: the client sends no more.

        Raises:
            ServerBusy: Too little memory is left for the message.
            InvalidRequest: The message did not arrive in time.
            RequestTooLarge: The message is larger than those of this intake.
        """
        waited = await self._prompt.acquire(context.peer())
        receiving = _IncomingMessage(
            self, self._receive_seconds, _PROMPT_SECONDS_IN_QUEUE if waited else _PROMPT_SECONDS
        )
        began = time.perf_counter()
        try:
            message: Any = await context.read()
            if (call := CURRENT_CALL.get()) is not None:
                call.waited_seconds += time.perf_counter() - began
        except asyncio.CancelledError:
            receiving.end()
            receiving.raise_if_refused()
            raise
        except grpc.aio.BaseError as error:
            receiving.end()
            raise asyncio.CancelledError from error  # The client is gone.
        except BaseException:
            receiving.end()
            raise
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # not in its stub
            receiving.end()
            return None, 0
        claimed = receiving.record_arrival(len(message))
        if len(message) > self._max_message_bytes:
            self.release(claimed)
            raise RequestTooLarge(
                f"the message has {len(message):,} bytes; the limit of this call is {self._max_message_bytes:,}: send "
                "a shorter one"
            )
        return message, claimed

    def claim(self, size: int) -> ServerBusy | None:
        """Claims memory for a request. Returns the refusal if too little is left; otherwise None."""
        if self.claimed_bytes + size > self._max_bytes:
            self.refused += 1
            return ServerBusy(
                f"the server has {self.claimed_bytes:,} bytes of other requests in memory, of at most "
                f"{self._max_bytes:,}: try again",
                retry_after=_RETRY_SECONDS,
            )
        self.claimed_bytes += size
        return None

    def release(self, size: int) -> None:
        """Releases claimed memory."""
        self.claimed_bytes -= size

    def _next_prompt(self) -> None:
        self._prompt.release()


def open_intake() -> Intake:
    """Returns the intake of health calls, which any program can make, so that they take nothing from other calls."""
    return Intake(_LATE_OPEN_CALLS * MAX_MESSAGE_BYTES, _OPEN_RECEIVE_SECONDS, max_message_bytes=_OPEN_MESSAGE_BYTES)


class _IncomingMessage:
    """The receipt of one message: at first without a claim, and after 20 ms either with a claim or refused."""

    def __init__(self, intake: Intake, receive_seconds: float, prompt_seconds: float) -> None:
        self._intake = intake
        self._receive_seconds = receive_seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._prompt = True
        self._claimed = 0
        self._refusal: ScanKvError | None = None
        self._prompt_seconds = prompt_seconds
        self._timer = self._loop.call_later(prompt_seconds, self._late, self._loop.time() + prompt_seconds)

    def _late(self, due: float | None) -> None:
        """Claims memory for the message, or refuses it.

        Args:
            due: When this should have been called. If the event loop stalled after that, the message may have arrived
                unseen, so it gets the same time once more. None: it has had the time twice.
        """
        if due is not None and self._loop.time() - due > self._prompt_seconds:
            self._timer = self._loop.call_later(self._prompt_seconds, self._late, None)
            return
        self._end_prompt()
        refusal = self._intake.claim(MAX_MESSAGE_BYTES)
        if refusal is not None:
            self._refuse(refusal)
            return
        self._claimed = MAX_MESSAGE_BYTES
        self._timer = self._loop.call_later(self._receive_seconds, self._too_late)

    def _too_late(self) -> None:
        self._refuse(InvalidRequest(f"the request did not arrive within {self._receive_seconds:g} s of its call"))

    def _refuse(self, refusal: ScanKvError) -> None:
        self._refusal = refusal
        if self._task is not None:
            self._task.cancel()

    def raise_if_refused(self) -> None:
        """Raises the refusal that caused the present cancellation; returns if something else caused it."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None and self._task is not None and self._task.uncancel() == 0:
            raise refusal from None

    def record_arrival(self, size: int) -> int:
        """Ends the receipt with a message that has arrived. Returns the bytes claimed for it."""
        claimed, self._claimed = self._claimed, 0
        self.end()
        self._intake.release(claimed)
        if size <= WINDOW_BYTES:
            return 0
        if (refusal := self._intake.claim(size)) is not None:
            raise refusal
        return size

    def end(self) -> None:
        """Ends the receipt and releases its claim, whether the message arrived or not."""
        self._timer.cancel()
        self._end_prompt()
        claimed, self._claimed = self._claimed, 0
        self._intake.release(claimed)

    def _end_prompt(self) -> None:
        if self._prompt:
            self._prompt = False
            self._intake._next_prompt()
