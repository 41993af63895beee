"""Aggregates of a real server: exact sums and means, snapshots, refusals, and their end as that of a scan."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    Client,
    DeadlineExceeded,
    InvalidRequest,
    ScanCancelled,
    SchemaMismatch,
    SnapshotLost,
    Table,
    TableNotFound,
    TooManyScans,
    UsageError,
    col,
    connect,
    sync,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path


pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int32(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("score", pa.float64()),
        ("group", pa.string()),
        ("amount", pa.int64()),
        ("at", pa.struct([("x", pa.int64())])),
    ]
)
ROWS = 30_000
SCORES = [None, math.nan, -0.0, 0.0, 1.5, -7.25, math.inf, 100.0]


def row(number: int) -> dict[str, Any]:
    return {
        "k": number // 10,
        "name": f"n{number % 10}",
        "score": SCORES[number * 7919 % len(SCORES)],
        "group": None if number % 6 == 0 else "abc"[number % 3] * (number % 4),
        "amount": None if number % 17 == 0 else (number * 48271) % 1000 - 500,
        "at": {"x": number},
    }


DATA = pa.Table.from_pylist([row(number) for number in range(ROWS)], schema=SCHEMA)
TABLE = "aggregates.rows"


@pytest.fixture(scope="module")
def made(shared_server: ServerProcess) -> Iterator[sync.Table]:
    with sync.connect(shared_server.url) as client:
        table = client.create_table(TABLE, SCHEMA, primary_key=["k", "name"], buckets=3)
        table.upsert(DATA)
        yield table


@pytest_asyncio.fixture
async def table(made: sync.Table, client: Client) -> Table:
    return await client.table(made.name)


async def test_text_predicates_and_all_columns_do_as_well(table: Table) -> None:
    found = [each for each in map(row, range(ROWS)) if (each["amount"] or 0) > 0 and each["score"] is None]
    assert await table.count("amount > 0 AND score IS NULL") == len(found) > 0
    first = (await table.top_n(1, order_by="amount", where="k < 1", descending=False)).to_pylist()
    assert first == [min((row(number) for number in range(1, 10)), key=lambda each: each["amount"])]
    sums = await table.aggregate({"amount": "sum"}, "k < 1")
    assert sums.to_pylist() == [{"amount_sum": sum(row(number)["amount"] or 0 for number in range(10))}]


async def test_rows_without_a_match_give_zero_nulls_and_no_groups(table: Table) -> None:
    assert await table.count("k < 0") == 0
    answer = await table.aggregate({"amount": ["count", "sum", "min", "mean"]}, "k < 0")
    assert answer.to_pylist() == [{"amount_count": 0, "amount_sum": None, "amount_min": None, "amount_mean": None}]
    assert (await table.aggregate({"amount": "sum"}, "k < 0", group_by=["name"])).num_rows == 0
    assert (await table.top_n(5, "score", "k < 0")).schema.equals(SCHEMA)


async def test_means_of_decimals_and_sums_of_unsigned_integers_are_exact(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("d", pa.decimal128(38, 2)), ("u", pa.uint64())])
    table = await client.create_table(name, schema, primary_key=["k"], buckets=3)
    most = Decimal("9" * 36 + ".99")
    numbers = [most, most, Decimal("9" * 35 + "8.99"), Decimal("0.01"), Decimal("0.02"), None]
    rows = [{"k": k, "g": k // 3, "d": number, "u": 2**62} for k, number in enumerate(numbers)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    answer = await table.aggregate({"d": "mean", "u": "sum"}, group_by=["g"])
    assert answer.to_pylist() == [
        {"g": 0, "d_mean": Decimal("9" * 36 + ".66"), "u_sum": 3 * 2**62},
        {"g": 1, "d_mean": Decimal("0.02"), "u_sum": 3 * 2**62},
    ]
    assert answer.schema.types[1:] == [pa.decimal128(38, 2), pa.uint64()]
    with pytest.raises(InvalidRequest, match=r'"u" does not fit into uint64: ask for its mean'):
        await table.aggregate({"u": "sum"})


async def test_a_snapshot_is_answered_as_of_its_pin(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k", "name"], buckets=2)
    await table.upsert(DATA.slice(0, 100))
    async with table.snapshot(ttl=60) as snapshot:
        await table.delete([(row(number)["k"], row(number)["name"]) for number in range(50)])
        await client.alter_table(name, add_columns=pa.schema([("more", pa.int64())]))
        assert (await table.count(), await table.count(as_of=snapshot)) == (50, 100)
        assert (await table.count("k >= 0"), await table.count("k >= 0", as_of=snapshot.id)) == (50, 100)
        assert (await table.aggregate({"k": "min"})).to_pylist() == [{"k_min": 5}]
        assert (await table.aggregate({"k": "min"}, as_of=snapshot)).to_pylist() == [{"k_min": 0}]
        first = await table.top_n(1, "k", descending=False, as_of=snapshot)
        assert first.to_pylist() == [row(0)]
        with pytest.raises(SchemaMismatch, match="more"):
            await table.top_n(1, "more", as_of=snapshot)
        assert (await table.top_n(1, "k"))["more"].to_pylist() == [None]
    for asked in (
        table.count(as_of=snapshot),
        table.count("k > 1", as_of=snapshot),
        table.top_n(1, "k", as_of=snapshot),
    ):
        with pytest.raises(SnapshotLost):
            await asked


async def test_what_cannot_be_answered_is_refused_before_a_scan_starts(table: Table, client: Client) -> None:
    before = (await client.stats()).scans_started
    for n in (0, -1, 100_001, True, 2.0):
        with pytest.raises(UsageError, match="between 1 and 100,000"):
            await table.top_n(n, "score")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match=r"median.*did you mean"):
        await table.aggregate({"amount": ["median"]})
    with pytest.raises(UsageError, match="dictionary"):
        await table.aggregate(["amount"])  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match="name of a column"):
        await table.top_n(1, ["score"])  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match="order_by must be text"):
        await table.top_n(1, "\ud800")
    for columns in (["\ud800"], [5]):
        with pytest.raises(UsageError, match="columns must be names of columns"):
            await table.top_n(1, "score", columns=columns)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match="functions must be names of columns"):
        await table.aggregate({"\ud800": ["sum"]})
    with pytest.raises(UsageError, match="snapshot"):
        await table.count(as_of=5)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(SchemaMismatch, match=r"scroe.*did you mean"):
        await table.top_n(1, "scroe")
    with pytest.raises(SchemaMismatch, match="no order"):
        await table.top_n(1, "at")
    with pytest.raises(SchemaMismatch, match=r"nme.*did you mean"):
        await table.top_n(1, "score", columns=["nme"])
    with pytest.raises(SchemaMismatch, match=r"ammount.*did you mean"):
        await table.aggregate({"ammount": "sum"})
    with pytest.raises(SchemaMismatch, match="has no sum"):
        await table.aggregate({"name": "sum"})
    with pytest.raises(SchemaMismatch, match="no order"):
        await table.aggregate({"amount": "sum"}, group_by=["at"])
    with pytest.raises(InvalidRequest, match="the query has no aggregates"):
        await table.aggregate({})
    with pytest.raises(SchemaMismatch, match="scroe"):
        await table.count("scroe > 1")
    with pytest.raises(SchemaMismatch, match="scroe"):
        await table.count(col("scroe") > 1)
    with pytest.raises(SchemaMismatch, match="amount"):
        await table.top_n(1, "score", col("amount") == "text")
    assert (await client.stats()).scans_started == before


@pytest.mark.breadth
@pytest.mark.whole_tables  # One live scan is allowed, and a scan is one for each tablet.
async def test_it_is_listed_cancelled_and_limited_as_a_scan_is(tmp_path: Path) -> None:
    settings = "--set", "max_live_scans=1", "--set", "max_waiting_scans=0"
    with ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url) as client, connect(server.url, operation_timeout=2) as impatient:
            schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
            table = await client.create_table("aggregates.many", schema, primary_key=["id"], buckets=2)
            await table.upsert(pa.table({"id": range(400_000), "text": ["x" * 20] * 400_000}, schema=schema))

            async with table.scan().stream():  # which is not read
                for refused in _questions(await impatient.table("aggregates.many")):
                    # The timeout may end in the middle of an attempt.
                    with pytest.raises((TooManyScans, DeadlineExceeded)):
                        await refused

            async def is_listed() -> bool:
                return bool(await client.live_scans())

            for question in _questions(table):
                asking = asyncio.create_task(question)
                await await_until(is_listed, "the scan being listed")
                (live,) = await client.live_scans()
                await client.cancel_scan(live.scan_id)
                assert (live.table, live.buckets) == ("aggregates.many", (0, 1))
                with pytest.raises(ScanCancelled):
                    await asking
            asking = asyncio.create_task(table.count(_SLOW))
            await await_until(is_listed, "the scan being listed")
            await client.drop_table("aggregates.many")
            with pytest.raises(TableNotFound):
                await asking
            stats = await client.stats()
            assert (stats.live_scans, stats.open_cursors, stats.undelivered_errors) == (0, 0, 0)


_SLOW = " AND ".join(f"text <> 'y{number}'" for number in range(900))


def _questions(table: Table) -> Iterator[Coroutine[Any, Any, Any]]:
    yield table.count(_SLOW)
    yield table.aggregate({"text": "max"}, _SLOW, group_by=["id"])
    yield table.top_n(10, "text", _SLOW)
