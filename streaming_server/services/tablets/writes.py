"""Writes to tables with tablets: each tablet writes the rows of its buckets, once the owner of the table admits them.

The owner of the table checks a request completely, and has the column locks of the table. A request whose keys must be
unchanged is checked at all of its tablets, and then written, while no other request is written to them.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from scankv.model.changes.log_offsets import check_offsets_of
from scankv.model.errors import LockLost, RequestTooLarge, ScanKvError, TableRecreated, Unavailable
from scankv.model.limits import MAX_ENCODED_ROWS
from scankv.model.typed_errors import typed_error_of
from scankv.v1 import write_pb2
from streaming_server.current_call import claim_answer
from streaming_server.engine.merging.preparing import current_columns
from streaming_server.services.errors import status_of
from streaming_server.services.forwarding import RETRY_SECONDS
from streaming_server.services.tablets.dividing import DELETE_CALL, UPSERT_CALL, divide_rows, places_of, without
from streaming_server.services.tablets.owner_calls import HOLD_SECONDS
from streaming_server.services.tablets.transactions import stage_write
from streaming_server.services.write import (
    ERROR_BYTES,
    check_is_for_tablet,
    check_same_table,
    kind_of,
    preconditions_of,
)
from streaming_server.storage.files.disk_space import refusal_of_write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.services.tablets.dividing import Places
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_Request: TypeAlias = "write_pb2.UpsertRequest | write_pb2.DeleteRequest"
_Answers: TypeAlias = "Mapping[int, write_pb2.WriteResponse | ScanKvError]"

_NO_LOCK: Final = "-"
"""An id that no column lock has. With it, a tablet answers only requests that it has written before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedWrite:
    """A write request to a table with tablets.

    Attributes:
        calls: The calls about the tablets.
        method: The method.
        terms: The request, possibly without its rows.
        columns: The columns that the request writes. None: all.
        requests: The requests for the tablets.
        places: The positions of the encoded rows or keys that each tablet gets.
        buckets: The bucket of each encoded row or key.
    """

    calls: TabletCalls
    method: str
    terms: _Request
    columns: Sequence[str] | None
    requests: Mapping[int, Any]
    places: Places = field(default_factory=dict)
    buckets: Sequence[int] = ()

    async def run(self) -> write_pb2.WriteResponse:
        """Has all tablets write their rows, and joins their answers."""
        writer, calls = self.terms.writer, self.calls
        used = [f"{calls.definition.incarnation} {writer.id}"] if writer.epoch else []
        async with calls.tables.tablets.writers.using(used):
            with ExitStack() as admissions:
                try:
                    admissions.enter_context(calls.table.writes.locks.admit(self.columns, self.terms.column_locks))
                except ScanKvError as error:
                    return await self._repeat(error)
                return self._join(await self._write())

    async def _write(self) -> _Answers:
        ask = partial(self.calls.ask, self.method, answer=write_pb2.WriteResponse)
        if self.terms.independent:
            return await self.calls.ask_each(self.method, self.requests, write_pb2.WriteResponse)
        if len(self.requests) > 1 and self.terms.HasField("unchanged_since"):
            loop = asyncio.get_running_loop()
            async with self.calls.hold(self.requests) as holds:
                ends = loop.time() + HOLD_SECONDS / 2
                await ask(self._checks(), holds=holds)
                if loop.time() > ends:
                    raise Unavailable(
                        "the check of the keys has taken too long, and nothing was written: try again",
                        retry_after=RETRY_SECONDS,
                    )
                return await ask(self.requests, holds=holds)
        if len(self.requests) > 1 and self.terms.writer.sent_millis_ago:
            # A tablet may have forgotten that it has written the request. Then it refuses the check.
            await ask(self._checks())
        return await ask(self.requests)

    def _checks(self) -> dict[int, Any]:
        """Returns requests that write nothing."""
        checks = {}
        for tablet, request in self.requests.items():
            checks[tablet] = type(request)()
            checks[tablet].CopyFrom(request)
            checks[tablet].only_checks = True
        return checks

    async def _repeat(self, refusal: ScanKvError) -> write_pb2.WriteResponse:
        """Answers a request that is not admitted, if it was written before. Otherwise raises the refusal."""
        if not self.terms.HasField("writer"):
            if not self.terms.independent:
                raise refusal
            return self._answer([_failure(range(len(self.buckets)), refusal)])
        for request in self.requests.values():
            request.column_locks[:] = [_NO_LOCK]
        answers = await self.calls.ask_each(self.method, self.requests, write_pb2.WriteResponse)
        if not self.terms.independent and any(isinstance(each, ScanKvError) for each in answers.values()):
            raise refusal
        return self._join(answers, refusal)

    def _join(self, answers: _Answers, refusal: ScanKvError | None = None) -> write_pb2.WriteResponse:
        """Returns one answer. Independent rows of a tablet that has refused its request have its error.

        Args:
            answers: The answers of the tablets, and their errors.
            refusal: Why rows that were not written before are not admitted.
        """
        errors = [each for each in answers.values() if isinstance(each, ScanKvError)]
        if len(errors) == len(answers):
            raise errors[0]
        joined = self._answer()
        for tablet, answer in answers.items():
            numbers = self.places[tablet].tolist() if tablet in self.places else []
            if isinstance(answer, ScanKvError):
                joined.failures.append(_failure(numbers, answer))
                continue
            joined.rows += answer.rows
            for bucket, offset in answer.log_offsets.items():
                joined.log_offsets[bucket] = offset
            for failure in answer.failures:
                rows = [numbers[row] for row in failure.rows]
                joined.failures.append(_failure(rows, _error_in(failure, numbers, refusal)))
        return joined

    def _answer(self, failures: Sequence[write_pb2.WriteFailure] = ()) -> write_pb2.WriteResponse:
        incarnation = self.calls.definition.incarnation
        return write_pb2.WriteResponse(table_incarnation=incarnation, buckets=self.buckets, failures=failures)


