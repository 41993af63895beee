"""Requests of transactions to tables with tablets: tablets stage fragments, the owner of the table a summary."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import grpc

from scankv.model.errors import RequestTooLarge, ScanKvError, Unavailable
from scankv.model.limits import MAX_LOOKUP_KEYS
from scankv.v1 import lookup_pb2, transaction_pb2, worker_pb2, write_pb2
from streaming_server.engine.bucket.request_rows import read_batch, read_request
from streaming_server.engine.merging.preparing import current_kind
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.transactions.staged_rows import request_check
from streaming_server.services.tablets.dividing import (
    DELETE_CALL,
    UPSERT_CALL,
    divide_rows,
    join_found,
    to_ipc,
    without,
)
from streaming_server.services.write import check_same_table, kind_of, staged_id_of
from streaming_server.storage.transactions.staging import DELETE, READ, UPSERT, StagedRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from google.protobuf.message import Message

    from streaming_server.engine.merging.preparing import WriteKind
    from streaming_server.engine.transactions.open_transaction import OpenTransaction
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_Response = TypeVar("_Response", bound="Message")

RowsOfTablet: TypeAlias = "tuple[npt.NDArray[np.int64], bytes]"
"""The positions in the request of the rows that a tablet gets, and these rows."""

_TRANSACTIONS: Final = "scankv.v1.TransactionService"
_DISCARD: Final = "scankv.v1.TabletService/DiscardFragments"
_DISCARD_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragments of one request of a transaction.

    Attributes:
        calls: The calls about the tablets.
        transaction: The transaction at this worker.
        request_id: The request, with what identifies its fragments.
    """

    calls: TabletCalls
    transaction: OpenTransaction
    request_id: StagedRequestId

    async def stage(
        self,
        method: str,
        requests: Mapping[int, Message],
        answer: type[_Response],
        holds: Mapping[int, str] | None = None,
    ) -> dict[int, _Response]:
        """Has tablets stage fragments. If a tablet refuses its fragment, all tablets discard theirs.

        A transaction that locks keys asks one tablet after another, in the order of all such transactions.
        """
        try:
            if self.transaction.options.lock_wait is None:
                return await self.calls.ask(method, requests, answer, holds)
            answers: dict[int, _Response] = {}
            for number in sorted(requests, key=lambda each: (self.calls.owner_of(each), each)):
                answers |= await self.calls.ask(method, {number: requests[number]}, answer)
            return {number: answers[number] for number in requests}
        except ScanKvError:
            await self.discard(requests)
            raise

    async def read(self, method: str, requests: Mapping[int, Message], answer: type[_Response]) -> dict[int, _Response]:
        """Has tablets stage reads, as `stage`. In all tablets, rows expire as of one time."""
        answers = await self.stage(method, requests, answer)
        if self.transaction.options.lock_wait is None or len(requests) == 1:
            return answers
        # Each tablet may have waited for its locks. Now the transaction has all, so repeated requests do not wait.
        self.calls.decide()
        try:
            return await self.calls.ask(method, requests, answer)
        except ScanKvError:
            await self.discard(requests)
            raise

    async def discard(self, tablets: Iterable[int]) -> None:
        """Has tablets remove the fragments. As long as a tablet keeps one, the transaction cannot be committed."""
        place = self.request_id
        request = worker_pb2.DiscardFragmentsRequest(token=place.token, part=place.part, sequence=place.sequence)
        workers, data = self.calls.workers, request.SerializeToString()

        async def discard(owner: int) -> None:
            try:
                await workers.ask(owner, _DISCARD, data, _DISCARD_SECONDS, of_server=True)
            except grpc.aio.AioRpcError:
                return

        await asyncio.gather(*map(discard, sorted(set(map(self.calls.owner_of, tablets)))))

    async def find(self) -> StagedRequest | None:
        """Returns the summary of the request, if it is staged.

        Raises:
            InvalidRequest: See `RequestSummaries.find`.
            Unavailable: Tablets had fragments of another request of its number. They have been asked to discard them.
        """
        summaries = self.calls.tables.transactions.summaries
        try:
            return await summaries.find(self.transaction, self.request_id, self.calls.definition.name)
        except Unavailable:
            await self.discard(range(len(self.calls.tablets)))
            raise

    async def finish(self, action: str, rows: int, tablets: Iterable[int], **terms: object) -> None:
        """Stages the summary: from now on, the request is staged."""
        definition = self.calls.definition
        summary = StagedRequest(
            part=self.request_id.part,
            table=definition.name,
            incarnation=definition.incarnation,
            action=action,
            rows=rows,
            buckets={},
            tablets=tuple(self.calls.tablets[each].name for each in sorted(tablets)),
        )
        summary = replace(summary, **terms)  # type: ignore[arg-type]  # fields of the class
        await self.calls.tables.transactions.summaries.add(self.transaction, self.request_id, summary)


