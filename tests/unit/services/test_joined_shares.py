"""The shares of tablets in a query, joined: groups are exact, and ties that a tablet has dropped are known."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidRequest
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.tables.aggregates import Aggregate, AggregateFunction
from scankv.model.tables.columns import Schema, columns_from
from scankv.v1 import lookup_pb2, worker_pb2
from streaming_server.scan.chunk_source import Chunk
from streaming_server.scan.queries.aggregation import Aggregation
from streaming_server.scan.queries.top_n import TopNSpec
from streaming_server.services.tablets.joined_shares import JoinedGroups, JoinedRows

ARROW = pa.schema([pa.field("id", pa.int64(), nullable=False), ("score", pa.int64())])


def ipc_of_rows(rows: list[tuple[int, int | None]]) -> bytes:
    batch = pa.RecordBatch.from_pylist([{"id": key, "score": score} for key, score in rows], schema=ARROW)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def joined_rows(n: int, *, with_ties: bool = False, ascending: bool = False) -> JoinedRows:
    spec = TopNSpec(by="score", n=n, ascending=ascending, columns=("id",), with_ties=with_ties)
    return JoinedRows(spec, KeyCodec([pa.int64()], ["id"]))


def ids_of(joined: JoinedRows) -> list[int]:
    response, cost = joined.respond({}, b"v")
    answer = lookup_pb2.TopNResponse.FromString(response + cost)
    ids: list[int] = pa.ipc.open_stream(answer.rows).read_all()["id"].to_pylist()
    return ids


def test_ties_that_a_tablet_has_dropped_are_an_error_only_if_their_value_is_the_last() -> None:
    joined = joined_rows(1, with_ties=True)
    joined.add(worker_pb2.QueriedResult(has_too_many_ties=True), ipc_of_rows([(1, 5)]))
    joined.add(worker_pb2.QueriedResult(), ipc_of_rows([(2, 4)]))
    with pytest.raises(InvalidRequest, match="100,000"):
        ids_of(joined)
    joined.add(worker_pb2.QueriedResult(), ipc_of_rows([(3, 6), (4, 6)]))
    assert ids_of(joined) == [3, 4]


def groups(max_groups: int = 100) -> Aggregation:
    schema = Schema(1, columns_from(ARROW, 1))
    asked = [Aggregate("score", AggregateFunction.SUM), Aggregate("score", AggregateFunction.MEAN)]
    return Aggregation(asked, ["id"], schema, max_groups=max_groups)


def state_of(rows: list[tuple[int, int | None]]) -> bytes:
    aggregation = groups()
    batch = pa.RecordBatch.from_pylist([{"id": key, "score": score} for key, score in rows], schema=ARROW)
    aggregation.add(Chunk(0, batch))
    state = aggregation.state()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, state.schema) as writer:
        writer.write_table(state)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_sums_of_groups_are_exact_although_a_part_of_them_overflows() -> None:
    joined = JoinedGroups(groups())
    great = 2**63 - 1
    tablets: list[list[tuple[int, int | None]]] = [[(1, great)], [(1, great), (2, None)], [(1, -great), (1, 3 - great)]]
    for rows in tablets:
        joined.add(worker_pb2.QueriedResult(), state_of(rows))
    answer = lookup_pb2.AggregateResponse.FromString(joined.respond({}, b"")[0])
    assert pa.ipc.open_stream(answer.rows).read_all().to_pylist() == [
        {"id": 1, "score_sum": 3, "score_mean": 0.75},
        {"id": 2, "score_sum": None, "score_mean": None},
    ]


def test_groups_of_all_tablets_together_have_a_limit() -> None:
    joined = JoinedGroups(groups(3))
    joined.add(worker_pb2.QueriedResult(), state_of([(1, 1), (2, 1)]))
    with pytest.raises(InvalidRequest, match="more than 3 groups"):
        joined.add(worker_pb2.QueriedResult(), state_of([(3, 1), (4, 1)]))
