"""Writes few rows and deletes few keys: encoded one by one, in requests that concurrent calls share."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from copy import copy
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from aio_client._transport.retry import PASSING_ERRORS
from aio_client._transport.shared_calls import SharedCalls
from aio_client._write.repeatable_writes import write_attempts
from aio_client._write.write_requests import WriteResult
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.counts import counted
from scankv.model.errors import (
    ConnectionFailed,
    InvalidRequest,
    ProtocolViolation,
    ScanKvError,
    UnknownField,
    UpgradeNotConfirmed,
)
from scankv.model.typed_errors import typed_error_of
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aio_client._table.handle import TableHandle
    from aio_client._write.repeatable_writes import Request

_MOST_ROWS: Final = 128
"""The most rows that share a request. The server writes this many in a few milliseconds."""

_ENCODED: Final = ("encoded_rows", "encoded_keys")
"""The options that an error names if the complete request must be sent as Arrow data."""


class NeedsArrowError(Exception):
    """The server does not take these rows one by one: the table was altered, or the server is old. Nothing was written.

    A server of version 0.1.0 knows no encoded rows, and a later one refuses independent rows until the upgrade of its
    data directory is confirmed.
    """


class EncodedRows(NamedTuple):
    """The rows or keys of one call.

    Attributes:
        encoded: The rows in the row format, or the encoded keys.
        table_incarnation: The table incarnation that they were encoded for.
    """

    encoded: Sequence[bytes]
    table_incarnation: str


class CallOutcome(NamedTuple):
    """What became of the rows of one call.

    Attributes:
        log_offsets: For every bucket of a row that was written, the offset of the first change after the write.
        failures: Why rows were not written, by their numbers in the call.
        repeats: The repeats of the request, if some of its buckets were temporarily unavailable.
    """

    log_offsets: dict[int, int]
    failures: dict[int, ScanKvError]
    repeats: Repeats | None = None


class Repeats(NamedTuple):
    """The repeats of a request.

    Attributes:
        outcomes: The final outcome of each call of the request, or the error of all.
        number: The number of the call within the request.
        are_shared: Whether the request has several calls.
    """

    outcomes: asyncio.Task[list[CallOutcome] | ScanKvError]
    number: int
    are_shared: bool

    async def wait(self) -> CallOutcome:
        """Returns the final outcome of the call. Raises the error that ended the repeats.

        A caller that is cancelled ends the repeats of its own request: later, they could overtake its next write.
        """
        outcomes = await (asyncio.shield(self.outcomes) if self.are_shared else self.outcomes)
        if isinstance(outcomes, ScanKvError):
            raise copy(outcomes)
        return outcomes[self.number]


class RowWrites:
    """Writes few rows of one table; concurrent calls with one row share requests. Belongs to the event loop.

    Upserts with one row are applied in the order of the calls, and so are deletes with one key. An upsert and a delete
    that overlap have no order.
    """

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        # The event loop refers to tasks only weakly, and all callers may be cancelled.
        self._repeats: set[asyncio.Task[list[CallOutcome] | ScanKvError]] = set()
        tracer = handle.transport.tracer
        self._upserts: SharedCalls[EncodedRows, CallOutcome] = SharedCalls(
            partial(self._send, False), _count, _MOST_ROWS, tracer
        )
        self._deletes: SharedCalls[EncodedRows, CallOutcome] = SharedCalls(
            partial(self._send, True), _count, _MOST_ROWS, tracer
        )

    @property
    def are_usable(self) -> bool:
        """Whether the server has not refused encoded rows because of its version, or of its data directory's format."""
        return self._handle.transport.takes_encoded_writes

    async def upsert(self, rows: EncodedRows) -> WriteResult:
        """Writes encoded rows.

        Raises:
            TableRecreated: The table was restored, or dropped and created again; nothing was written.
            NeedsArrowError: Encoded rows are refused; nothing was written.
            ScanKvError: The first row that could not be written; the others may have been.
        """
        return await self._write(self._upserts, rows)

    async def delete(self, keys: EncodedRows) -> WriteResult:
        """Deletes the rows with encoded keys. Raises the errors of `upsert`."""
        return await self._write(self._deletes, keys)

    async def _write(self, calls: SharedCalls[EncodedRows, CallOutcome], few: EncodedRows) -> WriteResult:
        try:
            outcome = await (calls.call(few) if len(few.encoded) == 1 else self._send_alone(calls, few))
        except (InvalidRequest, UnknownField, UpgradeNotConfirmed) as error:
            if _needs_arrow(error):
                raise NeedsArrowError from error
            raise
        if outcome.repeats is not None and any(map(_is_passing, outcome.failures.values())):
            outcome = await outcome.repeats.wait()
        if outcome.failures:
            # A copy, because calls share errors, and raising one adds to its traceback.
            raise copy(outcome.failures[min(outcome.failures)])
        log_offsets = LogOffsets()
        log_offsets.advance(outcome.log_offsets, few.table_incarnation)
        return WriteResult(rows=len(few.encoded), log_offsets=log_offsets)

    async def _send_alone(self, calls: SharedCalls[EncodedRows, CallOutcome], few: EncodedRows) -> CallOutcome:
        """Sends a call with several rows in a request of its own, in which a refused row or bucket refuses all."""
        (outcome,) = await self._send_one(calls is self._deletes, [few], few.table_incarnation, independent=False)
        return outcome

    async def _send(self, deletes: bool, calls: Sequence[EncodedRows]) -> Sequence[CallOutcome | Exception]:
        outcomes: list[CallOutcome | Exception] = []
        for incarnation, group in groupby(calls, key=lambda call: call.table_incarnation):
            same = list(group)
            try:
                outcomes += await self._send_one(deletes, same, incarnation, independent=True)
            except ScanKvError as error:
                outcomes += [copy(error) for _ in same]
        return outcomes

    async def _send_one(
        self, deletes: bool, calls: Sequence[EncodedRows], incarnation: str, *, independent: bool
    ) -> list[CallOutcome]:
        encoded = [each for call in calls for each in call.encoded]
        transport, name = self._handle.transport, self._handle.name
        with ExitStack() as held:
            identity = held.enter_context(transport.writers.one()).next_identity()
            request: Request = (
                write_pb2.DeleteRequest(
                    table=name,
                    encoded_keys=encoded,
                    table_incarnation=incarnation,
                    independent=independent,
                    writer=identity,
                )
                if deletes
                else write_pb2.UpsertRequest(
                    table=name,
                    encoded_rows=encoded,
                    table_incarnation=incarnation,
                    independent=independent,
                    writer=identity,
                )
            )
            send = write_attempts(transport, request)
            is_unanswered = False

            async def attempt(deadline: float) -> write_pb2.WriteResponse:
                nonlocal is_unanswered
                try:
                    return await send(deadline)
                except ConnectionFailed:
                    is_unanswered = True
                    raise

            try:
                outcomes = _outcomes(await transport.retry(attempt, request, retries=_is_passing), calls)
            except (InvalidRequest, UnknownField, UpgradeNotConfirmed) as error:
                if not isinstance(error, InvalidRequest):
                    transport.takes_encoded_writes = False
                if is_unanswered and _needs_arrow(error):
                    # As Arrow data, they would be written a second time.
                    raise ConnectionFailed(
                        f"table {name} was altered, or its server replaced by an older one, while a write got no "
                        "answer, so its rows may have been written: read them before you write them again"
                    ) from error
                raise
            if _passing_error(outcomes) is not None:
                # In a task, so that the calls of other buckets need not wait. The request keeps its identity: rows may
                # have been written before their bucket failed, and only the identity keeps them from being written
                # twice.
                task = asyncio.create_task(self._repeat(request, send, calls, held.pop_all()))
                self._repeats.add(task)
                task.add_done_callback(self._repeats.discard)
                several = len(calls) > 1
                outcomes = [
                    outcome._replace(repeats=Repeats(task, number, several)) for number, outcome in enumerate(outcomes)
                ]
        return outcomes

    async def _repeat(
        self,
        request: Request,
        send: Callable[[float], Awaitable[write_pb2.WriteResponse]],
        calls: Sequence[EncodedRows],
        held: ExitStack,
    ) -> list[CallOutcome] | ScanKvError:
        """Repeats a request until all buckets are available. Returns its error, because no caller may wait for it.

        `held` keeps the writer of the request.
        """

        async def attempt(deadline: float) -> list[CallOutcome]:
            outcomes = _outcomes(await send(deadline), calls)
            if (error := _passing_error(outcomes)) is not None:
                raise error
            return outcomes

        with held:
            try:
                return await self._handle.transport.retry(attempt, request, retries=_is_passing)
            except ScanKvError as error:
                return error