def _with_digest(request_id: StagedRequestId, request: Message) -> StagedRequestId:
    """Returns a request with the digest that identifies its fragments. Other requests of its number have others."""
    data = request.SerializeToString(deterministic=True)
    return replace(request_id, fragment=hashlib.blake2b(data, digest_size=16).hexdigest())


async def stage_write(
    request: write_pb2.UpsertRequest | write_pb2.DeleteRequest, calls: TabletCalls
) -> write_pb2.WriteResponse:
    """Stages an upsert or a delete as a part of its transaction: see `StagedAs`."""
    check_same_table(request, calls.definition)
    request_id, table = _with_digest(staged_id_of(request), request), calls.table
    is_upsert, kind = isinstance(request, write_pb2.UpsertRequest), kind_of(request)
    action, method, field = (UPSERT, UPSERT_CALL, "rows") if is_upsert else (DELETE, DELETE_CALL, "keys")
    data: bytes = getattr(request, field)
    summaries = calls.tables.transactions.summaries
    async with summaries.turn(request_id) as transaction:
        fragments = Fragments(calls, transaction, request_id)
        staged = await fragments.find()
        if staged is not None:
            return write_pb2.WriteResponse(rows=staged.rows)
        if is_upsert:
            table.state.reserve.check(len(data))
        rows, _ = await table.state.executor.run(request_check(table, action, data, request.schema_id, kind))
        _check_columns(calls, kind, request)
        parts = await table.state.executor.run(divide_rows, data, calls)
        _add_observers(parts, data, transaction, calls)
        requests = _requests_of(request, field, parts, request_id, calls)
        await fragments.stage(method, requests, write_pb2.WriteResponse)
        transaction.observed.add(calls.definition.incarnation)
        await fragments.finish(
            action,
            rows,
            requests,
            schema_id=request.schema_id or calls.definition.schema.id,
            columns=kind.columns,
            overwrite=kind.overwrite,
            column_locks=tuple(sorted(set(request.column_locks))),
        )
    return write_pb2.WriteResponse(rows=rows)


def _check_columns(
    calls: TabletCalls, kind: WriteKind, request: write_pb2.UpsertRequest | write_pb2.DeleteRequest
) -> None:
    """Raises ColumnLocked or LockLost if a lock forbids the write."""
    current = current_kind(calls.definition, request.schema_id, kind)
    with calls.table.writes.locks.admit(current.columns or None, request.column_locks):
        pass


def _add_observers(
    parts: dict[int, RowsOfTablet], data: bytes, transaction: OpenTransaction, calls: TabletCalls
) -> None:
    """Adds fragments without rows for the first write to the table: from then on, a change is a conflict everywhere."""
    if transaction.options.finds_conflicts and calls.definition.incarnation not in transaction.observed:
        batch = read_batch(data)
        nothing = (batch.num_rows and to_ipc(batch.slice(0, 0))) or data
        for number in range(len(calls.tablets)):
            parts.setdefault(number, (parts[min(parts)][0][:0], nothing))


