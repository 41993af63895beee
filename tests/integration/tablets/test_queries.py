"""Counts, aggregates and top-N of tables with tablets have the same answers as those of other tables."""

from __future__ import annotations

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import ScanCancelled, col, sync
from scankv.model.expressions.wire import to_proto
from scankv.v1 import lookup_pb2, scan_pb2
from tests.support.tables import ipc_stream
from tests.support.tablet_twins import BUCKETS, TABLETS, TabletTwins
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import LiveScan

pytestmark = pytest.mark.timeout(120)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("team", pa.string()),
        ("number", pa.int64()),
        ("small", pa.int16()),
        ("price", pa.decimal128(38, 2)),
        ("ratio", pa.float64()),
        ("half", pa.float16()),
        ("text", pa.string()),
    ]
)
ROWS = 3000
LARGE = 1_200_000
SLOW = " AND ".join(f"text <> 'y{number}'" for number in range(900))
GREAT = 2**63 - 1
DECIMAL = Decimal("9" * 36 + ".99")
FLOATS = [0.0, -0.0, math.nan, math.inf, -1.5, 2.25, None]
SUM, MIN, MAX, MEAN, COUNT = (
    lookup_pb2.AGGREGATE_FUNCTION_SUM,
    lookup_pb2.AGGREGATE_FUNCTION_MIN,
    lookup_pb2.AGGREGATE_FUNCTION_MAX,
    lookup_pb2.AGGREGATE_FUNCTION_MEAN,
    lookup_pb2.AGGREGATE_FUNCTION_COUNT,
)


def rows(first: int = 0, count: int = ROWS) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = [
        list(numbers),
        [None if n % 11 == 0 else f"team {n % 7}" for n in numbers],
        [None if n % 13 == 0 else (n * 7919) % 101 for n in numbers],
        [n % 5 - 2 for n in numbers],
        [Decimal(n) / 4 for n in numbers],
        [FLOATS[n % len(FLOATS)] for n in numbers],
        [None if n % 3 == 0 else (n % 8) / 2 for n in numbers],
        [f"text {n}" for n in numbers],
    ]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@pytest.fixture(scope="module")
def twins(client: sync.Client, wire: Wire) -> TabletTwins:
    twins = TabletTwins.create(client, wire, "queries.twins", SCHEMA, ["id"], indexes=[["number"]])
    twins.upsert(rows())
    return twins


def aggregates(**functions: list[Any]) -> list[lookup_pb2.ColumnAggregates]:
    return [lookup_pb2.ColumnAggregates(column=name, functions=each) for name, each in functions.items()]


def fields_of(answer: Any) -> Any:  # a response, or an error
    """Returns all that must be equal for both tables."""
    if isinstance(answer, tuple):
        return answer
    found = {"log_offsets": dict(answer.log_offsets), "unchanged": answer.unchanged, "versions": bool(answer.version)}
    if isinstance(answer, lookup_pb2.CountResponse):
        return {**found, "rows": answer.rows}
    table = pa.ipc.open_stream(answer.rows).read_all()
    # NaN is not equal to itself, but its text is.
    return {**found, "schema": table.schema, "rows": repr(table.to_pylist()), "count": table.num_rows}


def assert_same(twins: TabletTwins, call: Callable[[str], Any]) -> Any:  # a response, or an error
    plain, divided = twins.both(call)
    assert fields_of(divided) == fields_of(plain)
    return divided


WHERE = to_proto((col("number") > 20) & (col("team") != "team 3"))
NOTHING = to_proto(col("number") > 1000)

