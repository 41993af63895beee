"""Answers about many rows that the server computes, so that the rows do not travel: counts, aggregates, top-N."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from aio_client._retry import with_retries
from protos.scankv.v1 import lookup_pb2, scan_pb2
from table_model.aggregates import AggregateFunction
from table_model.errors import ProtocolViolation, TooManyScans, UsageError, did_you_mean
from table_model.expressions.wire import to_proto
from table_model.limits import MAX_TOP_N

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aio_client._transport import Method, Transport
    from table_model.expressions import Predicate

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


async def count(transport: Transport, table: str, where: Predicate | None, snapshot_id: str | None) -> int:
    """The rows of a table, or of a snapshot of it, for which a predicate is true; without one nothing is read."""
    request = lookup_pb2.CountRequest(
        table=table, where=None if where is None else to_proto(where), snapshot=_snapshot(snapshot_id)
    )
    if where is None:
        return (await transport.call(transport.services.lookups.Count, request)).rows
    return (await _answer(transport, lambda: transport.services.lookups.Count, request)).rows


async def aggregate(
    transport: Transport,
    table: str,
    functions: Mapping[str, str | Iterable[str]],
    where: Predicate | None,
    group_by: Sequence[str],
    snapshot_id: str | None,
) -> pa.Table:
    """Functions of columns over all rows or for groups. Raises UsageError for a function that does not exist."""
    if not isinstance(functions, Mapping):
        raise UsageError(f'functions is a dictionary such as {{"score": ["sum"]}}, not a {type(functions).__name__}')
    request = lookup_pb2.AggregateRequest(
        table=table,
        where=None if where is None else to_proto(where),
        snapshot=_snapshot(snapshot_id),
        aggregates=[
            lookup_pb2.ColumnAggregates(column=column, functions=_numbers(column, names))
            for column, names in functions.items()
        ],
        group_by=_names(group_by),
    )
    return _rows((await _answer(transport, lambda: transport.services.lookups.Aggregate, request)).rows)


async def top_n(
    transport: Transport,
    table: str,
    n: int,
    by: str,
    where: Predicate | None,
    columns: Sequence[str] | None,
    descending: bool,
    snapshot_id: str | None,
) -> pa.Table:
    """The first rows in the order of a column. Raises UsageError for an `n` out of its range."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_TOP_N:
        raise UsageError(f"n must be a whole number from 1 to {MAX_TOP_N:,}, not {n!r}")
    if not isinstance(by, str):
        raise UsageError(f"by is the name of a column, not a {type(by).__name__}")
    request = lookup_pb2.TopNRequest(
        table=table,
        where=None if where is None else to_proto(where),
        snapshot=_snapshot(snapshot_id),
        by=by,
        ascending=not descending,
        n=n,
        columns=None if columns is None else scan_pb2.ColumnNames(names=_names(columns)),
    )
    return _rows((await _answer(transport, lambda: transport.services.lookups.TopN, request)).rows)


async def _answer(
    transport: Transport, method: Callable[[], Method[_Request, _Response]], request: _Request
) -> _Response:
    """Asks with the whole operation timeout, since the server may have much to read, and again when it is full."""

    async def attempt(deadline: float) -> _Response:
        return await transport.call(method(), request, timeout=max(deadline - time.monotonic(), 0.001))

    return await with_retries(
        attempt,
        timeout=transport.config.operation_timeout,
        retries=lambda error: isinstance(error, TooManyScans),
    )


def _snapshot(snapshot_id: str | None) -> scan_pb2.PinnedSnapshot | None:
    return None if snapshot_id is None else scan_pb2.PinnedSnapshot(snapshot_id=snapshot_id)


def _names(names: Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _numbers(column: str, names: str | Iterable[str]) -> list[lookup_pb2.AggregateFunction.ValueType]:
    numbers = []
    for name in [names] if isinstance(names, str) else names:
        if name not in list(AggregateFunction):
            raise UsageError(
                f'column "{column}": there is no function {name!r}{did_you_mean(str(name), AggregateFunction)}'
            )
        numbers.append(lookup_pb2.AggregateFunction.Value(f"AGGREGATE_FUNCTION_{AggregateFunction(name).name}"))
    return numbers


def _rows(data: bytes) -> pa.Table:
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation("the server answered with something that is not Arrow data") from error
