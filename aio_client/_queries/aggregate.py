"""Answers about many rows that the server computes, so that the rows do not travel: counts, aggregates, top-N."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import pyarrow as pa

from aio_client._input.arguments import names_of, text_of
from aio_client._transport.retry import backoff, with_retries
from scankv.model.errors import (
    DeadlineExceeded,
    ProtocolViolation,
    ServerBusy,
    ServerDraining,
    TooManyScans,
    Unavailable,
    UsageError,
    did_you_mean,
)
from scankv.model.expressions.wire import to_proto
from scankv.model.limits import MAX_TOP_N
from scankv.model.tables.aggregates import AggregateFunction
from scankv.v1 import lookup_pb2, scan_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aio_client._transport.transport import Method, Transport
    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import Predicate
    from scankv.v1.lookup_pb2 import (
        AggregateRequest,
        AggregateResponse,
        CountRequest,
        CountResponse,
        TopNRequest,
        TopNResponse,
    )

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Question = TypeVar("_Question", "CountRequest", "AggregateRequest", "TopNRequest")
_Answered = TypeVar("_Answered", "CountResponse", "AggregateResponse", "TopNResponse")

_BUSY: Final = (TooManyScans, ServerBusy)
"""Errors of a server that has not begun with the question."""

_AWAY: Final = (*_BUSY, Unavailable, ServerDraining)
"""Errors that pass."""

Ties: TypeAlias = Literal["key", "all"]
"""Which of the rows that are equal to the last one are returned: the first by key, or all."""


def count_request(table: str, where: Predicate | None, snapshot_id: str | None) -> CountRequest:
    """Asks for the number of rows of a table, or of a snapshot of it, for which a predicate is true."""
    return lookup_pb2.CountRequest(
        table=table, where=None if where is None else to_proto(where), snapshot=_snapshot(snapshot_id)
    )


def aggregate_request(
    table: str,
    functions: Mapping[str, str | Iterable[str]],
    where: Predicate | None,
    group_by: Sequence[str],
    snapshot_id: str | None,
) -> AggregateRequest:
    """Asks for functions of columns over all rows or for groups. Raises UsageError for one that does not exist."""
    if not isinstance(functions, Mapping):
        raise UsageError(f'functions is a dictionary such as {{"score": ["sum"]}}, not a {type(functions).__name__}')
    return lookup_pb2.AggregateRequest(
        table=table,
        where=None if where is None else to_proto(where),
        snapshot=_snapshot(snapshot_id),
        aggregates=[
            lookup_pb2.ColumnAggregates(column=column, functions=_numbers(column, functions[column]))
            for column in names_of(list(functions), "functions")
        ],
        group_by=names_of(group_by, "group_by"),
    )


def top_n_request(
    table: str,
    n: int,
    by: str,
    where: Predicate | None,
    columns: Sequence[str] | None,
    descending: bool,
    ties: Ties,
    snapshot_id: str | None,
) -> TopNRequest:
    """Asks for the first rows in the order of a column. Raises UsageError for what no question can have."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_TOP_N:
        raise UsageError(f"n must be a whole number from 1 to {MAX_TOP_N:,}, not {n!r}")
    if not isinstance(by, str):
        raise UsageError(f"by is the name of a column, not a {type(by).__name__}")
    text_of(by, "by")
    if ties not in ("key", "all"):
        raise UsageError(f'ties is "key" or "all", not {ties!r}', option="ties")
    return lookup_pb2.TopNRequest(
        table=table,
        where=None if where is None else to_proto(where),
        snapshot=_snapshot(snapshot_id),
        by=by,
        ascending=not descending,
        n=n,
        columns=None if columns is None else scan_pb2.ColumnNames(names=names_of(columns, "columns")),
        with_ties=ties == "all",
    )


async def count(transport: Transport, request: CountRequest) -> CountResponse:
    """Asks. Without a predicate the answer is immediate, so that the attempt timeout bounds it."""
    if not request.HasField("where"):
        return _checked(request, await transport.call(lambda: transport.services.lookups.Count, request))
    return _checked(request, await _answer(transport, lambda: transport.services.lookups.Count, request))


