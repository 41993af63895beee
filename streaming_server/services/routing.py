"""Which worker process of a server answers a call: the routing table.

A client may make any call to any worker. A call that names a table is answered by the worker that owns the table. Calls
that list something are made to all workers, and their answers merged. A call that names something by an id only is
made to all workers, of which at most one knows the id.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

from scankv.model.errors import InvalidRequest, LockLost, ScanNotFound, SnapshotLost, TransactionLost
from scankv.v1 import admin_pb2, lock_pb2, snapshot_pb2, table_pb2, transaction_pb2
from streaming_server.services.errors import end_with
from streaming_server.services.forwarding import Workers, end_as, reason_of
from streaming_server.services.merged_answers import merge_lists, merge_metrics, merge_stats, merge_transactions
from streaming_server.services.permissions import PERMISSIONS, NamedTable
from streaming_server.services.worker_tokens import join_tokens, split_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from google.protobuf.message import Message

    from streaming_server.current_call import Metadata

Context = grpc.aio.ServicerContext

_SERVICE: Final = "scankv.v1."
_METRICS_SECONDS: Final = 5.0
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
        "TransactionService/GiveUpTransaction",
    }
)
"""Calls that name something by an id only. A worker that does not know the id answers with an error or does nothing."""

_UNKNOWN: Final = frozenset(error.reason for error in (LockLost, ScanNotFound, SnapshotLost, TransactionLost))
"""The reasons with which a worker says that it does not know an id."""

Route: TypeAlias = "Callable[[Context[Any, Any]], Awaitable[bytes | None]]"
"""Answers a call in the name of another worker: returns the serialized answer, or None after a stream."""


@dataclass(frozen=True, slots=True)
class Router:
    """Routes the calls of one worker. Bound to the event loop.

    Args:
        workers: The workers of the server.
    """

    workers: Workers

    def route(self, method: str, request: Message, data: bytes, metadata: Metadata) -> Route | None:
        """Returns how other workers take part in a call. None: this worker answers it alone.

        A request with the token of a transaction gets the token of the worker that answers it.

        Args:
            method: The method, as `package.Service/Method`.
            request: The request.
            data: The serialized request.
            metadata: The metadata of the call.
        """
        if self.workers.is_forwarded(metadata) or not method.startswith(_SERVICE):
            return None
        name = method.removeprefix(_SERVICE)
        table = _table_in(method, request)
        if table:
            owner = self.workers.placement.owner_of(table)
            if _use_token_of(owner, request):
                data = request.SerializeToString()
            return None if owner == self.workers.placement.number else Forward(self.workers, owner, method, data, table)
        if name in _MERGED:
            return _Gather(self.workers, method, data)
        if name in _BY_ID:
            return _Find(self.workers, method, data)
        if isinstance(request, transaction_pb2.BeginTransactionRequest):
            return _Begin(self.workers, method, data)
        if isinstance(request, transaction_pb2.CommitTransactionRequest):
            return _Commit(self.workers, method, request)
        if isinstance(request, transaction_pb2.AbortTransactionRequest):
            return _Abort(self.workers, method, request)
        return None


def _table_in(method: str, request: Message) -> str:
    for requirement in PERMISSIONS[method].requirements:
        if isinstance(requirement.scope, NamedTable):
            name: str = getattr(request, requirement.scope.field)
            return name
    return ""


def _use_token_of(owner: int, request: Any) -> bool:  # noqa: ANN401  # a message of any type
    """Replaces the token of a transaction in a request by that of a worker; returns whether it has a token."""
    fields = request.DESCRIPTOR.fields_by_name
    holder = request.transaction if "transaction" in fields and request.HasField("transaction") else request
    if "token" not in holder.DESCRIPTOR.fields_by_name or not holder.token:
        return False
    tokens = split_token(holder.token)
    if owner < len(tokens):
        holder.token = tokens[owner]
    return True


@dataclass(frozen=True, slots=True)
class Forward:
    """Has the owner of a table answer a call."""

    workers: Workers
    owner: int
    method: str
    data: bytes
    table: str

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        try:
            return await self.workers.ask(self.owner, self.method, self.data, context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await end_as(context, error, self.owner, f'the table "{self.table}"')

    async def stream(self, context: Context[Any, Any]) -> None:
        """Relays the stream of the owner."""
        try:
            await self.workers.relay(self.owner, self.method, self.data, context)
        except grpc.aio.AioRpcError as error:
            await end_as(context, error, self.owner, f'the table "{self.table}"')


@dataclass(frozen=True, slots=True)
class _All:
    """A call that is made to all workers at once."""

    workers: Workers
    method: str

    async def ask_all(
        self, requests: Sequence[bytes], context: Context[Any, Any], *, of_server: bool = False, method: str = ""
    ) -> list[bytes | grpc.aio.AioRpcError]:
        """Returns the answers of all workers, or their errors."""
        timeout = context.time_remaining()
        asked = [
            self.workers.ask(number, method or self.method, request, timeout, of_server=of_server)
            for number, request in enumerate(requests)
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, grpc.aio.AioRpcError):
                raise answer
        return [answer for answer in answers if isinstance(answer, bytes | grpc.aio.AioRpcError)]

    async def answers(self, requests: Sequence[bytes], context: Context[Any, Any], **more: Any) -> list[bytes]:  # noqa: ANN401
        """Returns the answers of all workers. Ends the call with the first error."""
        found = []
        for number, answer in enumerate(await self.ask_all(requests, context, **more)):
            if isinstance(answer, grpc.aio.AioRpcError):
                await end_as(context, answer, number, "a part of the tables")
            found.append(answer)
        return found


@dataclass(frozen=True, slots=True)
class _Gather(_All):
    """Merges the answers of all workers."""

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        response, merge = _MERGED[self.method.removeprefix(_SERVICE)]
        answers = await self.answers([self.data] * len(self.workers), context)
        merged = merge({number: response.FromString(answer) for number, answer in enumerate(answers)})
        return merged.SerializeToString()


@dataclass(frozen=True, slots=True)
class _Find(_All):
    """Returns the answer of the worker that knows an id."""

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        answers = await self.ask_all([self.data] * len(self.workers), context)
        errors = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
        known = [each for each in answers if isinstance(each, bytes)]
        # Releasing what a worker does not know succeeds, so the error of another one counts.
        telling = [each for each in errors if reason_of(each) not in _UNKNOWN]
        if known and not telling:
            return next((each for each in known if each), known[0])
        error = (telling or errors)[0]
        await end_as(context, error, answers.index(error), "what the id may name")


@dataclass(frozen=True, slots=True)
class _Begin(_All):
    """Begins a transaction at every worker. Its token has their tokens."""

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        answers = await self.ask_all([self.data] * len(self.workers), context)
        begun = [
            transaction_pb2.BeginTransactionResponse.FromString(each) if isinstance(each, bytes) else None
            for each in answers
        ]
        tokens = [each.token if each is not None else "" for each in begun]
        for number, each in enumerate(answers):
            if isinstance(each, grpc.aio.AioRpcError):
                await _abort_all(self, tokens, context)
                await end_as(context, each, number, "a part of the tables")
        committed = next((each for each in begun if each is not None and each.HasField("committed")), None)
        if committed is not None:
            await _abort_all(self, tokens, context)
            return committed.SerializeToString()
        return transaction_pb2.BeginTransactionResponse(token=join_tokens(tokens)).SerializeToString()


@dataclass(frozen=True, slots=True)
class _Commit(_All):
    """Commits a transaction at the worker that owns its tables, and aborts it at the others."""

    request: transaction_pb2.CommitTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        tokens = split_token(self.request.token)
        if len(tokens) != len(self.workers):
            # An id, or the token of a worker, of a transaction that may have been committed.
            return await _Find(self.workers, self.method, self.request.SerializeToString())(context)
        listing = [transaction_pb2.ListTransactionsRequest().SerializeToString()] * len(tokens)
        lists = await self.answers(listing, context, of_server=True, method=f"{_TRANSACTIONS}/ListTransactions")
        used = {number: _tables_of(each, tokens[number]) for number, each in enumerate(lists)}
        writing = {number: tables for number, tables in used.items() if tables is not None}
        if len(writing) > 1:
            await end_with(context, _divided(writing))
        number = next(iter(writing), 0)
        request = transaction_pb2.CommitTransactionRequest()
        request.CopyFrom(self.request)
        request.token = tokens[number]
        try:
            answer = await self.workers.ask(number, self.method, request.SerializeToString(), context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await end_as(context, error, number, "the tables of the transaction")
        await _abort_all(self, [token if at != number else "" for at, token in enumerate(tokens)], context)
        return answer


@dataclass(frozen=True, slots=True)
class _Abort(_All):
    """Aborts a transaction at every worker."""

    request: transaction_pb2.AbortTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        tokens = split_token(self.request.token)
        requests = [
            transaction_pb2.AbortTransactionRequest(token=tokens[min(number, len(tokens) - 1)]).SerializeToString()
            for number in range(len(self.workers))
        ]
        return (await self.answers(requests, context))[0]


async def _abort_all(call: _All, tokens: Sequence[str], context: Context[Any, Any]) -> None:
    """Aborts a transaction at the workers for which a token is given. What fails expires."""
    requests = [transaction_pb2.AbortTransactionRequest(token=token).SerializeToString() for token in tokens]
    await call.ask_all(requests, context, method=f"{_TRANSACTIONS}/AbortTransaction")


def _tables_of(answer: bytes, token: str) -> list[str] | None:
    """Returns the tables that a transaction uses at a worker, from its list of transactions. None: it uses none."""
    listed = transaction_pb2.ListTransactionsResponse.FromString(answer)
    used = [each for each in listed.transactions if each.token == token and (each.tables or each.locked_keys)]
    return list(used[0].tables) if used else None


def _divided(tables: Mapping[int, Sequence[str]]) -> InvalidRequest:
    owned = "; ".join(
        f"worker {number} owns {', '.join(names) or 'keys that it has locked'}" for number, names in tables.items()
    )
    return InvalidRequest(
        f"the transaction uses tables of several worker processes, which cannot be committed together: {owned}; use "
        "tables of one worker in a transaction, or start the server with --workers 1"
    )


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
