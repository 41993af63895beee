"""Aggregates and top-N without the client library: what is refused, the view, and the largest answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.v1 import lookup_pb2, write_pb2
from tests.support.tables import ipc_stream
from tests.support.wire import Wire, refusal

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64()), ("data", pa.binary())])
TABLE = "server.aggregates"
SUM = lookup_pb2.AGGREGATE_FUNCTION_SUM


@pytest.fixture(scope="module")
def table(shared_server: ServerProcess) -> str:
    """Makes a table with 40 rows of 1 MiB each."""
    with Wire(shared_server.url) as wire:
        wire.create(TABLE, SCHEMA)
        for start in range(0, 40, 10):
            rows = [{"player": f"p{i}", "score": i, "data": b"x" * (1 << 20)} for i in range(start, start + 10)]
            batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            wire.writes.Upsert(write_pb2.UpsertRequest(table=TABLE, rows=ipc_stream(SCHEMA, batch)))
    return TABLE


def asked(*functions: int, column: str = "score") -> lookup_pb2.ColumnAggregates:
    message = lookup_pb2.ColumnAggregates(column=column)
    message.functions.extend(functions)  # type: ignore[arg-type]  # numbers that are none, too
    return message


@pytest.mark.represented_by("AggregateRequest-INVALID_REQUEST-1 to 5 functions must be named1")
@pytest.mark.parametrize(
    ("request_", "reason", "said"),
    [
        (lookup_pb2.AggregateRequest(aggregates=[asked()]), "INVALID_REQUEST", "1 to 5 functions must be named"),
        (
            lookup_pb2.AggregateRequest(aggregates=[asked(*[SUM] * 6)]),
            "INVALID_REQUEST",
            "1 to 5 functions must be named",
        ),
        (lookup_pb2.AggregateRequest(aggregates=[asked(0)]), "INVALID_REQUEST", "no function 0"),
        (lookup_pb2.AggregateRequest(aggregates=[asked(99)]), "INVALID_REQUEST", "no function 99"),
        (lookup_pb2.AggregateRequest(aggregates=[asked(SUM, SUM)]), "INVALID_REQUEST", "twice"),
        (lookup_pb2.AggregateRequest(group_by=["player"] * 1001), "INVALID_REQUEST", "1000 columns"),
        (lookup_pb2.AggregateRequest(), "INVALID_REQUEST", "the query has no aggregates"),
        (lookup_pb2.TopNRequest(by="score"), "INVALID_REQUEST", "n must be between 1 and 100,000"),
        (lookup_pb2.TopNRequest(by="score", n=100_001), "INVALID_REQUEST", "n must be between 1 and 100,000"),
        (lookup_pb2.TopNRequest(n=1), "SCHEMA_MISMATCH", "no column"),
        (lookup_pb2.TopNRequest(by="score", n=40), "REQUEST_TOO_LARGE", "33,554,432"),
        (
            lookup_pb2.AggregateRequest(
                aggregates=[asked(lookup_pb2.AGGREGATE_FUNCTION_MAX, column="data")], group_by=["player"]
            ),
            "REQUEST_TOO_LARGE",
            "33,554,432",
        ),
    ],
)
def test_what_no_client_of_ours_asks_is_refused(
    wire: Wire, table: str, request_: lookup_pb2.AggregateRequest | lookup_pb2.TopNRequest, reason: str, said: str
) -> None:
    request_.table = table
    aggregates = isinstance(request_, lookup_pb2.AggregateRequest)
    found = refusal(wire.lookups.Aggregate if aggregates else wire.lookups.TopN, request_)
    assert found.reason == reason
    assert said in found.message


def test_a_field_of_a_newer_client_is_refused_also_inside_of_what_is_repeated(wire: Wire, table: str) -> None:
    newer = lookup_pb2.ColumnAggregates.FromString(asked(SUM).SerializeToString() + b"\xf8\x07\x01")
    request = lookup_pb2.AggregateRequest(table=table, aggregates=[newer])
    assert refusal(wire.lookups.Aggregate, request).reason == "UNKNOWN_FIELD"


def test_answers_carry_the_offsets_of_their_view(wire: Wire, table: str) -> None:
    offsets = dict(wire.lookups.Count(lookup_pb2.CountRequest(table=table)).log_offsets)
    assert set(offsets) == {0, 1, 2}
    sums = wire.lookups.Aggregate(lookup_pb2.AggregateRequest(table=table, aggregates=[asked(SUM)]))
    assert dict(sums.log_offsets) == offsets
    assert pa.ipc.open_stream(sums.rows).read_all().to_pylist() == [{"score_sum": sum(range(40))}]
    top = wire.lookups.TopN(lookup_pb2.TopNRequest(table=table, by="score", n=30))
    assert dict(top.log_offsets) == offsets
    assert pa.ipc.open_stream(top.rows).read_all()["score"].to_pylist() == list(range(39, 9, -1))
