"""Which worker process of a server answers a call: the routing table.

A client may make any call to any worker. A call that names a table is answered by the worker that owns the table, but
any worker answers scans of pinned snapshots. Calls that list something are made to all workers, and their answers are
merged. A call that names something by an id alone is made to all workers, of which at most one knows the id.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import grpc

from scankv.model.errors import InvalidRequest, LockLost, ScanNotFound, ScanStalled, SnapshotLost, TransactionLost
from scankv.model.names import TableName, tablet_number
from scankv.v1 import admin_pb2, lock_pb2, scan_pb2, snapshot_pb2, table_pb2, transaction_pb2, worker_pb2, write_pb2
from streaming_server.engine.snapshots.leases import lost_error
from streaming_server.engine.snapshots.part_ids import PartId
from streaming_server.engine.transactions.open_transaction import transaction_lost
from streaming_server.services.errors import end_with
from streaming_server.services.forwarding import Workers, end_as, is_absent, reason_of
from streaming_server.services.merged_answers import (
    merge_given_up,
    merge_lists,
    merge_metrics,
    merge_stats,
    merge_transactions,
)
from streaming_server.services.permissions import NamedTable, permission_of
from streaming_server.services.tablets.joined_calls import JoinedCall, is_of_owner
from streaming_server.services.worker import LOCATE, place_in
from streaming_server.storage.transactions.staging import PartSize, sum_of_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.message import Message

    from streaming_server.current_call import Metadata
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.engine.transactions.two_phase import TransactionPlace
    from streaming_server.scan.admission.unread_answers import UnreadAnswers
    from streaming_server.services.tablets.tablet_calls import QueryMemory

Context = grpc.aio.ServicerContext

_SERVICE: Final = "scankv.v1."
_METRICS_SECONDS: Final = 5.0

_ANSWER_SECONDS: Final = 8.0
"""How long a worker may take for its part of an answer. Less than the attempt timeout of clients, so that their error
names the worker."""

_SHARE_OF_WAIT: Final = 0.75
"""The share of the time for which the client waits that other workers may take, if that is less."""

_BEGIN_SECONDS: Final = 3.0
"""The same for its part in the begin of a transaction, which may do without it."""

_ABORT_SECONDS: Final = 1.0
"""The same for an abort after the answer is known. A part that is not aborted expires."""

_TRANSACTIONS: Final = f"{_SERVICE}TransactionService"

_MERGED: Final[Mapping[str, tuple[type[Message], Callable[[Mapping[int, Any]], Message]]]] = {
    "TableService/ListTables": (table_pb2.ListTablesResponse, merge_lists),
    "LockService/ListColumnLocks": (lock_pb2.ListColumnLocksResponse, merge_lists),
    "SnapshotService/ListSnapshots": (snapshot_pb2.ListSnapshotsResponse, merge_lists),
    "TransactionService/ListTransactions": (transaction_pb2.ListTransactionsResponse, merge_transactions),
    "AdminService/ListScans": (admin_pb2.ListScansResponse, merge_lists),
    "AdminService/ListSlowCalls": (admin_pb2.ListSlowCallsResponse, merge_lists),
    "AdminService/Stats": (admin_pb2.StatsResponse, merge_stats),
    "AdminService/Metrics": (admin_pb2.MetricsResponse, merge_metrics),
}
"""Calls without a table, whose answers are merged: the type of the answers, and how."""

_BY_ID: Final = frozenset(
    {
        "LockService/RenewColumnLock",
        "LockService/ReleaseColumnLock",
        "SnapshotService/RenewSnapshot",
        "SnapshotService/ReleaseSnapshot",
        "SnapshotService/SplitSnapshot",
        "AdminService/CancelScan",
    }
)
"""Calls that name something by an id alone. A worker that does not know the id returns an error."""

_OF_SNAPSHOT: Final = (
    snapshot_pb2.RenewSnapshotRequest,
    snapshot_pb2.ReleaseSnapshotRequest,
    snapshot_pb2.SplitSnapshotRequest,
)
"""The requests that name a snapshot by its id alone."""

_OF_FIRST: Final = frozenset({"BackupService/CreateBackup", "BackupService/GetBackupStatus"})
"""Calls that the first worker answers, which creates the backups."""

_UNKNOWN: Final = frozenset(error.reason for error in (LockLost, ScanNotFound, SnapshotLost, TransactionLost))
"""The reasons with which a worker says that it does not know an id."""

_DENIED: Final = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})

_Answer: TypeAlias = "bytes | grpc.aio.AioRpcError"


class Route(Protocol):
    """How other workers answer a call."""

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        """Returns the serialized answer of a call with one answer."""

    async def stream(self, context: Context[Any, Any], unread: UnreadAnswers) -> None:
        """Streams the answers of a call with several."""


@dataclass(frozen=True, slots=True)
class Router:
    """Routes the calls of one worker. Bound to the event loop.

    Args:
        workers: The workers of the server.
        tables: The tables and tablets of this one.
        memory: What this one remembers of queries.
    """

    workers: Workers
    tables: Tables
    memory: QueryMemory

    def hold_of(self, metadata: Metadata) -> str:
        """Returns the id of the hold under which a call of a worker opens its view. Empty: none."""
        return self.workers.hold_of(metadata)

    def route(self, method: str, request: Message, data: bytes, metadata: Metadata) -> Route | None:
        """Returns how other workers take part in a call. None: this worker answers it alone.

        Args:
            method: The method, as `package.Service/Method`.
            request: The request.
            data: The serialized request.
            metadata: The metadata of the call.
        """
        is_simple = self.workers.placement.is_alone and not self.tables.has_tablets
        if is_simple or not method.startswith(_SERVICE):
            return None
        name = method.removeprefix(_SERVICE)
        table = _table_in(method, request)
        divided = self.tables.divided(table) if table else None
        if divided is not None and not is_of_owner(name, request):
            return JoinedCall(self.workers, self.tables, self.tables.table(table), method, request, self.memory)
        if isinstance(request, _OF_SNAPSHOT):
            pinned = self._table_with_tablets_of(request.snapshot_id)
            if pinned is not None:
                return JoinedCall(self.workers, self.tables, pinned, method, request, self.memory)
        if self.workers.is_forwarded(metadata):
            return None
        if isinstance(request, _OF_SNAPSHOT) and PartId.parse(request.snapshot_id) is not None:
            raise lost_error(request.snapshot_id)
        if tablet_number(table) is not None:
            _check_sent_to_tablet(request)
        if self.workers.placement.is_alone:
            return None
        if table:
            if _is_answered_anywhere(request) and not self.tables.is_divided(table):
                return None
            owner = self.workers.placement.owner_of(table)
            return (
                None
                if owner == self.workers.placement.number
                else Forward(self.workers, owner, method, data, f'the table "{table}"')
            )
        if name in _OF_FIRST:
            alone = self.workers.placement.number == 0
            return None if alone else Forward(self.workers, 0, method, data, "the backups")
        if name in _MERGED:
            return _Gather(self.workers, method, data)
        if name in _BY_ID:
            return _Find(self.workers, method, data)
        if isinstance(request, transaction_pb2.BeginTransactionRequest):
            return _BeginAtAll(self.workers, method, request)
        if isinstance(request, transaction_pb2.CommitTransactionRequest):
            return _CommitAtCoordinator(self.workers, method, request)
        if isinstance(request, transaction_pb2.AbortTransactionRequest):
            return _AbortAtAll(self.workers, method, request)
        if isinstance(request, transaction_pb2.GiveUpTransactionRequest):
            return _GiveUpAtAll(self.workers, method, request)
        return None

    def _table_with_tablets_of(self, snapshot_id: str) -> LiveTable | None:
        """Returns the table with tablets that a snapshot is of. None: it is of another one, or not known here."""
        table = self.tables.snapshots.divided_table_of(snapshot_id)
        return None if self.tables.divided(table) is None else self.tables.table(table)


def _check_sent_to_tablet(request: Message) -> None:
    """Raises InvalidRequest unless a client may send a request to a tablet: a part of a scan, or a plain write."""
    if isinstance(request, scan_pb2.ScanKvRequest) and request.HasField("claim"):
        return
    if not isinstance(request, write_pb2.UpsertRequest | write_pb2.DeleteRequest):
        name: str = getattr(request, "table", "") or getattr(request, "name", "")
        TableName.parse(name)  # Raises, because no table has such a name.
        return
    of_workers = request.admitted or request.only_checks
    if of_workers or request.HasField("transaction") or request.HasField("unchanged_since"):
        raise InvalidRequest(
            "only writes without transaction, unchanged_since, admitted and only_checks can be sent to a tablet: send "
            "it to the table"
        )


def _table_in(method: str, request: Message) -> str:
    for requirement in permission_of(method).requirements:
        if isinstance(requirement.scope, NamedTable):
            name: str = getattr(request, requirement.scope.field)
            return name
    return ""


def _is_answered_anywhere(request: Message) -> bool:
    """Whether any worker answers a request about a table by itself.

    That is a scan of a pinned snapshot, whose view a worker borrows from the owner, unless the table has tablets. Loans
    themselves are only for workers, which call the owner: if one were passed on for a client, it would look like that
    of a worker.
    """
    is_scan = isinstance(request, scan_pb2.ScanKvRequest) and request.HasField("snapshot")
    return is_scan or isinstance(request, snapshot_pb2.UseSnapshotRequest)


@dataclass(frozen=True, slots=True)
class Forward:
    """Has one worker answer a call, because of what it owns."""

    workers: Workers
    owner: int
    method: str
    data: bytes
    what: str

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        try:
            return await self.workers.ask(self.owner, self.method, self.data, context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await end_as(context, error, self.owner, self.what)

    async def stream(self, context: Context[Any, Any], unread: UnreadAnswers) -> None:
        """Relays the stream of the owner."""
        try:
            await self.workers.relay(self.owner, self.method, self.data, context, unread)
        except ScanStalled as error:
            await end_with(context, error)
        except grpc.aio.AioRpcError as error:
            await end_as(context, error, self.owner, self.what)


@dataclass(frozen=True, slots=True)
class _All:
    """A call that is made to all workers at once."""

    workers: Workers
    method: str

    async def stream(self, context: Context[Any, Any], unread: UnreadAnswers) -> None:
        """Not called, since such a call has one answer."""
        raise NotImplementedError

    def to_all(self, request: bytes) -> dict[int, bytes]:
        """Returns the same request for every worker."""
        return dict.fromkeys(range(len(self.workers)), request)

    async def ask_all(
        self,
        requests: Mapping[int, bytes],
        context: Context[Any, Any],
        *,
        seconds: float | None = _ANSWER_SECONDS,
        first: bool = False,
        method: str = "",
    ) -> dict[int, _Answer]:
        """Returns the answers of workers, or their errors, in the order of the workers.

        Args:
            requests: The request for each worker.
            context: The call.
            seconds: How long a worker may take, so that one that is frozen delays the others only so long. None: as
                long as the client waits.
            first: Whether one answer that is no error is enough.
            method: The method. Empty: that of this call.
        """
        timeout = _time_to_answer(seconds, context.time_remaining())

        async def ask(number: int, request: bytes) -> tuple[int, _Answer]:
            try:
                answer = await self.workers.ask(number, method or self.method, request, timeout)
            except grpc.aio.AioRpcError as error:
                return number, error
            return number, answer

        answers: dict[int, _Answer] = {}
        asking = [asyncio.create_task(ask(number, request)) for number, request in requests.items()]
        try:
            for next_answer in asyncio.as_completed(asking):
                number, answer = await next_answer
                answers[number] = answer
                if first and isinstance(answer, bytes):
                    break
        finally:
            for task in asking:
                task.cancel()
        return dict(sorted(answers.items()))


def _time_to_answer(seconds: float | None, remaining: float | None) -> float | None:
    """Returns how long other workers may take, so that this one can answer a client that waits for `remaining`."""
    if seconds is None or remaining is None:
        return remaining if seconds is None else seconds
    return min(seconds, _SHARE_OF_WAIT * remaining)


@dataclass(frozen=True, slots=True)
class _Gather(_All):
    """Merges the answers of all workers. A list is complete, or the call ends with an error."""

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        response, merge = _MERGED[self.method.removeprefix(_SERVICE)]
        answers, errors = _divide(await self.ask_all(self.to_all(self.data), context))
        await _end_with_first(context, errors, "a part of the tables")
        merged = merge({number: response.FromString(answer) for number, answer in answers.items()})
        return merged.SerializeToString()


@dataclass(frozen=True, slots=True)
class _Find(_All):
    """Returns the answer of the worker that knows an id."""

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        return await _found(context, await self.ask_all(self.to_all(self.data), context, first=True))


async def _found(context: Context[Any, Any], found: Mapping[int, _Answer]) -> bytes:
    """Returns the answer of the worker that knows an id, or ends the call with the error that says most."""
    answers, errors = _divide(found)
    if answers:
        return next(iter(answers.values()))
    telling = {number: error for number, error in errors.items() if reason_of(error) not in _UNKNOWN}
    await _end_with_first(context, telling or errors, "what the id may name")
    raise AssertionError("the call is over")


@dataclass(frozen=True, slots=True)
class _BeginAtAll(_All):
    """Begins a transaction at every worker, with the same token.

    A worker that does not answer has no part in the transaction, unless the transaction has an id: the worker may have
    committed it.
    """

    request: transaction_pb2.BeginTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        request = transaction_pb2.BeginTransactionRequest()
        request.CopyFrom(self.request)
        request.common_token = _token_of(request)
        seconds = _ANSWER_SECONDS if request.id else _BEGIN_SECONDS
        found = await self.ask_all(self.to_all(request.SerializeToString()), context, seconds=seconds)
        answers, errors = _divide(found)
        begun = [transaction_pb2.BeginTransactionResponse.FromString(each) for each in answers.values()]
        committed = next((each for each in begun if each.HasField("committed")), None)
        refused = {number: error for number, error in errors.items() if not is_absent(error)}
        if refused or (committed is None and errors and (request.id or not begun)):
            await _abort(self, request.common_token, answers, context)
            await _end_with_first(context, refused or errors, "a part of the tables")
        if committed is not None:
            await _abort(self, request.common_token, answers, context)
            return committed.SerializeToString()
        return transaction_pb2.BeginTransactionResponse(token=request.common_token).SerializeToString()


def _token_of(request: transaction_pb2.BeginTransactionRequest) -> str:
    """Returns the token of a transaction; the same one if the call is repeated for a transaction with an id."""
    if not request.id:
        return uuid.uuid4().hex
    return hashlib.blake2s(f"{request.id}\0{request.attempt}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _CommitAtCoordinator(_All):
    """Commits a transaction at the worker that has its requests, or at the first of several, which coordinates them."""

    request: transaction_pb2.CommitTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        places, errors = await _locate(self, self.request.token, self.request.id, context)
        coordinator = _coordinator_in(places)
        if coordinator is None:
            await self._check_complete(context, places, errors)
            coordinator = min((number for number, place in places.items() if place.sizes), default=min(places))
        others = [
            number
            for number, place in places.items()
            if number != coordinator and (place.sizes or place.coordinator == coordinator)
        ]
        request = transaction_pb2.CommitTransactionRequest()
        request.CopyFrom(self.request)
        request.other_workers[:] = others
        answered = await self.ask_all({coordinator: request.SerializeToString()}, context, seconds=None)
        answer = await _found(context, answered)
        idle = [number for number, place in places.items() if place.is_open and number not in {coordinator, *others}]
        await _abort(self, self.request.token, idle, context)
        return answer

    async def _check_complete(
        self,
        context: Context[Any, Any],
        places: Mapping[int, TransactionPlace],
        errors: Mapping[int, grpc.aio.AioRpcError],
    ) -> None:
        """Ends the call unless the workers that answer have all of a transaction that is not committed."""
        stated = {part.part: part.requests for part in self.request.parts}
        there = sum_of_sizes(place.sizes for place in places.values())
        is_complete = bool(stated) and all(
            there.get(part, PartSize(0)) == PartSize(requests) for part, requests in stated.items()
        )
        if not is_complete:
            # A worker that does not answer may have the rest.
            await _end_with_first(context, errors, "a part of the tables")
        # A worker that has lost the transaction has lost requests, too, or has let another one have its id.
        is_lost = any(not place.is_open for place in places.values()) and (self.request.id or not is_complete)
        if is_lost or not any(place.is_open for place in places.values()):
            await end_with(context, transaction_lost(self.request.token))


async def _locate(
    call: _All, token: str, id_: str, context: Context[Any, Any]
) -> tuple[dict[int, TransactionPlace], dict[int, grpc.aio.AioRpcError]]:
    """Returns where a transaction stands at the workers that answer, and the errors of the others.

    Ends the call unless its caller may write to all tables of the transaction.
    """
    question = worker_pb2.LocateTransactionRequest(token=token, id=id_).SerializeToString()
    found, errors = _divide(await call.ask_all(call.to_all(question), context, method=LOCATE))
    denied = {number: each for number, each in errors.items() if each.code() in _DENIED}
    await _end_with_first(context, denied, "a part of the tables")
    return {number: place_in(each) for number, each in found.items()}, errors


def _coordinator_in(places: Mapping[int, TransactionPlace]) -> int | None:
    """Returns the worker that knows all of a committed transaction. None: it is not committed, as far as is known."""
    committed = {number: place for number, place in places.items() if place.is_committed}
    for number, place in committed.items():
        if place.coordinator is None:
            return number
    return next((place.coordinator for place in committed.values()), None)


@dataclass(frozen=True, slots=True)
class _AbortAtAll(_All):
    """Aborts a transaction at every worker."""

    request: transaction_pb2.AbortTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        await _locate(self, self.request.token, "", context)
        answers, errors = _divide(await self.ask_all(self.to_all(self.request.SerializeToString()), context))
        await _end_with_first(context, errors, "a part of the tables")
        return next(iter(answers.values()))


@dataclass(frozen=True, slots=True)
class _GiveUpAtAll(_All):
    """Gives up a transaction at every worker at which it is stuck.

    Their coordinator, which has the smallest number, is the last: it gives up nothing while another one may still apply
    its share.
    """

    request: transaction_pb2.GiveUpTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        places, errors = await _locate(self, self.request.token, "", context)
        found: dict[int, _Answer] = {**errors}
        for number in sorted(places, reverse=True):
            found |= await self.ask_all({number: self.request.SerializeToString()}, context, seconds=None)
        answers, _ = _divide(found)
        if not answers:
            return await _found(context, found)
        given_up = {
            number: transaction_pb2.GiveUpTransactionResponse.FromString(each) for number, each in answers.items()
        }
        return merge_given_up(given_up).SerializeToString()


async def _abort(call: _All, token: str, workers: Iterable[int], context: Context[Any, Any]) -> None:
    """Aborts a transaction at some workers. What fails expires."""
    request = transaction_pb2.AbortTransactionRequest(token=token).SerializeToString()
    method = f"{_TRANSACTIONS}/AbortTransaction"
    await call.ask_all(dict.fromkeys(workers, request), context, seconds=_ABORT_SECONDS, method=method)


def _divide(found: Mapping[int, _Answer]) -> tuple[dict[int, bytes], dict[int, grpc.aio.AioRpcError]]:
    """Returns the answers, and the errors, each by worker."""
    answers = {number: each for number, each in found.items() if isinstance(each, bytes)}
    return answers, {number: each for number, each in found.items() if not isinstance(each, bytes)}


async def _end_with_first(context: Context[Any, Any], errors: Mapping[int, grpc.aio.AioRpcError], what: str) -> None:
    """Ends the call with one of some errors; one that a worker has sent before one of a worker that does not answer."""
    if errors:
        number = min(errors, key=lambda each: (is_absent(errors[each]), each))
        await end_as(context, errors[number], number, what)


async def read_metrics_of_all(workers: Workers) -> tuple[str, bytes]:
    """Returns the media type and the text of the metrics of all workers that run, in the name of the server."""
    request = admin_pb2.MetricsRequest().SerializeToString()
    asked = [
        workers.ask(number, f"{_SERVICE}AdminService/Metrics", request, _METRICS_SECONDS, of_server=True)
        for number in range(len(workers))
    ]
    answers = {
        number: admin_pb2.MetricsResponse.FromString(answer)
        for number, answer in enumerate(await asyncio.gather(*asked, return_exceptions=True))
        if isinstance(answer, bytes)
    }
    merged = merge_metrics(answers)
    return merged.content_type, merged.text
