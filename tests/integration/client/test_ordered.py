"""Order over all buckets, key ranges by value, single keys, and the server's explanation."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import Client, InvalidRequest, SchemaMismatch, Table, TableNotFound, col

if TYPE_CHECKING:
    from aio_client import Scan

pytestmark = pytest.mark.asyncio

ROWS = 6000
BUCKETS = 4


@pytest_asyncio.fixture
async def table(client: Client) -> Table:
    """Makes a table with the numbers below ROWS as keys; `v` is their thousand."""
    try:
        return await client.table("ordered.rows")
    except TableNotFound:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("w", pa.string())])
        table = await client.create_table("ordered.rows", schema, primary_key=["k"], buckets=BUCKETS)
        numbers = list(range(ROWS))
        random.Random(5).shuffle(numbers)
        await table.upsert(pa.table({"k": numbers, "v": [n // 1000 for n in numbers], "w": ["w" * 20] * ROWS}))
        return table


async def read(scan: Scan) -> tuple[list[int], int]:
    """Returns the keys in the order received, and how many rows were read for them."""
    keys: list[int] = []
    async with scan.select("k").stream() as stream:
        async for rows in stream:
            keys += rows["k"].to_pylist()
        return keys, stream.stats().rows_scanned


@pytest.mark.parametrize("pinned", [False, True])
async def test_all_rows_come_in_key_order_in_either_direction(table: Table, pinned: bool) -> None:
    snapshot = await table.snapshot(ttl=60)
    scan = table.scan().as_of(snapshot) if pinned else table.scan()
    assert await read(scan.ordered()) == (list(range(ROWS)), ROWS)
    assert await read(scan.ordered().reverse()) == (list(range(ROWS - 1, -1, -1)), ROWS)
    ranged = scan.ordered().where(col("v") == 3).key_range(2500, 3700, inclusive="neither")
    assert await read(ranged) == (list(range(3000, 3700)), 1199)
    assert (await read(scan.ordered().with_buckets(1, 3)))[0] == sorted((await read(scan.with_buckets(1, 3)))[0])
    await snapshot.release()


@pytest.mark.parametrize("limit", [0, 1, 10, 128])
async def test_a_limit_is_exact_and_reads_no_more_than_a_row_of_each_bucket(table: Table, limit: int) -> None:
    keys, scanned = await read(table.scan().ordered().limit(limit))
    assert keys == list(range(limit))
    assert scanned <= limit * table.tablets + BUCKETS
    keys, scanned = await read(table.scan().ordered().reverse().key_range(end=4000).limit(limit))
    assert keys == list(range(4000, 4000 - limit, -1))
    # In descending order, a cursor also reads no more rows than it returns.
    assert scanned <= limit * table.tablets + BUCKETS


async def test_parts_of_an_ordered_scan_follow_each_other(table: Table) -> None:
    async with table.snapshot(ttl=60) as snapshot:
        parts = await table.scan(["k"]).as_of(snapshot).ordered().splits(5)
        keys = [key for part in parts for key in (await read(part))[0]]
    assert keys == list(range(ROWS))


async def test_a_range_by_value_reads_its_rows_only(table: Table) -> None:
    keys, scanned = await read(table.scan().key_range(10, 19))
    assert (sorted(keys), scanned) == (list(range(10, 20)), 10)
    assert sorted((await read(table.scan().key_range(end=3, inclusive="left")))[0]) == [0, 1, 2]
    assert await read(table.scan().prefix(77)) == ([77], 1)
    assert await read(table.scan().prefix(ROWS)) == ([], 0)


@pytest.mark.breadth
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("limit", [None, 100])
async def test_many_keys_are_looked_up_and_nothing_between_them_is_read(
    table: Table, ordered: bool, limit: int | None
) -> None:
    asked = [*range(0, ROWS, 5), *range(ROWS, 2 * ROWS)]
    scan = table.scan(where=col("k").is_in(asked), limit=limit)
    keys, scanned = await read(scan.ordered() if ordered else scan)
    assert sorted(keys) == list(range(0, ROWS, 5)) if limit is None else len(set(keys) & set(asked)) == limit
    assert keys == sorted(keys) or not ordered
    assert scanned <= ROWS // 5
    kept, scanned = await read(scan.where(col("v") == 1))
    assert set(kept) <= set(range(1000, 2000, 5))
    assert len(kept) == min(200, limit or 200)


async def test_more_keys_than_are_looked_up_give_the_same_rows(table: Table) -> None:
    keys, scanned = await read(table.scan(where=col("k").is_in(range(-20_000, 3000, 2))))
    assert sorted(keys) == list(range(0, 3000, 2))
    assert scanned == 2999


async def test_a_scan_over_keys_goes_on_behind_those_looked_up(table: Table) -> None:
    scan = table.scan(["k"], where=col("k").is_in(range(0, 2 * ROWS, 3))).with_chunk(rows=100)
    keys: list[int] = []
    async with scan.stream() as stream:
        keys += (await anext(stream))["k"].to_pylist()
        token = stream.resume_token
    assert token is not None
    rest, scanned = await read(scan.resume_from(token))
    assert sorted(keys + rest) == list(range(0, ROWS, 3))
    assert scanned == ROWS // 3 - len(keys)


@pytest.mark.breadth
async def test_only_the_bucket_of_one_bucket_key_is_read(client: Client) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False)])
    table = await client.create_table(
        "ordered.places", schema, primary_key=["a", "b"], bucket_key=["a"], buckets=BUCKETS
    )
    await table.upsert([{"a": a, "b": b} for a in range(50) for b in "xyz"])
    touched = set()
    for a in range(50):
        scan = table.scan(where=(col("a") == a) & (col("b") >= "y"))
        explanation = await scan.explain()
        touched |= set(explanation.buckets)
        assert len(explanation.buckets) == 1
        assert (await scan.to_arrow())["b"].to_pylist() == ["y", "z"]
        assert (await table.scan().prefix((a, "z")).to_pylist()) == [{"a": a, "b": "z"}]
    assert touched == set(range(BUCKETS))


async def test_keys_of_two_columns_that_lists_make_are_looked_up_and_nothing_else_is_read(client: Client) -> None:
    schema = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False), ("v", pa.int64())]
    )
    table = await client.create_table("ordered.pairs", schema, primary_key=["a", "b"], buckets=BUCKETS)
    await table.upsert([{"a": a, "b": b, "v": a} for a in range(200) for b in "uvwxyz"])
    scan = table.scan(where=col("b").is_in(["z", "nobody", "u"]) & col("a").is_in([150, 3, 999, None]) & (col("v") > 0))
    async with scan.ordered().stream() as stream:
        rows = [row async for batch in stream for row in batch.to_pylist()]
        assert stream.stats().rows_scanned == 4
    assert [(row["a"], row["b"]) for row in rows] == [(3, "u"), (3, "z"), (150, "u"), (150, "z")]
    explanation = await scan.explain()
    assert (explanation.points, explanation.ranges, explanation.residual) == (9, (), 'col("v") > 0')
    assert explanation.first_points[0] == "(a, b) = (3, 'nobody')"

    # Together they are more than 10,000 keys, so keys between them are read as well, and filtered.
    wide = table.scan(where=col("b").is_in(list("uvz")) & col("a").is_in(range(0, 10_000, 2)))
    assert (await wide.explain()).residual is not None
    assert sorted((row["a"], row["b"]) for row in await wide.to_pylist()) == [
        (a, b) for a in range(0, 200, 2) for b in "uvz"
    ]


async def test_a_value_that_no_key_can_have_scans_nothing(client: Client) -> None:
    schema = pa.schema([pa.field("k", pa.float32(), nullable=False), pa.field("t", pa.string(), nullable=False)])
    table = await client.create_table("ordered.floats", schema, primary_key=["k", "t"], buckets=BUCKETS)
    await table.upsert([{"k": n / 10, "t": "t"} for n in range(100)])
    for where in ("k = 0.1 AND t = 't'", f"k = 1.5 AND t = '{'t' * 20_000}'", "k = NULL AND t = 't'"):
        async with table.scan(where=where).stream() as stream:
            assert [batch async for batch in stream] == []
            assert stream.stats().rows_scanned == 0


async def test_the_explanation_says_what_will_be_read(client: Client, table: Table) -> None:
    everything = await table.scan().explain()
    assert (everything.source, everything.buckets, everything.ranges) == ("live", (0, 1, 2, 3), ("all keys",))
    assert (everything.points, everything.residual, everything.limit) == (0, None, None)
    assert everything.columns_read == everything.columns_returned == ("k", "v", "w")

    async with table.snapshot(ttl=60) as snapshot:
        scan = table.scan(["w"], where=(col("k") >= 10) & (col("v") == 3), limit=7).as_of(snapshot).ordered().reverse()
        explanation = await scan.key_range(end=20).explain()
    assert explanation.source == "pinned"
    assert explanation.ranges == ("k >= 10 and k < 21",)
    assert explanation.residual == 'col("v") == 3'
    assert (explanation.columns_read, explanation.columns_returned) == (("k", "v"), ("w",))
    assert explanation.order == "descending by key over all buckets"
    assert explanation.limit == 7

    one = await table.scan(where="k = 17").explain()
    assert (len(one.buckets), one.points, one.first_points, one.ranges) == (1, 1, ("k = 17",), ())
    many = await table.scan(where=col("k").is_in(range(100))).explain()
    assert (many.buckets, many.points, len(many.first_points)) == ((0, 1, 2, 3), 100, 10)
    assert "100 looked up: k = 0, k = 1," in str(many)
    none = await table.scan(where="k > 5 AND k < 3").explain()
    assert (none.buckets, none.ranges, none.points) == ((), (), 0)
    assert "nothing is read" in str(none)
    before = (await client.stats()).scans_started
    await table.scan().explain()
    assert (await client.stats()).scans_started == before


async def test_an_explanation_is_refused_where_the_scan_would_be(table: Table) -> None:
    with pytest.raises(SchemaMismatch, match="scroe"):
        await table.scan(where=col("scroe") > 1).explain()
    with pytest.raises(InvalidRequest, match="no bucket 9"):
        await table.scan().with_buckets(9).explain()