def _outcomes(response: write_pb2.WriteResponse, calls: Sequence[EncodedRows]) -> list[CallOutcome]:
    """Returns the part of each call in the response to all. Raises ProtocolViolation."""
    buckets, offsets, count = response.buckets, dict(response.log_offsets), sum(map(_count, calls))
    failures = {
        number: error for failure in response.failures for error in [_error_of(failure)] for number in failure.rows
    }
    if len(buckets) != count or not all(
        number in failures or bucket in offsets for number, bucket in enumerate(buckets)
    ):
        raise ProtocolViolation(
            f"the server answered a write of {counted(count, 'row')} for {counted(len(buckets), 'row')}, and for "
            f"buckets {sorted(offsets)}: the rows may have been written"
        )
    outcomes, start = [], 0
    for call in calls:
        end = start + len(call.encoded)
        refused = {
            number - start: _renumber(error, number, number - start)
            for number, error in failures.items()
            if start <= number < end
        }
        written = {bucket: offsets[bucket] for number, bucket in enumerate(buckets[start:end]) if number not in refused}
        outcomes.append(CallOutcome(written, refused))
        start = end
    return outcomes


def _renumber(error: ScanKvError, number: int, in_call: int) -> ScanKvError:
    """Returns the error of a row of a request with the number of the row in its call."""
    if number == in_call or error.details.get("row") != str(number):
        return error
    renumbered = copy(error)
    renumbered.message = error.message.replace(f"row {number}", f"row {in_call}", 1)
    renumbered.args = (renumbered.message,)
    renumbered.details = {**error.details, "row": str(in_call)}
    return renumbered


def _passing_error(outcomes: Sequence[CallOutcome]) -> ScanKvError | None:
    errors = (error for outcome in outcomes for error in outcome.failures.values())
    return next(filter(_is_passing, errors), None)


def _needs_arrow(error: ScanKvError) -> bool:
    """Whether the rows of a refused request can be written as Arrow data."""
    return not isinstance(error, InvalidRequest) or error.details.get("option") in _ENCODED


def _is_passing(error: ScanKvError) -> bool:
    return isinstance(error, PASSING_ERRORS)


def _count(few: EncodedRows) -> int:
    return len(few.encoded)


def _error_of(failure: write_pb2.WriteFailure) -> ScanKvError:
    error = typed_error_of(failure.status)
    if error is None:
        return ProtocolViolation("the server refused rows for a reason that this client does not know: upgrade it")
    return error