AGGREGATES = {
    "integers": {"aggregates": aggregates(number=[SUM, MIN, MAX, MEAN, COUNT], small=[SUM, MEAN])},
    "decimals": {"aggregates": aggregates(price=[SUM, MIN, MAX, MEAN])},
    "floats": {"aggregates": aggregates(ratio=[MIN, MAX, COUNT], half=[SUM, MIN, MAX, MEAN])},
    "texts": {"aggregates": aggregates(text=[MIN, MAX, COUNT])},
    "groups": {"aggregates": aggregates(number=[SUM, COUNT], price=[MEAN]), "group_by": ["team"]},
    "groups of floats": {"aggregates": aggregates(number=[SUM]), "group_by": ["ratio", "small"]},
    "groups alone": {"group_by": ["half", "team"]},
    "a group for each row": {"aggregates": aggregates(small=[MAX]), "group_by": ["text"]},
    "matching rows": {"aggregates": aggregates(number=[SUM, COUNT]), "group_by": ["team"], "where": WHERE},
    "no rows": {"aggregates": aggregates(number=[SUM, COUNT, MIN, MEAN], ratio=[SUM]), "where": NOTHING},
    "no groups": {"aggregates": aggregates(number=[SUM]), "group_by": ["team"], "where": NOTHING},
    "latest": {"aggregates": aggregates(number=[SUM]), "isolation": scan_pb2.ISOLATION_READ_LATEST},
    "nothing": {},
    "an unknown column": {"aggregates": aggregates(nothing=[SUM])},
    "a sum of texts": {"aggregates": aggregates(text=[SUM])},
    "latest, if changed": {
        "aggregates": aggregates(number=[SUM]),
        "isolation": scan_pb2.ISOLATION_READ_LATEST,
        "if_changed_since": b"x",
    },
}


@pytest.mark.parametrize("asked", AGGREGATES.values(), ids=AGGREGATES.keys())
def test_aggregates_are_equal(twins: TabletTwins, asked: dict[str, Any]) -> None:
    assert_same(twins, lambda name: twins.wire.lookups.Aggregate(lookup_pb2.AggregateRequest(table=name, **asked)))


TOP_N = {
    "greatest": {"by": "number", "n": 10},
    "least": {"by": "number", "n": 10, "ascending": True},
    "many": {"by": "number", "n": 2900},
    "all, nulls last": {"by": "number", "n": ROWS + 5, "ascending": True},
    "without an index": {"by": "small", "n": 100},
    "floats": {"by": "ratio", "n": 2000},
    "least floats": {"by": "half", "n": 1500, "ascending": True},
    "decimals": {"by": "price", "n": 7},
    "some columns": {"by": "number", "n": 50, "columns": scan_pb2.ColumnNames(names=["text", "small"])},
    "no columns": {"by": "small", "n": 50, "columns": scan_pb2.ColumnNames()},
    "a covered column": {"by": "number", "n": 50, "columns": scan_pb2.ColumnNames(names=["number"])},
    "ties": {"by": "small", "n": 3, "with_ties": True},
    "ties by an index": {"by": "number", "n": 3, "with_ties": True},
    "ties of nulls": {"by": "number", "n": 2990, "with_ties": True, "columns": scan_pb2.ColumnNames(names=["id"])},
    "matching rows": {"by": "number", "n": 20, "where": WHERE},
    "matching rows, scanned": {"by": "price", "n": 20, "where": WHERE},
    "no rows": {"by": "number", "n": 20, "where": NOTHING},
    "latest": {"by": "number", "n": 20, "isolation": scan_pb2.ISOLATION_READ_LATEST},
    "none": {"by": "number", "n": 0},
    "an unknown column": {"by": "nothing", "n": 1},
    "an unknown column to return": {"by": "number", "n": 1, "columns": scan_pb2.ColumnNames(names=["nothing"])},
    "waiting for nothing": {"by": "number", "n": 1, "wait_millis": 100},
    "waiting too long": {"by": "number", "n": 1, "wait_millis": 100_000, "if_changed_since": b"x"},
}


@pytest.mark.parametrize("asked", TOP_N.values(), ids=TOP_N.keys())
def test_first_rows_are_equal(twins: TabletTwins, asked: dict[str, Any]) -> None:
    answer = assert_same(twins, lambda name: twins.wire.lookups.TopN(lookup_pb2.TopNRequest(table=name, **asked)))
    plain = twins.both(lambda name: twins.wire.lookups.TopN(lookup_pb2.TopNRequest(table=name, **asked)))[0]
    if not isinstance(answer, tuple):
        assert list(answer.index) == list(plain.index)


