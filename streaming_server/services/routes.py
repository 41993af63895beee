"""How other workers answer a call: one of them does, or all of them do, and their answers become one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

import grpc

from scankv.model.errors import LockLost, ScanNotFound, ScanStalled, SnapshotLost, TransactionLost
from scankv.v1 import admin_pb2, lock_pb2, snapshot_pb2, table_pb2, transaction_pb2
from streaming_server.engine.bucket.call_point import PASSED_ON
from streaming_server.services.errors import end_with
from streaming_server.services.forwarding import Workers, end_as, is_absent, reason_of
from streaming_server.services.merged_answers import (
    merge_lists,
    merge_metrics,
    merge_sizes,
    merge_stats,
    merge_transactions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.message import Message

    from streaming_server.scan.admission.unread_answers import UnreadAnswers

Context = grpc.aio.ServicerContext

SERVICE: Final = "scankv.v1."
"""How the names of all methods begin that have routes."""

ANSWER_SECONDS: Final = 8.0
"""How long a worker may take for its part of an answer. Less than the attempt timeout of clients, so that their error
names the worker."""

_METRICS_SECONDS: Final = 5.0

_PART_SECONDS: Final = 1.0
"""How long a worker may take for its part of an answer that may lack it."""

_SHARE_OF_WAIT: Final = 0.75
"""The share of the time for which the client waits that other workers may take, if that is less."""

MERGED: Final[Mapping[str, tuple[type[Message], Callable[[Mapping[int, Any]], Message]]]] = {
    "TableService/ListTables": (table_pb2.ListTablesResponse, merge_lists),
    "TableService/ListTableSizes": (table_pb2.ListTableSizesResponse, merge_sizes),
    "LockService/ListColumnLocks": (lock_pb2.ListColumnLocksResponse, merge_lists),
    "SnapshotService/ListSnapshots": (snapshot_pb2.ListSnapshotsResponse, merge_lists),
    "TransactionService/ListTransactions": (transaction_pb2.ListTransactionsResponse, merge_transactions),
    "AdminService/ListScans": (admin_pb2.ListScansResponse, merge_lists),
    "AdminService/ListSlowCalls": (admin_pb2.ListSlowCallsResponse, merge_lists),
    "AdminService/Stats": (admin_pb2.StatsResponse, merge_stats),
    "AdminService/Metrics": (admin_pb2.MetricsResponse, merge_metrics),
}
"""Calls without a table, whose answers are merged: the type of the answers, and how."""

ACTIVITY: Final = "AdminService/Activity"
_ACTIVITY_SECONDS: Final = 2.0
"""How long a worker may take for its activity. Its answer is left out otherwise, because the next one has it too."""

_UNKNOWN: Final = frozenset(error.reason for error in (LockLost, ScanNotFound, SnapshotLost, TransactionLost))
"""The reasons with which a worker says that it does not know an id."""

Answer: TypeAlias = "bytes | grpc.aio.AioRpcError"
"""What a worker has answered: a serialized message, or an error."""


class Route(Protocol):
    """How other workers answer a call."""

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        """Returns the serialized answer of a call with one answer."""


@runtime_checkable
class StreamRoute(Route, Protocol):
    """How other workers answer a call about a table, which may have a stream of answers."""

    async def stream(self, context: Context[Any, Any], unread: UnreadAnswers) -> None:
        """Streams the answers of a call with several."""


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
            seconds = context.time_remaining()
            return await self.workers.ask(self.owner, self.method, self.data, seconds, point=PASSED_ON)
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
class CallToAll:
    """A call that is made to all workers at once."""

    workers: Workers
    method: str

    def to_all(self, request: bytes) -> dict[int, bytes]:
        """Returns the same request for every worker."""
        return dict.fromkeys(range(len(self.workers)), request)

    async def ask_all(
        self,
        requests: Mapping[int, bytes],
        context: Context[Any, Any],
        *,
        seconds: float | None = ANSWER_SECONDS,
        first: bool = False,
        method: str = "",
    ) -> dict[int, Answer]:
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

        async def ask(number: int, request: bytes) -> tuple[int, Answer]:
            try:
                answer = await self.workers.ask(number, method or self.method, request, timeout)
            except grpc.aio.AioRpcError as error:
                return number, error
            return number, answer

        answers: dict[int, Answer] = {}
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
class MergedCall(CallToAll):
    """Merges the answers of all workers. A list is complete, or the call ends with an error.

    Exception: a caller may say that it takes what the workers that run have.
    """

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        name = self.method.removeprefix(SERVICE)
        response, merge = MERGED[name]
        partial = _takes_a_part(name, self.data)
        seconds = _PART_SECONDS if partial else ANSWER_SECONDS
        answers, errors = split_answers(await self.ask_all(self.to_all(self.data), context, seconds=seconds))
        if not (partial and answers and all(map(is_absent, errors.values()))):
            await end_with_first(context, errors, "a part of the tables")
        merged = merge({number: response.FromString(answer) for number, answer in answers.items()})
        if isinstance(merged, table_pb2.ListTablesResponse):
            merged.absent_workers = len(errors)
        return merged.SerializeToString()


def _takes_a_part(name: str, request: bytes) -> bool:
    """Whether an answer may lack the tables of workers that do not answer soon."""
    if name == "TableService/ListTables":
        return table_pb2.ListTablesRequest.FromString(request).partial
    return name == "TableService/ListTableSizes"


@dataclass(frozen=True, slots=True)
class ActivityCall(CallToAll):
    """Returns the activity of all workers that answer, and the numbers of the others."""

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        found = await self.ask_all(self.to_all(self.data), context, seconds=_ACTIVITY_SECONDS)
        answers, errors = split_answers(found)
        refusals = {number: error for number, error in errors.items() if not is_absent(error)}
        await end_with_first(context, refusals if answers else errors, "a part of the tables")
        merged = admin_pb2.ActivityResponse(missing_workers=errors)
        for answer in answers.values():
            merged.MergeFromString(answer)
        return merged.SerializeToString()


@dataclass(frozen=True, slots=True)
class CallById(CallToAll):
    """Returns the answer of the worker that knows an id."""

    data: bytes

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        return await answer_of_one(context, await self.ask_all(self.to_all(self.data), context, first=True))


async def answer_of_one(context: Context[Any, Any], found: Mapping[int, Answer]) -> bytes:
    """Returns the answer of the worker that knows an id, or ends the call with the error that says most."""
    answers, errors = split_answers(found)
    if answers:
        return next(iter(answers.values()))
    telling = {number: error for number, error in errors.items() if reason_of(error) not in _UNKNOWN}
    await end_with_first(context, telling or errors, "what the id may name")
    raise AssertionError("the call is over")


def split_answers(found: Mapping[int, Answer]) -> tuple[dict[int, bytes], dict[int, grpc.aio.AioRpcError]]:
    """Returns the answers, and the errors, each by worker."""
    answers = {number: each for number, each in found.items() if isinstance(each, bytes)}
    return answers, {number: each for number, each in found.items() if not isinstance(each, bytes)}


async def end_with_first(context: Context[Any, Any], errors: Mapping[int, grpc.aio.AioRpcError], what: str) -> None:
    """Ends the call with one of some errors; one that a worker has sent before one of a worker that does not answer."""
    if errors:
        number = min(errors, key=lambda each: (is_absent(errors[each]), each))
        await end_as(context, errors[number], number, what)


async def read_metrics_of_all(workers: Workers) -> tuple[str, bytes]:
    """Returns the media type and the text of the metrics of all workers that run, in the name of the server."""
    request = admin_pb2.MetricsRequest().SerializeToString()
    asked = [
        workers.ask(number, f"{SERVICE}AdminService/Metrics", request, _METRICS_SECONDS, of_server=True)
        for number in range(len(workers))
    ]
    answers = {
        number: admin_pb2.MetricsResponse.FromString(answer)
        for number, answer in enumerate(await asyncio.gather(*asked, return_exceptions=True))
        if isinstance(answer, bytes)
    }
    merged = merge_metrics(answers)
    return merged.content_type, merged.text
