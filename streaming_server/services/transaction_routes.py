"""How workers take part in a transaction: its begin, its commit at the coordinator, its end without a commit."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from scankv.model.errors import PermissionDenied, TableRecreated
from scankv.v1 import transaction_pb2, worker_pb2
from streaming_server.access.owners import owner_check
from streaming_server.engine.transactions.jobs import JobMemory, check_job
from streaming_server.engine.transactions.open_transaction import transaction_lost
from streaming_server.services.errors import end_with
from streaming_server.services.forwarding import is_absent
from streaming_server.services.merged_answers import merge_given_up
from streaming_server.services.routes import (
    ANSWER_SECONDS,
    SERVICE,
    Answer,
    CallToAll,
    Context,
    Route,
    answer_of_one,
    end_with_first,
    split_answers,
)
from streaming_server.services.transaction import job_request
from streaming_server.services.worker import LOCATE, place_in
from streaming_server.storage.transactions.staging import PartSize, sum_of_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.message import Message

    from streaming_server.engine.transactions.two_phase import TransactionPlace
    from streaming_server.services.forwarding import Workers

_BEGIN_SECONDS: Final = 3.0
"""How long a worker may take for its part in the begin of a transaction, which may do without it."""

_ABORT_SECONDS: Final = 1.0
"""The same for an abort after the answer is known. A part that is not aborted expires."""

_ABORT: Final = f"{SERVICE}TransactionService/AbortTransaction"
_DENIED: Final = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})


def transaction_route(workers: Workers, method: str, request: Message) -> Route | None:
    """Returns how the workers take part in a call about a transaction. None: the call is another one.

    Args:
        workers: The workers of the server.
        method: The method, as `package.Service/Method`.
        request: The request.
    """
    route = _ROUTES.get(type(request))
    return None if route is None else route(workers, method, request)


@dataclass(frozen=True, slots=True)
class _BeginAtAll(CallToAll):
    """Begins a transaction at every worker, with the same token.

    A worker that does not answer has no part in the transaction, unless the transaction has an id: the worker may have
    committed it.
    """

    request: transaction_pb2.BeginTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        request = transaction_pb2.BeginTransactionRequest()
        request.CopyFrom(self.request)
        request.common_token = _token_of(request)
        seconds = ANSWER_SECONDS if request.id else _BEGIN_SECONDS
        found = await self.ask_all(self.to_all(request.SerializeToString()), context, seconds=seconds)
        answers, errors = split_answers(found)
        begun = [transaction_pb2.BeginTransactionResponse.FromString(each) for each in answers.values()]
        committed = next((each for each in begun if each.HasField("committed")), None)
        if request.HasField("job") and (recreated := _job_error(request, begun)) is not None:
            await _abort(self, request.common_token, answers, context)
            await end_with(context, recreated)
        refused = {number: error for number, error in errors.items() if not is_absent(error)}
        if committed is not None:
            # Only its coordinator knows the commit by the id. A worker with a share refuses to begin it again.
            await _abort(self, request.common_token, answers, context)
            return committed.SerializeToString()
        if refused or (errors and (request.id or not begun)):
            await _abort(self, request.common_token, answers, context)
            await end_with_first(context, refused or errors, "a part of the tables")
        return transaction_pb2.BeginTransactionResponse(token=request.common_token).SerializeToString()


def _job_error(
    request: transaction_pb2.BeginTransactionRequest, begun: Iterable[transaction_pb2.BeginTransactionResponse]
) -> TableRecreated | None:
    """Returns why the next transaction of a job must not begin. None: it may, as far as these workers know."""
    memories = [
        JobMemory(
            incarnation=each.job.incarnation,
            has_predecessor=each.job.has_predecessor,
            committed=each.job.committed,
            followed=each.job.followed,
            knows_job=each.job.knows_job,
            last=each.job.last,
            last_incarnation=each.job.last_incarnation,
        )
        for each in begun
    ]
    if not any(each.incarnation for each in memories):
        return None  # The owner of the table has not answered, so the call fails anyway.
    try:
        check_job(job_request(request), memories)
    except TableRecreated as error:
        return error
    return None


def _token_of(request: transaction_pb2.BeginTransactionRequest) -> str:
    """Returns the token of a transaction; the same one if the call is repeated for a transaction with an id."""
    if not request.id:
        return uuid.uuid4().hex
    return hashlib.blake2s(f"{request.id}\0{request.attempt}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _CommitAtCoordinator(CallToAll):
    """Commits a transaction at the worker that has its requests, or at the first of several, which coordinates them."""

    request: transaction_pb2.CommitTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        places, errors = await _locate(self, self.request.token, self.request.id, context)
        coordinator = _coordinator_in(places)
        if coordinator is None:
            await self._check_complete(context, places, errors)
            # The owner of the table of a job remembers its empty transactions.
            of_job = min((number for number, place in places.items() if place.owns_job), default=min(places))
            coordinator = min((number for number, place in places.items() if place.sizes), default=of_job)
        others = [
            number
            for number, place in places.items()
            if number != coordinator and (place.sizes or place.coordinator == coordinator)
        ]
        request = transaction_pb2.CommitTransactionRequest()
        request.CopyFrom(self.request)
        request.other_workers[:] = others
        answered = await self.ask_all({coordinator: request.SerializeToString()}, context, seconds=None)
        answer = await answer_of_one(context, answered)
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
            await end_with_first(context, errors, "a part of the tables")
        # A worker that has lost the transaction has lost requests, too, or has let another one have its id.
        is_lost = any(not place.is_open for place in places.values()) and (self.request.id or not is_complete)
        if is_lost or not any(place.is_open for place in places.values()):
            await end_with(context, transaction_lost(self.request.token))


async def _locate(
    call: CallToAll, token: str, id_: str, context: Context[Any, Any]
) -> tuple[dict[int, TransactionPlace], dict[int, grpc.aio.AioRpcError]]:
    """Returns where a transaction stands at the workers that answer, and the errors of the others.

    Ends the call unless its caller may write to all tables of the transaction, and owns it or is an admin of them.
    """
    question = worker_pb2.LocateTransactionRequest(token=token, id=id_).SerializeToString()
    found, errors = split_answers(await call.ask_all(call.to_all(question), context, method=LOCATE))
    denied = {number: each for number, each in errors.items() if each.code() in _DENIED}
    await end_with_first(context, denied, "a part of the tables")
    places = {number: place_in(each) for number, each in found.items()}
    # No worker knows all of the tables.
    check = owner_check(f"the transaction {id_ or token}", {name for each in places.values() for name in each.tables})
    try:
        for place in places.values():
            check(place.principal)
    except PermissionDenied as error:
        await end_with(context, error)
    return places, errors


def _coordinator_in(places: Mapping[int, TransactionPlace]) -> int | None:
    """Returns the worker that knows all of a committed transaction. None: it is not committed, as far as is known."""
    committed = {number: place for number, place in places.items() if place.is_committed}
    for number, place in committed.items():
        if place.coordinator is None:
            return number
    return next((place.coordinator for place in committed.values()), None)


@dataclass(frozen=True, slots=True)
class _AbortAtAll(CallToAll):
    """Aborts a transaction at every worker."""

    request: transaction_pb2.AbortTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        await _locate(self, self.request.token, "", context)
        answers, errors = split_answers(await self.ask_all(self.to_all(self.request.SerializeToString()), context))
        await end_with_first(context, errors, "a part of the tables")
        return next(iter(answers.values()))


@dataclass(frozen=True, slots=True)
class _GiveUpAtAll(CallToAll):
    """Gives up a transaction at every worker at which it is stuck.

    Their coordinator, which has the smallest number, is the last: it gives up nothing while another one may still apply
    its share.
    """

    request: transaction_pb2.GiveUpTransactionRequest

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        places, errors = await _locate(self, self.request.token, "", context)
        found: dict[int, Answer] = {**errors}
        for number in sorted(places, reverse=True):
            found |= await self.ask_all({number: self.request.SerializeToString()}, context, seconds=None)
        answers, _ = split_answers(found)
        if not answers:
            return await answer_of_one(context, found)
        given_up = {
            number: transaction_pb2.GiveUpTransactionResponse.FromString(each) for number, each in answers.items()
        }
        return merge_given_up(given_up).SerializeToString()


async def _abort(call: CallToAll, token: str, workers: Iterable[int], context: Context[Any, Any]) -> None:
    """Aborts a transaction at some workers. What fails expires."""
    request = transaction_pb2.AbortTransactionRequest(token=token).SerializeToString()
    await call.ask_all(dict.fromkeys(workers, request), context, seconds=_ABORT_SECONDS, method=_ABORT)


_ROUTES: Final[Mapping[type[Message], Callable[[Workers, str, Any], Route]]] = {
    transaction_pb2.BeginTransactionRequest: _BeginAtAll,
    transaction_pb2.CommitTransactionRequest: _CommitAtCoordinator,
    transaction_pb2.AbortTransactionRequest: _AbortAtAll,
    transaction_pb2.GiveUpTransactionRequest: _GiveUpAtAll,
}