COUNTS = {
    "all": {},
    "matching rows": {"where": WHERE},
    "some buckets": {"buckets": [6, 0, 3]},
    "one bucket": {"buckets": [4], "where": WHERE},
    "latest": {"isolation": scan_pb2.ISOLATION_READ_LATEST},
    "a bucket twice": {"buckets": [1, 1]},
    "an unknown bucket": {"buckets": [1, BUCKETS]},
    "an unknown column": {"where": to_proto(col("nothing") > 1)},
    "an unknown snapshot": {"isolation": 17},
}


@pytest.mark.parametrize("asked", COUNTS.values(), ids=COUNTS.keys())
def test_counts_are_equal(twins: TabletTwins, asked: dict[str, Any]) -> None:
    assert_same(twins, lambda name: twins.wire.lookups.Count(lookup_pb2.CountRequest(table=name, **asked)))


@pytest.mark.breadth
def test_integers_and_decimals_that_no_sum_holds_have_a_mean(client: sync.Client, wire: Wire) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("d", pa.decimal128(38, 2))])
    twins = TabletTwins.create(client, wire, "queries.great", schema, ["id"])

    def great(first: int, sign: int) -> pa.RecordBatch:
        columns = [
            range(first, first + 30),
            [sign * (GREAT - n) for n in range(30)],
            [DECIMAL if sign > 0 else DECIMAL.copy_negate()] * 30,
        ]
        arrays = [pa.array(column, type_) for column, type_ in zip(columns, schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    twins.upsert(great(0, 1))

    def asked(function: int) -> Callable[[str], Any]:
        return lambda name: wire.lookups.Aggregate(
            lookup_pb2.AggregateRequest(table=name, aggregates=aggregates(n=[function], d=[function]))
        )

    mean = pa.ipc.open_stream(assert_same(twins, asked(MEAN)).rows).read_all().to_pylist()
    assert mean == [{"n_mean": float(GREAT), "d_mean": DECIMAL}]
    assert assert_same(twins, asked(SUM))[1] == "INVALID_REQUEST"
    twins.upsert(great(100, -1))
    total = pa.ipc.open_stream(assert_same(twins, asked(SUM)).rows).read_all().to_pylist()
    assert total == [{"n_sum": 0, "d_sum": Decimal("0.00")}]


@pytest.mark.breadth
def test_floats_are_added_in_the_same_order_each_time(client: sync.Client, wire: Wire) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("ratio", pa.float64())])
    twins = TabletTwins.create(client, wire, "queries.floats", schema, ["id"])
    numbers = range(5000)
    # Each order of additions has another sum.
    values = pa.array([10.0 ** (number % 17) / 3 for number in numbers])
    twins.upsert(pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), values], schema=schema))

    def total(name: str, isolation: Any) -> float:
        request = lookup_pb2.AggregateRequest(table=name, aggregates=aggregates(ratio=[SUM]), isolation=isolation)
        return float(pa.ipc.open_stream(wire.lookups.Aggregate(request).rows).read_all()[0][0].as_py())

    plain, divided = twins.both(lambda name: total(name, scan_pb2.ISOLATION_READ_COMMITTED))
    assert divided == pytest.approx(plain)
    # Nothing keeps the results of the latest rows, so that these are computed again.
    assert {total(twins.names[1], scan_pb2.ISOLATION_READ_LATEST) for _ in range(5)} == {divided}


