"""The server evaluates predicates: it returns exactly the matching rows of the table, and reads few others."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import pytest_asyncio

from aio_client import (
    Client,
    InvalidResumeToken,
    SchemaMismatch,
    StartFrom,
    StopAt,
    Table,
    TableNotFound,
    UsageError,
    col,
    connect,
)
from scankv.model.expressions import any_of, bind, evaluate
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Predicate

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int32(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("score", pa.float64()),
        ("group", pa.string()),
        ("at", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
ROWS = 5000
SCORES = [None, math.nan, -0.0, 0.0, 1.5, -7.25, math.inf, 100.0]


def row(number: int) -> dict[str, Any]:
    at = None if number % 11 == 0 else {"x": None if number % 5 == 0 else number, "y": str(number % 3)}
    return {
        "k": number // 10,
        "name": f"n{number % 10}",
        "score": SCORES[number % len(SCORES)],
        "group": None if number % 6 == 0 else "abc"[number % 3] * (number % 4),
        "at": at,
    }


DATA = pa.Table.from_pylist([row(number) for number in range(ROWS)], schema=SCHEMA)


@pytest_asyncio.fixture
async def table(client: Client) -> Table:
    try:
        return await client.table("where.rows")
    except TableNotFound:
        table = await client.create_table("where.rows", SCHEMA, primary_key=["k", "name"], buckets=3)
        await table.upsert(DATA)
        return table


def expected(where: Predicate) -> set[tuple[int, str]]:
    """Returns the keys of the rows for which a predicate is true, evaluated by the test over all rows."""
    bound, batch = bind(where, SCHEMA), DATA.combine_chunks().to_batches()[0]
    kept = batch.filter(evaluate(bound, batch))
    return set(zip(kept["k"].to_pylist(), kept["name"].to_pylist(), strict=True))


PREDICATES: list[tuple[str, Predicate]] = [
    ("score > 1", col("score") > 1),
    ("NOT score > 1", ~(col("score") > 1)),
    ('"group" IS NULL OR "group" = \'bb\'', col("group").is_null() | (col("group") == "bb")),
    ("k = 17", col("k") == 17),
    ("k = 17 AND name = 'n4'", (col("k") == 17) & (col("name") == "n4")),
    ("k >= 490", col("k") >= 490),
    ("k BETWEEN 3 AND 5 AND name LIKE 'n1%'", col("k").between(3, 5) & col("name").starts_with("n1")),
    ("k IN (1, 400, 77) AND score = 0", col("k").is_in([1, 400, 77]) & (col("score") == 0)),
    ("at.x > 4990", col("at")["x"] > 4990),
    ("k > 5 AND k < 5", (col("k") > 5) & (col("k") < 5)),
    ("score IN (1.5, 100)", col("score").is_in([1.5, 100.0])),
    ("k > 489.5 AND k <= 491.25", col("k").is_in([490, 491])),
    ("k < 99999999999 AND k <> 0.5 AND at.x > 4990.5", col("at")["x"] > 4990),
    ("k IN (3, 99999999999, 7.5)", col("k") == 3),
    ("k = 17 AND name LIKE '_4'", (col("k") == 17) & (col("name") == "n4")),
    ("\"group\" LIKE '%b' AND NOT \"group\" LIKE '_'", col("group").is_in(["bb", "bbb"])),
]


@pytest.mark.parametrize(("text", "predicate"), PREDICATES)
@pytest.mark.parametrize("reverse", [False, True])
async def test_text_and_python_give_the_rows_of_the_whole_table_for_which_it_is_true(
    table: Table, text: str, predicate: Predicate, reverse: bool
) -> None:
    for where in (text, predicate):
        scan = table.scan(columns=["name", "k"], where=where)
        rows = await (scan.reverse() if reverse else scan).to_arrow()
        keys = list(zip(rows["k"].to_pylist(), rows["name"].to_pylist(), strict=True))
        assert len(set(keys)) == len(keys)
        assert set(keys) == expected(predicate)


async def test_an_arrow_expression_and_refinements_joined_by_and_do_the_same(table: Table) -> None:
    scan = table.scan(["k"], where=pc.field("k") < 100).where("score > 1").where(col("name") == "n4")
    found = set((await scan.to_arrow())["k"].to_pylist())
    both = (col("k") < 100) & (col("score") > 1) & (col("name") == "n4")
    assert found == {k for k, _ in expected(both)}


async def scanned(table: Table, where: object) -> tuple[int, int]:
    async with table.scan(where=where).stream() as stream:
        async for _ in stream:
            pass
        statistics = stream.stats()
        return statistics.rows_scanned, statistics.rows_returned


async def test_what_is_said_of_the_key_bounds_what_is_read(table: Table) -> None:
    assert await scanned(table, "k = 17 AND name = 'n4'") == (1, 1)
    assert await scanned(table, "k = 17 AND name = 'nobody'") == (0, 0)
    assert await scanned(table, "k = 17") == (10, 10)
    assert await scanned(table, "k = 17 AND name >= 'n8'") == (2, 2)
    assert await scanned(table, "k > 5 AND k < 5") == (0, 0)
    assert await scanned(table, "k = 17.5") == (0, 0)
    assert await scanned(table, "k > 16.5 AND k < 17.5 AND name LIKE 'n_'") == (10, 10)
    assert await scanned(table, "k = 17 AND name LIKE 'n4%_'") == (1, 0)
    read, returned = await scanned(table, "k >= 490 AND score > 1")
    assert returned < read == 100


async def test_a_column_or_type_that_does_not_fit_is_refused_before_a_scan_starts(client: Client, table: Table) -> None:
    before = (await client.stats()).scans_started
    with pytest.raises(SchemaMismatch, match=r"scroe.*did you mean"):
        await table.scan(where=col("scroe") > 1).to_arrow()
    with pytest.raises(SchemaMismatch, match="scroe"):
        table.scan(where="scroe > 1")
    with pytest.raises(SchemaMismatch):
        await table.scan(where=col("k") == "text").to_arrow()
    with pytest.raises(SchemaMismatch, match=r"scroe.*did you mean"):
        await table.scan(["scroe"]).to_arrow()
    with pytest.raises(UsageError, match="names of columns"):
        table.scan(["\ud800"])
    with pytest.raises(UsageError):
        table.scan(where="score >")
    with pytest.raises(UsageError, match="int"):
        table.scan(where=5)
    assert (await client.stats()).scans_started == before


async def test_every_call_with_a_predicate_answers_it_as_sql_does(client: Client, name: str) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("u", pa.uint8()), ("m", pa.decimal128(6, 2))])
    table = await client.create_table(name, schema, primary_key=["k"], buckets=2, indexes=["u"])
    await table.upsert(
        [
            {"k": "a_1", "u": 1, "m": Decimal("1.00")},
            {"k": "ab\n2", "u": 255, "m": Decimal("1.01")},
            {"k": "b%3", "u": None, "m": None},
        ]
    )
    everyone = "u < 300 AND m > -99999.5 AND k LIKE 'a_%'"
    for where, keys in (
        (everyone, ["a_1", "ab\n2"]),
        ("m > 1.005", ["ab\n2"]),
        ("u > 0.5 AND u < 254.5", ["a_1"]),
        ("NOT u = 1.5", ["a_1", "ab\n2"]),
        ("k LIKE '_b%2'", ["ab\n2"]),
        ("k LIKE '%!%_' ESCAPE '!' OR k LIKE 'a!_1' ESCAPE '!'", ["a_1", "b%3"]),
        (pc.match_like(pc.field("k"), "%\\%_") | (pc.field("u") > 254.5), ["ab\n2", "b%3"]),
    ):
        assert [row["k"] for row in await table.scan(where=where).ordered().to_pylist()] == keys
        assert await table.count(where) == len(keys)
        assert (await table.aggregate({"k": "count"}, where))["k_count"].to_pylist() == [len(keys)]
        assert sorted((await table.top_n(9, order_by="u", where=where))["k"].to_pylist()) == keys
        changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST, columns=["k"], where=where)
        assert sorted((await changes.to_arrow())["k"].to_pylist()) == keys
    async with table.watch_top_n(9, order_by="u", where=everyone, every=30) as watch:
        assert (await anext(watch)).rows.num_rows == 2
    await table.delete(where="u >= 254.5 AND k NOT LIKE 'a_'")
    assert [row["k"] for row in await table.scan().ordered().to_pylist()] == ["a_1", "b%3"]


@pytest.mark.breadth
async def test_a_predicate_of_many_nodes_is_asked_of_few_rows_at_once(table: Table) -> None:
    """With 900 text searches, a chunk of 8,192 rows would hold the server's event loop for half a second."""
    searches = [col("name").contains(f"{number} no") for number in range(900)]
    few, many = (any_of([col("k") >= 0, *searches[:count]]) for count in (3, 900))
    sizes: dict[int, list[int]] = {}
    for nodes, where in ((3, few), (900, many)):
        async with table.scan(["k"], where=where).stream() as stream:
            sizes[nodes] = [batch.num_rows async for batch in stream]
    assert sum(sizes[3]) == sum(sizes[900]) == await table.count(many) > 300
    assert max(sizes[900]) < 200 < max(sizes[3])