async def aggregate(transport: Transport, request: AggregateRequest) -> AggregateResponse:
    """Asks."""
    return _checked(request, await _answer(transport, lambda: transport.services.lookups.Aggregate, request))


async def top_n(
    transport: Transport, request: TopNRequest, trouble: Callable[[ScanKvError], object] | None = None
) -> TopNResponse:
    """Asks; with `trouble` also again when the server is not there, for the operation timeout.

    Args:
        transport: The client's connection.
        request: What is asked.
        trouble: Is told each error after which it is asked again, or may be.
    """

    def retries(error: ScanKvError) -> bool:
        if trouble is None:
            return _may_pass(error)
        trouble(error)
        return isinstance(error, _AWAY)

    return _checked(request, await _answer(transport, lambda: transport.services.lookups.TopN, request, retries))


async def changed_top_n(
    transport: Transport,
    request: TopNRequest,
    trouble: Callable[[ScanKvError], object],
    *,
    wait: float,
    timeout: float,
) -> TopNResponse:
    """Asks for what has changed since a version, and lets the server wait with the answer until something has.

    One attempt waits. After one that got no answer it is asked as by `top_n`, which tells at once whether the server
    is there again, and tries for the operation timeout.

    Args:
        transport: The client's connection.
        request: What is asked, with `if_changed_since`.
        trouble: Is told each error after which it is asked again, or may be.
        wait: Seconds that the server may wait, at most 60.
        timeout: Seconds that it may then take to answer.
    """
    waiting = lookup_pb2.TopNRequest()
    waiting.CopyFrom(request)
    waiting.wait_millis = round(wait * 1000)
    try:
        response = await transport.call_and_wait(lambda services: services.lookups.TopN, waiting, wait + timeout)
        return _checked(waiting, response)
    except (*_AWAY, DeadlineExceeded) as error:
        trouble(error)
        retry_after = error.retry_after
    await asyncio.sleep(backoff(1, retry_after))
    return await top_n(transport, request, trouble)


async def _answer(
    transport: Transport,
    method: Callable[[], Method[_Request, _Response]],
    request: _Request,
    retries: Callable[[ScanKvError], bool] | None = None,
) -> _Response:
    """Asks with the whole operation timeout, since the server may have much to read, and again after some errors."""

    async def attempt(deadline: float) -> _Response:
        return await transport.attempt(method, request, deadline=deadline, is_long=True)

    return await with_retries(attempt, timeout=transport.config.operation_timeout, retries=retries or _may_pass)


def _may_pass(error: ScanKvError) -> bool:
    """Whether the server has not begun with the question, or its answer was dropped on the way: it is asked again."""
    return isinstance(error, _BUSY) or (isinstance(error, Unavailable) and error.shed)


def _checked(request: _Question, response: _Answered) -> _Answered:
    """The response, unless it says that nothing has changed since a version that it was not asked about."""
    if response.unchanged and not (
        request.HasField("if_changed_since") and response.version == request.if_changed_since
    ):
        raise ProtocolViolation("the server answered that nothing has changed, but was not asked since when")
    return response


def _snapshot(snapshot_id: str | None) -> scan_pb2.PinnedSnapshot | None:
    return None if snapshot_id is None else scan_pb2.PinnedSnapshot(snapshot_id=snapshot_id)


def _numbers(column: str, names: str | Iterable[str]) -> list[lookup_pb2.AggregateFunction.ValueType]:
    numbers = []
    for name in names_of(names, f'functions of column "{column}"'):
        if name not in list(AggregateFunction):
            raise UsageError(
                f'column "{column}": there is no function {name!r}{did_you_mean(str(name), AggregateFunction)}'
            )
        numbers.append(lookup_pb2.AggregateFunction.Value(f"AGGREGATE_FUNCTION_{AggregateFunction(name).name}"))
    return numbers


def decode_rows(data: bytes) -> pa.Table:
    """The rows that an answer carries. Raises ProtocolViolation when there are none to be read."""
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation("the server answered with something that is not Arrow data") from error