@pytest.mark.breadth
def test_too_many_ties_are_refused_only_if_they_are_the_last(client: sync.Client, wire: Wire) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("score", pa.int64())])
    twins = TabletTwins.create(client, wire, "queries.ties", schema, ["id"])
    many = 100_010
    ones = pa.array([1] * many, pa.int64())
    twins.upsert(pa.RecordBatch.from_arrays([pa.array(range(many), pa.int64()), ones], schema=schema))

    def first(name: str) -> Any:  # a response, or an error
        return wire.lookups.TopN(lookup_pb2.TopNRequest(table=name, by="score", n=2, with_ties=True))

    assert assert_same(twins, first)[1] == "INVALID_REQUEST"
    twins.upsert([{"id": many + n, "score": 5} for n in range(3)])
    assert pa.ipc.open_stream(assert_same(twins, first).rows).read_all().num_rows == 3


def test_an_unchanged_result_is_known_without_reading_rows(twins: TabletTwins) -> None:
    table, lookups = twins.names[1], twins.wire.lookups
    requests: list[tuple[Any, Any]] = [
        (lookups.Count, lookup_pb2.CountRequest(table=table, where=WHERE)),
        (lookups.Aggregate, lookup_pb2.AggregateRequest(table=table, aggregates=aggregates(small=[SUM]))),
        (lookups.TopN, lookup_pb2.TopNRequest(table=table, by="small", n=4)),
    ]
    for call, request in requests:
        first = call(request)
        before = twins.client.stats().rows_scanned
        assert call(request).version == first.version
        request.if_changed_since = first.version
        answer = call(request)
        assert (answer.unchanged, answer.version) == (True, first.version)
        assert twins.client.stats().rows_scanned == before
    twins.upsert([{"id": 5, "small": 1}])
    for call, request in requests:
        answer = call(request)
        assert not answer.unchanged
        assert answer.version != request.if_changed_since
        assert len(answer.log_offsets) == BUCKETS


def test_versions_of_counts_aggregates_first_rows_and_scans_are_the_same(twins: TabletTwins) -> None:
    table, lookups = twins.names[1], twins.wire.lookups
    header = next(iter(twins.wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=table)))).header
    counted = lookups.Count(lookup_pb2.CountRequest(table=table))
    first = lookups.TopN(lookup_pb2.TopNRequest(table=table, by="small", n=1))
    summed = lookups.Aggregate(lookup_pb2.AggregateRequest(table=table, aggregates=aggregates(small=[SUM])))
    assert {header.version, counted.version, first.version, summed.version} == {counted.version}


def test_only_what_has_changed_is_read_again(twins: TabletTwins) -> None:
    table, lookups = twins.names[1], twins.wire.lookups
    request = lookup_pb2.TopNRequest(table=table, by="price", n=3)
    read = lookups.TopN(request).rows_scanned
    assert read in (0, ROWS)
    twins.upsert([{"id": 1, "small": 2}])
    twins.upsert([{"id": 1, "small": 1}])
    again = lookups.TopN(request).rows_scanned
    assert 0 < again < ROWS


@pytest.mark.breadth
def test_a_query_that_waits_is_answered_when_any_tablet_changes(twins: TabletTwins) -> None:
    lookups = twins.wire.lookups
    request = lookup_pb2.TopNRequest(table=twins.names[1], by="number", n=2)
    for number in range(2 * TABLETS):
        first = lookups.TopN(request)
        waiting = lookup_pb2.TopNRequest()
        waiting.CopyFrom(request)
        waiting.if_changed_since, waiting.wait_millis = first.version, 60_000
        call = lookups.TopN.future(waiting, timeout=100)
        wait_until(lambda: twins.wire.server().waiting_calls == 1, "the call waits")
        twins.upsert([{"id": 10_000 + number, "number": 5_000 + number}])
        answer = call.result(timeout=60)
        assert not answer.unchanged
        assert pa.ipc.open_stream(answer.rows).read_all()["id"][0].as_py() == 10_000 + number
    waiting.if_changed_since, waiting.wait_millis = answer.version, 200
    assert lookups.TopN(waiting).unchanged
    wait_until(lambda: twins.wire.server().waiting_calls == 0, "nothing waits any more")


