"""Receives requests: one message per call, bounded in memory and time, parsed or refused with a typed error.

Rule: every message costs the server a bounded amount of memory and of time on its event loop, even before anything is
known about it. gRPC's own handlers receive and parse a message before our code runs. So `guarded_method.py` registers
each handler as one that reads its message itself, by the intake.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError, ServerBusy
from scankv.model.limits import MAX_REQUEST_BYTES, MESSAGE_BYTES, SMALL_MESSAGE_BYTES
from streaming_server.current_call import CURRENT_CALL
from streaming_server.scan.admission.memory_pressure import MemoryPressure
from streaming_server.scan.admission.unread_answers import UnreadAnswers
from streaming_server.services.arrivals import Arrival, Arrivals
from streaming_server.services.calls import Calls
from streaming_server.services.claims import NO_CLAIM, Claims, MemoryClaim, Sender
from streaming_server.services.prompt_turns import PromptTurns

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.current_call import Metadata
    from streaming_server.services.connection_watch import ConnectionWatch

MAX_MESSAGE_BYTES: Final = MAX_REQUEST_BYTES + 64 * 1024
"""The most bytes of one message: the Arrow data of a request and its other fields."""

WINDOW_BYTES: Final = SMALL_MESSAGE_BYTES
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

_PROMPT_OPEN_CALLS: Final = 2
"""How many messages of health calls may be arriving at once within `_PROMPT_SECONDS`. gRPC would receive each of them,
up to the size of the largest message."""

_LATE_OPEN_CALLS: Final = 1
"""How many may take longer at once."""

_STRANGERS_BYTES: Final = 4 * WINDOW_BYTES
"""The most bytes that a connection without an authenticated call may send while the message of a health call arrives:
at most a window of each call that is refused."""

_STRANGERS_LOOK_SECONDS: Final = 0.002
"""How often this is looked at while a message arrives."""

_SLOW_CALLS: Final = 4
"""How many messages that are announced as small may take longer than `_PROMPT_SECONDS` at once and claim only what they
have announced. gRPC receives what a client sends, up to the size of the largest message, whatever it has announced."""

_SLOW_SECONDS: Final = 2.0
"""How long they may take so. Then they claim the memory of the largest message, or are refused."""

_LOOK_SECONDS: Final = 0.05
"""How often a message that takes long is looked at."""

_MAX_DIGITS: Final = 12
_UNKNOWN: Final = Sender()

Context = grpc.aio.ServicerContext


class Intake:
    """Receives the request of every call, and counts the memory of requests.

    gRPC does not say how much of a message has arrived. A call that announces the size of a large message claims it
    before the message is received. Other messages are small and arrive at once, or they take longer than 20 ms and then
    claim the memory of the largest message, until their size is known. A few that are announced as small may take 2 s
    before that. If too little memory is left, a message is refused with `ServerBusy` before all of it has arrived. The
    claim ends with the call; for a call that streams its response, it ends once the message is parsed.

    A message may be larger than announced, which is known only once it has arrived. So if its connection receives
    clearly more than all its messages may have, the message claims the memory of the largest one, too.

    Bound to the event loop.

    Attributes:
        calls: The measured calls.
        unread: The answers that clients have not taken yet.
        pressure: Whether the process has memory left for calls.
    """

    def __init__(
        self,
        max_bytes: int,
        receive_seconds: float,
        calls: Calls | None = None,
        unread: UnreadAnswers | None = None,
        pressure: MemoryPressure | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        prompt_calls: int = _PROMPT_CALLS,
        received_bytes: Callable[[str], int | None] | None = None,
    ) -> None:
        """Creates an intake without claims.

        Args:
            max_bytes: The most bytes of requests over 64 KiB that may be in memory at once.
            receive_seconds: The seconds after the beginning of its call within which a message must have arrived.
            calls: Measures the calls. None: an object that logs none of them.
            unread: Bounds the memory of answers. None: nothing does.
            pressure: Says when the process has too little memory left for calls. None: never.
            max_message_bytes: A larger message is refused.
            prompt_calls: How many messages may be arriving at once without a claim.
            received_bytes: Returns how many bytes the connection of a peer has received since it began. None: it is
                not known of any.
        """
        self.calls = calls or Calls(slow_seconds=0)
        self.pressure = pressure or MemoryPressure(None)
        self.unread = unread or UnreadAnswers(sys.maxsize, 0)
        self._receive_seconds = receive_seconds
        self._max_message_bytes = max_message_bytes
        self._arrivals = Arrivals(received_bytes or _unknown)
        self._prompt = PromptTurns(prompt_calls)
        self._slow_calls = 0
        self._claims = Claims(max_bytes, MAX_MESSAGE_BYTES)

    @property
    def claimed_bytes(self) -> int:
        """The memory that requests of more than 64 KiB claim now."""
        return self._claims.claimed_bytes

    @property
    def refused(self) -> int:
        """The number of requests that were refused for lack of memory since the start."""
        return self._claims.refused

    async def receive(
        self, context: Context[Any, Any], sender: Sender = _UNKNOWN, announced: int | None = None
    ) -> tuple[bytes | None, MemoryClaim]:
        """Receives the next message of a call.

        Args:
            context: The call.
            sender: Whose shares of the memory the message takes.
            announced: The bytes that the call announces for its message. None: it announces nothing.

        Returns:
            The message, and what it claims, to be passed to `release`. None: the client sends no more.

        Raises:
            ServerBusy: Too little memory is left for the message.
            InvalidRequest: The message did not arrive in time, or is larger than its call has announced.
            RequestTooLarge: The message is larger than those of this intake.
        """
        self._check_size(announced or 0)
        claim, waited = NO_CLAIM, False
        if announced is not None and announced > WINDOW_BYTES:
            claim = self._claims.claim(announced, sender)
        else:
            waited = await self._prompt.acquire(context.peer())
        receiving = _IncomingMessage(
            self,
            self._receive_seconds,
            _PROMPT_SECONDS_IN_QUEUE if waited else _PROMPT_SECONDS,
            sender,
            announced,
            claim,
        )
        began = time.perf_counter()
        try:
            message: Any = await self._read(context)
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
        receiving.end(0 if message is grpc.aio.EOF else len(message))  # type: ignore[attr-defined]  # not in its stub
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # not in its stub
            return None, NO_CLAIM
        return message, self._claim_arrived(len(message), sender, announced)

    async def _read(self, context: Context[Any, Any]) -> object:
        """Returns the next message of a call, or gRPC's `EOF`."""
        return await context.read()

    def _claim_arrived(self, size: int, sender: Sender, announced: int | None) -> MemoryClaim:
        """Claims the memory of a message that has arrived. Raises as `receive`."""
        self._check_size(size)
        if announced is not None and size > announced:
            raise InvalidRequest(
                f"the message has {size:,} bytes; its call has announced {announced:,} in {MESSAGE_BYTES}: announce "
                "the size of the message, or nothing"
            )
        return NO_CLAIM if size <= WINDOW_BYTES else self._claims.claim(size, sender)

    def _check_size(self, size: int) -> None:
        if size > self._max_message_bytes:
            raise RequestTooLarge(
                f"the message has {size:,} bytes; the limit of this call is {self._max_message_bytes:,}: send a "
                "shorter one"
            )

    def release(self, claim: MemoryClaim) -> None:
        """Releases claimed memory."""
        self._claims.release(claim)


