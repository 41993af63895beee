"""Writes few rows and deletes few keys: encoded one by one, in requests that concurrent calls share."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from aio_client._transport.retry import PASSING_ERRORS, with_retries
from aio_client._transport.shared_calls import SharedCalls
from aio_client._transport.status_errors import typed_error_of
from aio_client._write.repeatable_writes import write_until_answered
from aio_client._write.write_requests import WriteResult
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import ProtocolViolation, ScanKvError
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._table.handle import TableHandle

_MOST_ROWS: Final = 128
"""The most rows that share a request: the server writes so many in a few milliseconds."""


class FewRows(NamedTuple):
    """The rows or keys of one call.

    Attributes:
        encoded: The rows in the row format, or the encoded keys.
        table_incarnation: The table incarnation that they were encoded for.
    """

    encoded: Sequence[bytes]
    table_incarnation: str


class Outcome(NamedTuple):
    """What became of the rows of one call.

    Attributes:
        log_offsets: For every bucket of a row that was written, the offset of the first change after the write.
        failures: Why rows were not written, by their numbers in the call.
    """

    log_offsets: dict[int, int]
    failures: dict[int, ScanKvError]


class RowWrites:
    """Writes few rows of one table; concurrent calls share requests. Belongs to the event loop.

    Calls are applied in the order in which they were made, upserts and deletes apart.
    """

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        self._upserts: SharedCalls[FewRows, Outcome] = SharedCalls(partial(self._send, False), _count, _MOST_ROWS)
        self._deletes: SharedCalls[FewRows, Outcome] = SharedCalls(partial(self._send, True), _count, _MOST_ROWS)

    async def upsert(self, rows: FewRows) -> WriteResult:
        """Writes encoded rows.

        Raises:
            TableRecreated: The table was dropped and created again; nothing was written.
            ScanKvError: The first row that could not be written; the others may have been.
        """
        return await self._write(self._upserts, rows)

    async def delete(self, keys: FewRows) -> WriteResult:
        """Deletes the rows with encoded keys. Raises as `upsert`."""
        return await self._write(self._deletes, keys)

    async def _write(self, calls: SharedCalls[FewRows, Outcome], few: FewRows) -> WriteResult:
        log_offsets = LogOffsets()
        outcome = await calls.call(few)
        log_offsets.advance(outcome.log_offsets, few.table_incarnation)
        if outcome.failures:
            await self._write_again(calls, few, outcome, log_offsets)
        return WriteResult(rows=len(few.encoded), log_offsets=log_offsets)

    async def _write_again(
        self, calls: SharedCalls[FewRows, Outcome], few: FewRows, outcome: Outcome, log_offsets: LogOffsets
    ) -> None:
        """Repeats the rows of buckets that were away for the moment. They were certainly not written."""
        rows, failures = few.encoded, outcome.failures
        refused: ScanKvError | None = _first(failures)

        async def attempt(_: float) -> None:
            nonlocal rows, failures, refused
            rows = [rows[number] for number in sorted(failures)]
            found = await calls.call(FewRows(rows, few.table_incarnation))
            log_offsets.advance(found.log_offsets, few.table_incarnation)
            failures, refused = found.failures, _first(found.failures)
            if refused is not None:
                raise refused

        if not all(isinstance(error, PASSING_ERRORS) for error in failures.values()):
            assert refused is not None
            raise refused
        await with_retries(
            attempt,
            timeout=self._handle.transport.config.operation_timeout,
            # Not if the call itself failed, because its rows may have been written.
            retries=lambda error: error is refused and isinstance(error, PASSING_ERRORS),
        )

    async def _send(self, deletes: bool, calls: Sequence[FewRows]) -> Sequence[Outcome | Exception]:
        outcomes: list[Outcome | Exception] = []
        for incarnation, group in groupby(calls, key=lambda call: call.table_incarnation):
            same = list(group)
            try:
                outcomes += await self._send_one(deletes, same, incarnation)
            except ScanKvError as error:
                outcomes += [error] * len(same)
        return outcomes

    async def _send_one(self, deletes: bool, calls: Sequence[FewRows], incarnation: str) -> list[Outcome]:
        encoded = [each for call in calls for each in call.encoded]
        transport, name = self._handle.transport, self._handle.name
        with transport.writers.one() as writer:
            identity = writer.next_identity()
            response = await write_until_answered(
                transport,
                write_pb2.DeleteRequest(
                    table=name, encoded_keys=encoded, table_incarnation=incarnation, writer=identity
                )
                if deletes
                else write_pb2.UpsertRequest(
                    table=name, encoded_rows=encoded, table_incarnation=incarnation, writer=identity
                ),
            )
        buckets, offsets = response.buckets, dict(response.log_offsets)
        failures = {
            number: error for failure in response.failures for error in [_error_of(failure)] for number in failure.rows
        }
        if len(buckets) != len(encoded) or not all(
            number in failures or bucket in offsets for number, bucket in enumerate(buckets)
        ):
            raise ProtocolViolation(
                f"the server answered a write of {len(encoded):,} rows for {len(buckets):,} rows, and for buckets "
                f"{sorted(offsets)}: the rows may have been written"
            )
        outcomes, start = [], 0
        for call in calls:
            end = start + len(call.encoded)
            refused = {number - start: error for number, error in failures.items() if start <= number < end}
            written = {
                bucket: offsets[bucket] for number, bucket in enumerate(buckets[start:end]) if number not in refused
            }
            outcomes.append(Outcome(written, refused))
            start = end
        return outcomes


def _count(few: FewRows) -> int:
    return len(few.encoded)


def _first(failures: dict[int, ScanKvError]) -> ScanKvError | None:
    return failures[min(failures)] if failures else None


def _error_of(failure: write_pb2.WriteFailure) -> ScanKvError:
    error = typed_error_of(failure.status)
    if error is None:
        return ProtocolViolation("the server refused rows for a reason that this client does not know: upgrade it")
    return error