async def test_a_pattern_is_asked_of_few_long_texts_at_once(client: Client, name: str) -> None:
    """A chunk of a megabyte would hold the server's event loop for tens of milliseconds."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("long", pa.string())])
    table = await client.create_table(name, schema, primary_key=["k"], buckets=1)
    await table.upsert(pa.table([range(400), ["ab" * 2000] * 400], schema=schema))
    sizes: dict[str, list[int]] = {}
    for pattern in ("%a%b%", "%a________b%"):
        async with table.scan(["k"], where=col("long").like(pattern)).stream() as stream:
            sizes[pattern] = [batch.num_rows async for batch in stream]
    assert sum(sizes["%a%b%"]) == sum(sizes["%a________b%"]) == 400
    assert max(sizes["%a________b%"]) < 80 < max(sizes["%a%b%"])


async def test_a_token_fits_the_same_predicate_only(table: Table) -> None:
    scan = table.scan(["k"], where=col("score") > 1).with_chunk(rows=50)
    async with scan.stream() as stream:
        first = await anext(stream)
        token = stream.resume_token
    assert token is not None
    rest = await scan.resume_from(token).to_arrow()
    assert first.num_rows + rest.num_rows == len(expected(col("score") > 1))
    with pytest.raises(InvalidResumeToken, match="another query"):
        await table.scan(["k"], where=col("score") > 2).resume_from(token).to_arrow()


@pytest.mark.soak
async def test_heartbeats_keep_a_scan_that_finds_nothing_alive_and_its_resume_does_not_start_over(
    tmp_path: Path,
) -> None:
    """The reader waits for each message for less time than the complete scan takes, and is interrupted midway."""
    rows = 400_000
    with ServerProcess(tmp_path / "data", "--set", "heartbeat_seconds=0.02") as server:
        async with connect(server.url) as client:
            table = await client.create_table("where.many", SCHEMA, primary_key=["k", "name"], buckets=2)
            for start in range(0, rows, 100_000):
                keys = pa.array(range(start, start + 100_000), pa.int32())
                nothing = {name: pa.nulls(100_000, SCHEMA.field(name).type) for name in ("score", "group", "at")}
                await table.upsert(pa.table({"k": keys, "name": pa.array(["n"] * 100_000), **nothing}, schema=SCHEMA))
            before = (await client.stats()).rows_scanned
            async with table.snapshot(ttl=60) as snapshot:
                scan = table.scan(["k"], where="score > 1").with_chunk(rows=200).as_of(snapshot)
                async with scan.stream() as stream:
                    reading = asyncio.create_task(anext(stream, None))

                    async def is_under_way() -> bool:
                        return stream.stats().rows_scanned > rows // 4

                    await await_until(is_under_way, "a quarter of the rows read")
                    (live,) = await client.live_scans()
                    token = stream.resume_token
                    assert token is not None
                    server.kill()
                    server.restart()
                    assert await reading is None
                    statistics = stream.stats()
            after = (await client.stats()).rows_scanned
            assert live.rows > rows // 4
            assert statistics.attempts == 2
            # The second attempt read what the first one had not, apart from what lies between its last two heartbeats.
            assert after < 3 * rows // 4
            assert statistics.rows_returned == 0
            assert before == 0


@pytest.mark.breadth
async def test_a_repeated_text_is_parsed_for_the_columns_that_the_table_has_now(client: Client) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = await client.create_table("where.repeated", schema, primary_key=["k"])
    await table.upsert([{"k": number, "v": number} for number in range(10)])
    for _ in range(2):
        assert await table.count("v >= 4") == 6
        with pytest.raises(SchemaMismatch, match=r'line 1, column 1: .*"w"'):
            await table.count("w >= 4")
    await client.alter_table("where.repeated", add_columns=pa.schema([("w", pa.int64())]))
    await table.upsert([{"k": 10, "v": 10, "w": 10}])  # The table asks for its columns again.
    for _ in range(2):
        assert await table.count("v >= 4") == 7
        assert await table.count("w >= 4") == 1
    # More texts than a table keeps.
    for number in range(100):
        assert await table.count(f"v < {number}") == min(number, 11)
    assert await table.count("v >= 4") == 7
    await client.drop_table("where.repeated")