def _failure(rows: Sequence[int], error: ScanKvError) -> write_pb2.WriteFailure:
    return write_pb2.WriteFailure(rows=rows, status=status_of(refusal_of_write(error)).SerializeToString())


def _error_in(failure: write_pb2.WriteFailure, numbers: Sequence[int], refusal: ScanKvError | None) -> ScanKvError:
    """Returns the error of rows, which names a row by its number in the request to the table."""
    error = typed_error_of(failure.status)
    assert error is not None
    if refusal is not None and isinstance(error, LockLost) and error.details.get("lock") == _NO_LOCK:
        return refusal
    at = error.details.get("row")
    if at is None:
        return error
    row = numbers[int(at)]
    renumbered = type(error)(error.message.replace(f"row {at}", f"row {row}", 1), retry_after=error.retry_after)
    renumbered.details.update(error.details, row=str(row))
    return renumbered


async def upsert(request: write_pb2.UpsertRequest, calls: TabletCalls) -> write_pb2.WriteResponse:
    """Writes rows: see `WriteService.Upsert`. The request is checked completely before any tablet gets its rows."""
    check_is_for_tablet(request)
    if request.HasField("transaction"):
        return await stage_write(request, calls)
    if request.encoded_rows:
        return await _few(request, "encoded_rows", UPSERT_CALL, calls, _keys_of_rows(request.encoded_rows, calls))
    calls.table.state.reserve.check(len(request.rows))
    preconditions_of(request).check_history(calls.definition)
    kind = replace(kind_of(request), tracks_changes=not request.untracked)
    check = calls.table.writes.check_upsert(request.rows, request.schema_id, kind)
    return await (await _divide(request, "rows", request.rows, UPSERT_CALL, calls, check)).run()


async def delete(request: write_pb2.DeleteRequest, calls: TabletCalls) -> write_pb2.WriteResponse:
    """Deletes rows: see `WriteService.Delete`. The request is checked as in `upsert`."""
    check_is_for_tablet(request)
    if request.HasField("transaction"):
        return await stage_write(request, calls)
    if request.encoded_keys:
        return await _few(request, "encoded_keys", DELETE_CALL, calls, list(request.encoded_keys))
    preconditions_of(request).check_history(calls.definition)
    check = calls.table.writes.check_delete(request.keys, kind_of(request), request.schema_id)
    return await (await _divide(request, "keys", request.keys, DELETE_CALL, calls, check)).run()