def announced_bytes(metadata: Metadata) -> int | None:
    """Returns the bytes that a call announces for its message. None: it announces nothing, or no number."""
    for name, given in metadata:
        if name == MESSAGE_BYTES:
            return int(given) if isinstance(given, str) and given.isdecimal() and len(given) <= _MAX_DIGITS else None
    return None


def _unknown(_: str) -> None:
    """Returns None, for a connection of which nothing is known."""


class OpenIntake(Intake):
    """The intake of health calls, which any program can make, so that they take nothing from other calls.

    gRPC would receive the largest message, and hold the event loop while it copies it. So on Linux, a connection that
    has had no authenticated call ends if it sends too much while the message of a health call arrives.

    Args:
        connections: The connections of clients. That of a message which was refused ends, unless it has had an
            authenticated call, since gRPC would receive its rest.
    """

    def __init__(self, connections: ConnectionWatch) -> None:
        super().__init__(
            _LATE_OPEN_CALLS * MAX_MESSAGE_BYTES,
            _OPEN_RECEIVE_SECONDS,
            max_message_bytes=_OPEN_MESSAGE_BYTES,
            prompt_calls=_PROMPT_OPEN_CALLS,
        )
        self._connections = connections

    async def receive(
        self, context: Context[Any, Any], sender: Sender = _UNKNOWN, announced: int | None = None
    ) -> tuple[bytes | None, MemoryClaim]:
        """As `Intake.receive`. What a call announces only serves to refuse it."""
        peer = context.peer()
        try:
            self._check_size(announced or 0)
            if not self._connections.is_authenticated(peer):
                await self._connections.wait_until_seen(peer)
            return await super().receive(context, sender)
        except ScanKvError:
            self._connections.end_unauthenticated(peer)
            raise

    async def _read(self, context: Context[Any, Any]) -> object:
        peer = context.peer()
        if self._connections.is_authenticated(peer):
            return await super()._read(context)
        before = self._connections.received_bytes(peer) or 0
        reading = asyncio.create_task(super()._read(context))
        try:
            while not reading.done() and not self._connections.is_authenticated(peer):
                if (self._connections.received_bytes(peer) or 0) - before > _STRANGERS_BYTES:
                    raise RequestTooLarge(
                        f"the message, or other calls beside it, have more than {_STRANGERS_BYTES:,} bytes; the limit "
                        f"of a health call is {_OPEN_MESSAGE_BYTES:,}: send a shorter one"
                    )
                await asyncio.wait([reading], timeout=_STRANGERS_LOOK_SECONDS)
            return await reading
        finally:
            reading.cancel()


