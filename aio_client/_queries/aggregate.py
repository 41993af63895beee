"""The calls of counts, aggregates and top-N: requests, retries and the check of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import pyarrow as pa

from aio_client._input.arguments import names_of, text_of
from aio_client._input.isolation import isolation_message
from aio_client._transport.retry import backoff
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

    from google.protobuf.message import Message

    from aio_client._transport.transport import Method, Transport
    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import Predicate
    from scankv.model.scans.isolation import Isolation
    from scankv.v1.lookup_pb2 import (
        AggregateRequest,
        AggregateResponse,
        CountRequest,
        CountResponse,
        TopNRequest,
        TopNResponse,
    )

_Request = TypeVar("_Request", bound="Message")
_Response = TypeVar("_Response")
_Query = TypeVar("_Query", "CountRequest", "AggregateRequest", "TopNRequest")
_Result = TypeVar("_Result", "CountResponse", "AggregateResponse", "TopNResponse")

_BUSY: Final = (TooManyScans, ServerBusy)
"""Errors of a server that has not begun to compute the query."""

_AWAY: Final = (*_BUSY, Unavailable, ServerDraining)
"""Errors of a server that is expected to return."""

Ties: TypeAlias = Literal["key", "all"]
"""Which rows to return among those that equal the last one: the first by key, or all."""


def count_request(
    table: str, where: Predicate | None, snapshot_id: str | None, isolation: Isolation = "read_committed"
) -> CountRequest:
    """Returns the request for the number of rows of a table, or of its snapshot, for which a predicate is true."""
    return lookup_pb2.CountRequest(
        table=table,
        where=None if where is None else to_proto(where),
        snapshot=_snapshot(snapshot_id),
        isolation=isolation_message(isolation, snapshot_id),
    )


def aggregate_request(
    table: str,
    functions: Mapping[str, str | Iterable[str]],
    where: Predicate | None,
    group_by: Sequence[str],
    snapshot_id: str | None,
    isolation: Isolation = "read_committed",
) -> AggregateRequest:
    """Returns the request for aggregates over all rows or by group. Raises UsageError for an unknown function."""
    if not isinstance(functions, Mapping):
        raise UsageError(
            f'functions must be a dictionary such as {{"score": ["sum"]}}, not a {type(functions).__name__}'
        )
    return lookup_pb2.AggregateRequest(
        table=table,
        where=None if where is None else to_proto(where),
        snapshot=_snapshot(snapshot_id),
        aggregates=[
            lookup_pb2.ColumnAggregates(column=column, functions=_numbers(column, functions[column]))
            for column in names_of(list(functions), "functions")
        ],
        group_by=names_of(group_by, "group_by"),
        isolation=isolation_message(isolation, snapshot_id),
    )


def top_n_request(
    table: str,
    limit: int,
    order_by: str,
    where: Predicate | None,
    columns: Sequence[str] | None,
    descending: bool,
    ties: Ties,
    snapshot_id: str | None,
    isolation: Isolation = "read_committed",
) -> TopNRequest:
    """Returns the request for the first rows in the order of a column. Raises UsageError for invalid arguments."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_TOP_N:
        raise UsageError(f"limit must be a whole number between 1 and {MAX_TOP_N:,}, not {limit!r}")
    if not isinstance(order_by, str):
        raise UsageError(f"order_by must be the name of a column, not a {type(order_by).__name__}")
    text_of(order_by, "order_by")
    if ties not in ("key", "all"):
        raise UsageError(f'ties must be "key" or "all", not {ties!r}', option="ties")
    return lookup_pb2.TopNRequest(
        table=table,
        where=None if where is None else to_proto(where),
        snapshot=_snapshot(snapshot_id),
        by=order_by,
        ascending=not descending,
        n=limit,
        columns=None if columns is None else scan_pb2.ColumnNames(names=names_of(columns, "columns")),
        with_ties=ties == "all",
        isolation=isolation_message(isolation, snapshot_id),
    )


async def count(transport: Transport, request: CountRequest) -> CountResponse:
    """Runs a count. Without a predicate, the server answers at once, so the attempt timeout applies."""
    if not request.HasField("where"):
        return _check_unchanged(request, await transport.call(lambda: transport.services.lookups.Count, request))
    return _check_unchanged(request, await _run(transport, lambda: transport.services.lookups.Count, request))


async def aggregate(transport: Transport, request: AggregateRequest) -> AggregateResponse:
    """Runs an aggregation."""
    return _check_unchanged(request, await _run(transport, lambda: transport.services.lookups.Aggregate, request))


async def top_n(
    transport: Transport, request: TopNRequest, on_error: Callable[[ScanKvError], object] | None = None
) -> TopNResponse:
    """Runs a top-N query. With `on_error`, repeats it while the server is away, for the operation timeout.

    Args:
        transport: The client's connection.
        request: The query.
        on_error: Called with each error after which the query is repeated, or may be.
    """

    def retries(error: ScanKvError) -> bool:
        if on_error is None:
            return _may_pass(error)
        on_error(error)
        return isinstance(error, _AWAY)

    return _check_unchanged(request, await _run(transport, lambda: transport.services.lookups.TopN, request, retries))


async def wait_for_changed_top_n(
    transport: Transport,
    request: TopNRequest,
    on_error: Callable[[ScanKvError], object],
    *,
    wait: float,
    timeout: float,
) -> TopNResponse:
    """Runs a top-N query that waits at the server until the table has changed since a version.

    One attempt waits. If it gets no answer, the query is run as by `top_n`, which shows at once whether the server is
    back, and tries for the operation timeout.

    Args:
        transport: The client's connection.
        request: The query, with `if_changed_since`.
        on_error: Called with each error after which the query is repeated, or may be.
        wait: Seconds that the server may wait, at most 60.
        timeout: Seconds that the server may then take to answer.
    """
    waiting = lookup_pb2.TopNRequest()
    waiting.CopyFrom(request)
    waiting.wait_millis = round(wait * 1000)
    try:
        response = await transport.call_and_wait(lambda services: services.lookups.TopN, waiting, wait + timeout)
        return _check_unchanged(waiting, response)
    except (*_AWAY, DeadlineExceeded) as error:
        on_error(error)
        retry_after = error.retry_after
    await asyncio.sleep(backoff(1, retry_after))
    return await top_n(transport, request, on_error)


async def _run(
    transport: Transport,
    method: Callable[[], Method[_Request, _Response]],
    request: _Request,
    retries: Callable[[ScanKvError], bool] | None = None,
) -> _Response:
    """Runs a query with the complete operation timeout, because it may read much. Repeats it after some errors."""

    async def attempt(deadline: float) -> _Response:
        return await transport.attempt(method, request, deadline=deadline, is_long=True)

    return await transport.retry(attempt, request, retries=retries or _may_pass)


def _may_pass(error: ScanKvError) -> bool:
    """Returns whether to repeat the query: the server has not begun it, or the call was dropped on the way."""
    return isinstance(error, _BUSY) or (isinstance(error, Unavailable) and error.shed)


def _check_unchanged(request: _Query, response: _Result) -> _Result:
    """Returns the response, unless it says that nothing has changed although the request did not ask for that."""
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
    """Returns the rows in an answer. Raises ProtocolViolation if they are not Arrow data."""
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation("the server answered with something that is not Arrow data") from error