def _requests_of(
    request: write_pb2.UpsertRequest | write_pb2.DeleteRequest,
    field: str,
    parts: Mapping[int, RowsOfTablet],
    request_id: StagedRequestId,
    calls: TabletCalls,
) -> dict[int, Message]:
    requests: dict[int, Message] = {}
    for tablet, (_, data) in parts.items():
        each = requests[tablet] = without(request, field)
        each.table, each.transaction.fragment = calls.tablets[tablet].name, request_id.fragment
        each.ClearField("column_locks")
        each.schema_id = request.schema_id or calls.definition.schema.id
        setattr(each, field, data)
    return requests


async def get_for_update(
    request: transaction_pb2.GetForUpdateRequest, calls: TabletCalls
) -> transaction_pb2.GetForUpdateResponse:
    """Reads rows on which the commit depends: see `TransactionService.GetForUpdate`."""
    request_id = StagedRequestId(token=request.token, part=request.part, sequence=request.sequence)
    request_id, summaries = _with_digest(request_id, request), calls.tables.transactions.summaries
    async with summaries.turn(request_id) as transaction:
        # A repeated request reads again, and stages nothing.
        fragments = Fragments(calls, transaction, request_id)
        await fragments.find()
        parts = await _divide_keys(request.keys, calls)
        requests: dict[int, Message] = {}
        for tablet, (_, keys) in parts.items():
            requests[tablet] = transaction_pb2.GetForUpdateRequest(
                token=request.token,
                part=request.part,
                sequence=request.sequence,
                table=calls.tablets[tablet].name,
                keys=keys,
                fragment=request_id.fragment,
            )
        answers = await fragments.read(f"{_TRANSACTIONS}/GetForUpdate", requests, transaction_pb2.GetForUpdateResponse)
        joined = await _join(answers, parts, calls)
        await fragments.finish(READ, len(joined.found), requests)
    return transaction_pb2.GetForUpdateResponse(
        rows=joined.rows, found=joined.found, table_incarnation=joined.table_incarnation, schema_id=joined.schema_id
    )


async def look_up_staged(
    request: transaction_pb2.LookupStagedRequest, calls: TabletCalls
) -> transaction_pb2.LookupStagedResponse:
    """Reads rows with what a part has staged: see `TransactionService.LookupStaged`."""
    place = StagedRequestId(token=request.token, part=request.part, sequence=request.requests)
    calls.tables.transactions.summaries.check_lookup(place, calls.definition)
    parts = await _divide_keys(request.keys, calls)
    requests = {
        tablet: transaction_pb2.LookupStagedRequest(
            token=request.token,
            part=request.part,
            requests=request.requests,
            table=calls.tablets[tablet].name,
            keys=keys,
        )
        for tablet, (_, keys) in parts.items()
    }
    answers = await calls.ask(f"{_TRANSACTIONS}/LookupStaged", requests, transaction_pb2.LookupStagedResponse)
    joined = await _join(answers, parts, calls)
    return transaction_pb2.LookupStagedResponse(
        rows=joined.rows, found=joined.found, table_incarnation=joined.table_incarnation, schema_id=joined.schema_id
    )


async def _divide_keys(keys: bytes, calls: TabletCalls) -> dict[int, RowsOfTablet]:
    run = calls.table.state.executor.run
    batch: pa.RecordBatch = await run(read_request, keys, calls.definition.key_schema)
    if batch.num_rows > MAX_LOOKUP_KEYS:
        raise RequestTooLarge(
            f"the lookup has {batch.num_rows:,} keys; the limit is {MAX_LOOKUP_KEYS:,}: ask for fewer"
        )
    return await run(divide_rows, keys, calls)


async def _join(
    answers: Mapping[int, transaction_pb2.GetForUpdateResponse] | Mapping[int, transaction_pb2.LookupStagedResponse],
    parts: Mapping[int, RowsOfTablet],
    calls: TabletCalls,
) -> lookup_pb2.LookupResponse:
    """Returns the rows found, in the order of the keys, as a lookup does."""
    found = {tablet: lookup_pb2.LookupResponse(rows=each.rows, found=each.found) for tablet, each in answers.items()}
    places = {tablet: numbers for tablet, (numbers, _) in parts.items()}
    return await calls.table.state.executor.run(join_found, found, places, calls)
