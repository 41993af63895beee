"""Scans of several key ranges and single keys read only these and return the same rows as a scan of the whole table."""

from __future__ import annotations

import math
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aio_client import col, sync
from scankv.model.expressions import all_of, any_of, bind, evaluate
from tests.support.bases import ALL_THE_TIME, is_of_bases
from tests.support.examples import examples
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import Predicate

NAMES = ["", "a", "a\0", "ab", "b", "p1", "p2", "\xe9"]
LEVELS = [-math.inf, -1.5, 0.0, 0.25, 1e300, math.inf, math.nan]
SCHEMA = pa.schema(
    [
        pa.field("c", pa.string(), nullable=False),
        pa.field("a", pa.int32(), nullable=False),
        pa.field("l", pa.float64(), nullable=False),
        ("v", pa.int64()),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"c": c, "a": a, "l": level, "v": None if number % 5 == 0 else number % 7}
    for number, (c, a, level) in enumerate((c, a, level) for c in NAMES for a in range(12) for level in LEVELS)
    if number % 3
]
DATA = pa.Table.from_pylist(ROWS, schema=SCHEMA).combine_chunks().to_batches()[0]
TABLES = ["ranges.hashed", "ranges.by_name", "ranges.based"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server with the rows three times:

    in buckets by the whole key, by its first column, and in columnar bases.
    """
    arguments = (*ALL_THE_TIME, "--set", "base_min_rows=1")
    with ServerProcess(tmp_path_factory.mktemp("ranges") / "data", *arguments) as server:
        with sync.connect(server.url) as client:
            keys: dict[str, Any] = {"primary_key": ["c", "a", "l"], "buckets": 3}
            client.create_table(TABLES[0], SCHEMA, **keys)
            client.create_table(TABLES[1], SCHEMA, **keys, bucket_key=["c"])
            client.create_table(TABLES[2], SCHEMA, **keys, columnar_base="eager")
            for name in TABLES:
                client.table(name).upsert(DATA)
            based = client.table(TABLES[2])
            wait_until(lambda: is_of_bases(based.scan().explain()), "every bucket has a base")
            for name in TABLES:
                client.table(name).upsert(
                    [{"c": "p1", "a": 3, "l": 0.5, "v": 1}, {"c": "zz", "a": 1, "l": 0.0, "v": 2}]
                )
                client.table(name).delete([{"c": "p1", "a": 3, "l": 0.5}, {"c": "zz", "a": 1, "l": 0.0}])
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(server.url) as client:
        yield client


def predicates() -> st.SearchStrategy[Predicate]:
    names, numbers, levels = st.sampled_from([*NAMES, "x"]), st.integers(-1, 13), st.sampled_from([*LEVELS, 0.5])
    leaves = [
        st.builds(lambda value, how: _compared("c", value, how), names, st.integers(0, 5)),
        st.builds(lambda value, how: _compared("a", value, how), numbers, st.integers(0, 5)),
        st.builds(lambda value, how: _compared("l", value, how), levels, st.integers(0, 5)),
        st.lists(names | st.none(), max_size=4).map(lambda values: col("c").is_in(values)),
        st.lists(numbers, max_size=5).map(lambda values: col("a").is_in(values)),
        names.map(lambda value: col("c").starts_with(value)),
        st.builds(lambda low, size: col("a").between(low, low + size), numbers, st.integers(0, 4)),
        st.integers(0, 6).map(lambda value: col("v") == value),
    ]
    parts = st.lists(st.one_of(leaves), min_size=1, max_size=3).map(all_of)
    either = st.lists(parts, min_size=1, max_size=4).map(any_of)
    return st.one_of(either, either.map(lambda found: ~found), st.builds(lambda a, b: a & b, either, st.one_of(leaves)))


def _compared(name: str, value: object, how: int) -> Predicate:
    column = col(name)
    return [column == value, column != value, column < value, column <= value, column > value, column >= value][how]


def expected(where: Predicate) -> list[tuple[Any, ...]]:
    """Returns the keys of the rows for which a predicate is true, in key order."""
    kept = DATA.filter(evaluate(bind(where, SCHEMA), DATA))
    return sorted((_key(row) for row in kept.to_pylist()), key=lambda key: (key[0].encode(), key[1], _order(key[2])))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["c"], row["a"], str(row["l"])


def _order(level: str) -> float:
    return LEVELS.index(float(level)) if level != "nan" else len(LEVELS)


@pytest.mark.breadth
@given(
    table=st.sampled_from(TABLES),
    where=predicates(),
    pinned=st.booleans(),
    ordered=st.booleans(),
    reverse=st.booleans(),
    limit=st.none() | st.integers(0, 40),
    prefix=st.none() | st.sampled_from(NAMES),
    step=st.none() | st.integers(1, 60),
)
@settings(examples(20), suppress_health_check=list(HealthCheck))
def test_random_predicates_give_the_rows_of_the_whole_table_in_order_also_cut_anywhere(
    client: sync.Client,
    table: str,
    where: Predicate,
    pinned: bool,
    ordered: bool,
    reverse: bool,
    limit: int | None,
    prefix: str | None,
    step: int | None,
) -> None:
    asked, key_ranges = where, prefix is not None
    scan = client.table(table).scan(where=where, limit=limit)
    if prefix is not None:
        asked = where & col("c").starts_with(prefix)
        scan = scan.prefix(prefix)
    scan = scan.ordered() if ordered else scan
    scan = scan.reverse() if reverse else scan
    snapshot = client.table(table).snapshot(60) if pinned else None
    scan = scan.as_of(snapshot) if snapshot is not None else scan
    there = expected(asked)
    # Many rows, in about twenty chunks.
    step = step and max(step, len(there) // 20)
    found: list[tuple[Any, ...]] = []
    token: bytes | None = None
    while True:
        # Each attempt is interrupted after its first chunk.
        attempt = scan if step is None else scan.with_chunk(rows=step)
        with (attempt if token is None else attempt.resume_from(token)).stream() as stream:
            chunks = list(stream) if step is None else list(islice(stream, 1))
            found += [_key(row) for chunk in chunks for row in chunk.to_pylist()]
            token = stream.resume_token
        if step is None or not chunks:
            break
    if snapshot is not None:
        snapshot.release()
    assert len(set(found)) == len(found)
    if limit is None or ordered:
        in_order = there[::-1] if reverse else there
        if ordered:
            assert found == in_order[:limit]
        else:
            assert sorted(found) == sorted(in_order)
    else:
        assert len(found) == min(limit, len(there))
        assert set(found) <= set(there)
    if not key_ranges and limit is None and not pinned:
        assert client.table(table).count(where) == len(there)
        kept = set(there)
        values: list[int] = [row["v"] for row in ROWS if _key(row) in kept and row["v"] is not None]
        total = client.table(table).aggregate({"v": "sum"}, where=where)
        assert total.column(0)[0].as_py() == (sum(values) if values else None)
        best = client.table(table).top_n(3, order_by="v", columns=["v"], where=where)
        assert [row["v"] for row in best.to_pylist()] == [
            *sorted(values, reverse=True),
            *([None] * (len(there) - len(values))),
        ][:3]


@pytest.fixture(scope="module")
def large(client: sync.Client) -> sync.Table:
    random = Random(5)
    table = client.create_table("ranges.large", SCHEMA, primary_key=["c", "a", "l"], buckets=2)
    table.upsert([{"c": f"p{n % 100}", "a": n, "l": random.random(), "v": n} for n in range(50_000)])
    return table


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("c IN ('p1', 'p2')", 1000),
        ("(c = 'p1' AND a = 101) OR (c = 'p2' AND a = 102)", 2),
        ("c IN ('p1', 'p2', 'p3') AND a BETWEEN 0 AND 199", 6),
        ("c <> 'p1' AND c <> 'p2'", 49_000),
        ("(c = 'p1' AND a > 49900) OR c = 'p7'", 501),
    ],
)
@pytest.mark.represented_by("c IN ('p1', 'p2')-1000")
def test_only_rows_in_the_ranges_are_read(large: sync.Table, where: str, rows: int) -> None:
    for scan in (large.scan(where=where), large.scan(where=where).ordered().reverse()):
        with scan.stream() as stream:
            assert sum(chunk.num_rows for chunk in stream) == rows
            assert stream.stats().rows_scanned == rows
    assert large.count(where) == rows


def test_the_explanation_tells_ranges_and_points(large: sync.Table) -> None:
    found = large.scan(where="c IN ('p1', 'p2') AND v > 3").explain()
    assert (found.range_count, found.points, found.residual) == (2, 0, 'col("v") > 3')
    assert found.ranges == ("c = 'p1'", "c = 'p2'")
    assert "2 ranges: c = 'p1'; c = 'p2'" in str(found)
    many = large.scan(where=col("c").is_in([f"p{n}" for n in range(60)])).explain()
    assert (many.range_count, len(many.ranges)) == (60, 10)
    assert many.read_path_reason == "over 16 ranges of keys are looked up one after another"
    both = large.scan(where="(c = 'p1' AND a = 101 AND l = 0.5) OR c = 'p2'").explain()
    assert (both.range_count, both.points) == (1, 1)


def test_five_hundred_ranges_are_read_in_one_scan(large: sync.Table) -> None:
    names = [f"p{n}" for n in range(100)]
    parts = any_of([col("a").between(low, low + 99) for low in range(0, 50_000, 10_000)])
    where = col("c").is_in(names) & parts
    assert large.scan(where=where).explain().range_count == 500
    with large.scan(where=where).ordered().stream() as stream:
        assert sum(chunk.num_rows for chunk in stream) == 500
        assert stream.stats().rows_scanned == 500
    assert large.count(where) == 500