@pytest.fixture
def pair(twins: TabletTwins) -> tuple[int, int]:
    """The keys of two rows in different tablets, of which the second is written after the first."""
    table = twins.client.table(twins.names[1])
    by_bucket = {}
    for key in range(100):
        (bucket,) = twins.wire.lookups.Lookup(
            lookup_pb2.LookupRequest(table=table.name, keys=key_of(key))
        ).log_offsets.keys()
        by_bucket[bucket] = key
    return by_bucket[BUCKETS - 1], by_bucket[0]


def key_of(key: int) -> bytes:
    keys = pa.record_batch([pa.array([key], pa.int64())], pa.schema([SCHEMA.field("id")]))
    return ipc_stream(keys.schema, keys)


@pytest.mark.breadth
def test_queries_see_all_tablets_at_one_instant(twins: TabletTwins, pair: tuple[int, int]) -> None:
    first, second = pair
    table, lookups = twins.client.table(twins.names[1]), twins.wire.lookups
    where = to_proto(col("id").is_in([first, second]))
    requests = {
        "TopN": lookup_pb2.TopNRequest(
            table=table.name, by="price", n=2, where=where, columns=scan_pb2.ColumnNames(names=["id", "price"])
        ),
        "Aggregate": lookup_pb2.AggregateRequest(
            table=table.name, where=where, group_by=["id"], aggregates=aggregates(price=[MAX])
        ),
    }
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count(1_000_000):
            for key in pair:
                table.upsert([{"id": key, "price": Decimal(number)}])
            if stop.is_set():
                return

    table.upsert([{"id": key, "price": Decimal(999_999)} for key in pair])
    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        for _ in range(40):
            for name, request in requests.items():
                rows = pa.ipc.open_stream(getattr(lookups, name)(request).rows).read_all()
                found = dict(zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True))
                assert found[first] - found[second] in (0, 1)
                seen.add(found[first])
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 10


def test_a_query_that_waits_ends_when_the_table_is_dropped(client: sync.Client, wire: Wire) -> None:
    twins = TabletTwins.create(client, wire, "queries.dropped", SCHEMA, ["id"])
    twins.upsert(rows(count=50))
    name = twins.names[1]
    first = wire.lookups.TopN(lookup_pb2.TopNRequest(table=name, by="number", n=2))
    request = lookup_pb2.TopNRequest(table=name, by="number", n=2, if_changed_since=first.version, wait_millis=60_000)
    calls = [wire.lookups.TopN.future(request, timeout=100) for _ in range(4)]
    wait_until(lambda: wire.server().waiting_calls == 4, "the calls wait")
    client.drop_table(name)
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call.result(timeout=60)
        assert refusal_of(caught.value).reason == "TABLE_NOT_FOUND"


@pytest.fixture(scope="module")
def large(client: sync.Client) -> sync.Table:
    """A table that a query with the predicate `SLOW` reads for seconds."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    table = client.create_table("queries.large", schema, primary_key=["id"], buckets=BUCKETS, tablets=TABLETS)
    table.upsert(pa.table({"id": range(LARGE), "text": ["x" * 20] * LARGE}, schema=schema))
    return table


@pytest.mark.breadth
@pytest.mark.parametrize("query", ["count", "aggregate", "top_n"])
def test_a_query_is_listed_once_and_can_be_cancelled(client: sync.Client, large: sync.Table, query: str) -> None:
    table, name = large, large.name
    ask: dict[str, Callable[[], object]] = {
        "count": lambda: table.count(SLOW),
        "aggregate": lambda: table.aggregate({"text": "max"}, SLOW, group_by=["id"]),
        "top_n": lambda: table.top_n(10, "text", SLOW),
    }

    def listed() -> list[LiveScan]:
        return [each for each in client.live_scans() if each.table == name]

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask[query])
        (live,) = wait_until(listed, "the query is listed")
        client.cancel_scan(live.scan_id)
        with pytest.raises(ScanCancelled, match=f"cancelled the scan {live.scan_id} of {name}$"):
            asking.result(60)
    assert listed() == []
