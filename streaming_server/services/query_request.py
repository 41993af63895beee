"""Reads the queries of `LookupService` from their requests, and binds each to the columns of its table once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from scankv.model.errors import InvalidRequest
from scankv.model.expressions import plan_order
from scankv.model.expressions.wire import from_proto
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_COLUMNS
from scankv.model.tables.aggregates import Aggregate, AggregateFunction
from scankv.v1 import lookup_pb2
from streaming_server.scan.columnar.base_view import FEW_ROWS
from streaming_server.scan.queries.aggregation import Aggregation, RowCounter
from streaming_server.scan.queries.top_n import TopNSpec
from streaming_server.scan.read_plan import ReadPlan
from streaming_server.services.isolation import reads_latest
from streaming_server.services.scan_request import bucket_numbers, column_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.schema import TableDefinition

QueryRequest: TypeAlias = "lookup_pb2.CountRequest | lookup_pb2.AggregateRequest | lookup_pb2.TopNRequest"
"""A request for a result that is computed of many rows."""

_Request = TypeVar("_Request", lookup_pb2.CountRequest, lookup_pb2.AggregateRequest, lookup_pb2.TopNRequest)
_Result = TypeVar("_Result")

_FUNCTIONS = {
    lookup_pb2.AggregateFunction.Value(f"AGGREGATE_FUNCTION_{function.name}"): function
    for function in AggregateFunction
}


@dataclass(frozen=True, slots=True)
class BoundQuery(Generic[_Request, _Result]):
    """A query whose columns and predicate fit one definition of its table. Compute its result at most once.

    Attributes:
        request: The request.
        definition: The definition of the table.
        plan: The rows and columns to read. Its predicate is bound.
        result: What to compute of the rows.
    """

    request: _Request
    definition: TableDefinition
    plan: ReadPlan
    result: _Result

    def fits(self, definition: TableDefinition) -> bool:
        """Whether the table still has the columns that the query was bound to."""
        bound = self.definition
        return (bound.incarnation, bound.schema.id) == (definition.incarnation, definition.schema.id)


def bind_count(
    request: lookup_pb2.CountRequest, definition: TableDefinition
) -> BoundQuery[lookup_pb2.CountRequest, RowCounter]:
    """Binds a count. Raises InvalidRequest or SchemaMismatch."""
    plan = _plan_of(request, (), bucket_numbers(request.buckets))
    return BoundQuery(request, definition, plan.bind(definition.schema), RowCounter())


def bind_aggregate(
    request: lookup_pb2.AggregateRequest, definition: TableDefinition
) -> BoundQuery[lookup_pb2.AggregateRequest, Aggregation]:
    """Binds aggregates. Raises InvalidRequest or SchemaMismatch."""
    aggregation = Aggregation(_aggregates_of(request), request.group_by, definition.schema)
    plan = _plan_of(request, aggregation.columns)
    return BoundQuery(request, definition, plan.bind(definition.schema), aggregation)


def top_n_of(request: lookup_pb2.ExplainTopNRequest) -> lookup_pb2.TopNRequest:
    """Returns the query that a request wants explained. Both messages have the same fields."""
    return lookup_pb2.TopNRequest.FromString(request.SerializeToString())


def bind_top_n(
    request: lookup_pb2.TopNRequest, definition: TableDefinition
) -> BoundQuery[lookup_pb2.TopNRequest, TopNSpec]:
    """Binds a top-N. Raises InvalidRequest or SchemaMismatch."""
    spec = TopNSpec(
        by=request.by,
        n=request.n,
        ascending=request.ascending,
        columns=column_names(request.columns) if request.HasField("columns") else None,
        with_ties=request.with_ties,
    )
    spec.check(definition.schema)
    plan = _plan_of(request, (spec.by,)).bind(definition.schema)
    if _is_key_order(spec, plan, definition):
        plan = replace(plan, columns=spec.columns, ordered=True, reverse=not spec.ascending, limit=spec.n)
    else:
        plan = replace(plan, stored_rows=True)
    return BoundQuery(request, definition, plan, spec)


def _is_key_order(spec: TopNSpec, plan: ReadPlan, definition: TableDefinition) -> bool:
    """Returns whether a scan in key order, or in reverse, finds the requested rows first.

    The predicate sets all key columns before `by` to a single value, and is true of all rows in its key ranges:
    otherwise such a scan may read many rows, which takes longer in key order. Rows with equal values in `by` are
    ordered by ascending key, and ties may be requested; so other key columns may follow only if neither matters. A
    scan for so few rows reads RocksDB: bases have no stored rows to merge in one order.
    """
    if spec.by not in definition.primary_key or spec.n > FEW_ROWS:
        return False
    names = definition.primary_key[: definition.primary_key.index(spec.by) + 1]
    is_unique = len(names) == len(definition.primary_key)
    if not is_unique and (spec.with_ties or not spec.ascending):
        return False
    where = None if plan.binding is None else plan.binding.predicate
    order = plan_order(where, spec.by, KeyCodec(definition.key_schema.types[: len(names)], names))
    return order is not None and order.residual is None


def _plan_of(request: QueryRequest, columns: tuple[str, ...], buckets: tuple[int, ...] | None = None) -> ReadPlan:
    return ReadPlan(
        buckets=buckets,
        columns=columns,
        where=from_proto(request.where) if request.HasField("where") else None,
        # Only resume tokens contain it, and a query returns none.
        where_message=b"",
        key_range=KeyRange(),
        reverse=False,
        limit=None,
        resume_token=b"",
        latest=reads_latest(request),
    )


def _aggregates_of(request: lookup_pb2.AggregateRequest) -> Sequence[Aggregate]:
    """Returns the aggregates of a request. Raises InvalidRequest for too many columns or an unknown function."""
    if max(len(request.aggregates), len(request.group_by)) > MAX_COLUMNS:
        raise InvalidRequest(f"the request names over {MAX_COLUMNS} columns: no table has more")
    aggregates = []
    for message in request.aggregates:
        if not 1 <= len(message.functions) <= len(_FUNCTIONS):
            raise InvalidRequest(
                f'column "{message.column}": 1 to {len(_FUNCTIONS)} functions must be named, each once'
            )
        for number in message.functions:
            if number not in _FUNCTIONS:
                raise InvalidRequest(f'column "{message.column}": this server has no function {number}')
            aggregates.append(Aggregate(message.column, _FUNCTIONS[number]))
    return aggregates