class _IncomingMessage:
    """The receipt of one message: with a claim from the beginning, or after 20 ms either with a claim or refused."""

    def __init__(
        self,
        intake: Intake,
        receive_seconds: float,
        prompt_seconds: float,
        sender: Sender,
        announced: int | None,
        claim: MemoryClaim,
    ) -> None:
        self._intake = intake
        self._receive_seconds = receive_seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._sender = sender
        self._is_small = announced is not None
        self._slow_ends = 0.0
        self._claim = claim
        self._arrival: Arrival | None = None
        self._prompt = not claim.size
        self._refusal: ScanKvError | None = None
        self._prompt_seconds = prompt_seconds
        self._ends = self._loop.time() + receive_seconds
        if claim.size:
            self._arrival = intake._arrivals.begin(sender.connection, claim.size)
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._wait)
        else:
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
        self._ends = self._loop.time() + self._receive_seconds
        if self._is_small and self._intake._slow_calls < _SLOW_CALLS:
            self._intake._slow_calls += 1
            self._slow_ends = self._loop.time() + _SLOW_SECONDS
            self._claim_late(WINDOW_BYTES)
        else:
            self._claim_late(MAX_MESSAGE_BYTES)

    def _claim_late(self, size: int) -> None:
        """Claims memory instead of what is claimed, and waits on, or refuses the message."""
        claim, self._claim = self._claim, NO_CLAIM
        self._intake.release(claim)
        try:
            self._claim = self._intake._claims.claim(size, self._sender)
        except ServerBusy as refusal:
            self._refuse(refusal)
            return
        if self._arrival is None:
            self._arrival = self._intake._arrivals.begin(self._sender.connection, size)
        else:
            self._arrival.expect(size)
        self._wait()

    def _wait(self) -> None:
        """Looks at the message again and again: what has arrived, for how long, and whether the server has memory."""
        now = self._loop.time()
        if self._ends <= now:
            self._refuse(InvalidRequest(f"the request did not arrive within {self._receive_seconds:g} s of its call"))
        elif self._intake.pressure.is_high:
            self._refuse(self._intake.pressure.refusal())
        elif self._claim.size < MAX_MESSAGE_BYTES and self._may_be_larger(now):
            self._end_slow()
            self._claim_late(MAX_MESSAGE_BYTES)
        else:
            self._timer = self._loop.call_later(min(self._ends - now, _LOOK_SECONDS), self._wait)

    def _may_be_larger(self, now: float) -> bool:
        """Whether the message may be larger than announced: it takes too long, or its connection receives too much."""
        return 0 < self._slow_ends <= now or (self._arrival is not None and self._arrival.is_exceeded)

    def _end_slow(self) -> None:
        if self._slow_ends:
            self._slow_ends = 0.0
            self._intake._slow_calls -= 1

    def _refuse(self, refusal: ScanKvError) -> None:
        self._refusal = refusal
        if self._task is not None:
            self._task.cancel()

    def raise_if_refused(self) -> None:
        """Raises the refusal that caused the present cancellation; returns if something else caused it."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None and self._task is not None and self._task.uncancel() == 0:
            raise refusal from None

    def end(self, size: int = 0) -> None:
        """Ends the receipt and releases its claim, whether the message arrived, with `size` bytes, or not."""
        self._timer.cancel()
        if self._arrival is not None:
            self._arrival.end(size)
        else:
            self._intake._arrivals.record(self._sender.connection, min(size, WINDOW_BYTES))
        self._end_prompt()
        self._end_slow()
        claim, self._claim = self._claim, NO_CLAIM
        self._intake.release(claim)

    def _end_prompt(self) -> None:
        if self._prompt:
            self._prompt = False
            self._intake._prompt.release()