async def _divide(
    request: _Request,
    name: str,
    data: bytes,
    method: str,
    calls: TabletCalls,
    check: Any,  # noqa: ANN401
) -> DividedWrite:
    """Checks the rows or keys in a field of a request, and divides them."""
    check_same_table(request, calls.definition)
    terms, definition, run = preconditions_of(request), calls.definition, calls.table.state.executor.run
    if terms.unchanged_since is not None:
        definition.require_key("a write cannot depend on whether its keys have changed")
        check_offsets_of(definition, terms.unchanged_since.table_incarnation)
    await run(check)
    requests: dict[int, Any] = {}
    schema_id = request.schema_id or definition.schema.id
    for tablet, (_, rows) in (await run(divide_rows, data, calls)).items():
        each = requests[tablet] = _for_tablet(request, name, tablet, calls)
        setattr(each, name, rows)
        # The owner of the tablet may know later columns.
        each.schema_id = schema_id
    columns = current_columns(definition, schema_id, tuple(request.columns))
    return DividedWrite(calls=calls, method=method, terms=request, columns=columns, requests=requests)


def _for_tablet(request: _Request, name: str, tablet: int, calls: TabletCalls) -> Any:  # noqa: ANN401  # its type
    """Returns the request for a tablet, without rows or keys. Removes them from the request to the table, too."""
    each, definition = without(request, name), calls.tablets[tablet]
    each.table = definition.name
    # The owner of the table has admitted the request.
    each.ClearField("column_locks")
    each.admitted = True
    if each.table_incarnation:
        each.table_incarnation = definition.incarnation
    if request.HasField("unchanged_since"):
        if each.unchanged_since.table_incarnation:
            each.unchanged_since.table_incarnation = definition.incarnation
        for bucket in set(each.unchanged_since.by_bucket) - set(definition.own_buckets):
            del each.unchanged_since.by_bucket[bucket]
    return each


def _keys_of_rows(rows: Sequence[bytes], calls: TabletCalls) -> list[bytes]:
    """Returns the encoded keys of encoded rows. The key of a row that cannot be read is empty."""
    single = calls.table.state.codec.single
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(b"" if single is None else single.read(row, number)[0])
        except ScanKvError:
            found.append(b"")
    return found


async def _few(
    request: _Request, name: str, method: str, calls: TabletCalls, keys: Sequence[bytes]
) -> write_pb2.WriteResponse:
    """Writes few encoded rows, or deletes the rows of few encoded keys."""
    if len(keys) > MAX_ENCODED_ROWS:
        raise RequestTooLarge(
            f"the request has {len(keys):,} encoded rows; the limit is {MAX_ENCODED_ROWS:,}: send Arrow data"
        )
    preconditions_of(request)
    if request.table_incarnation != calls.definition.incarnation:
        table = calls.definition.name
        raise TableRecreated(f"table {table} was restored, or dropped and created again: open it again", table=table)
    data = list(getattr(request, name))
    buckets = list(map(calls.table.state.codec.keys.bucket_of, keys))
    places = places_of(calls, buckets)
    if request.independent:
        claim_answer(ERROR_BYTES * len(data))
    elif len(places) > 1:
        # A row that is refused refuses the complete request, so one call checks all rows first.
        check = partial(calls.table.writes.check_few, data, deletes=method == DELETE_CALL)
        await calls.table.state.executor.run(check)
    requests: dict[int, Any] = {}
    for tablet, numbers in places.items():
        requests[tablet] = _for_tablet(request, name, tablet, calls)
        getattr(requests[tablet], name).extend([data[number] for number in numbers.tolist()])
    write = DividedWrite(
        calls=calls,
        method=method,
        terms=request,
        columns=None,
        requests=requests,
        places=places,
        buckets=buckets,
    )
    return await write.run()
