"""Indexes as a client sees them: how little they read, what explains them, and that they are one view with the rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import SchemaMismatch, UsageError, col
from scankv.model.expressions.wire import to_proto
from scankv.v1 import lookup_pb2, scan_pb2, table_pb2, write_pb2
from tests.support.tables import exact_rows, ipc_stream
from tests.support.waiting import await_until
from tests.support.wire import Wire, refusal

if TYPE_CHECKING:
    from aio_client import Client
    from scankv.model.expressions import Predicate
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [
        pa.field("player", pa.string(), nullable=False),
        ("league", pa.string()),
        ("score", pa.int64()),
        ("level", pa.float64()),
        ("note", pa.string()),
    ]
)
ROWS = 100_000
INDEXES = [["score"], ["league", "score"], ["level"]]
TABLES = {True: "indexes.with", False: "indexes.without"}


def rows() -> pa.RecordBatch:
    places = range(ROWS)
    return pa.RecordBatch.from_pydict(
        {
            "player": [f"player {place:06}" for place in places],
            "league": [None if place % 11 == 0 else f"league {place % 5_000}" for place in places],
            "score": [None if place % 1000 == 5 else place * 7919 % ROWS for place in places],
            "level": [
                float("nan") if place % 500 == 1 else -0.0 if place % 500 == 2 else place / 10 for place in places
            ],
            "note": [f"note {place}" for place in places],
        },
        schema=SCHEMA,
    )


def create(wire: Wire, name: str, indexes: list[list[str]], buckets: int = 4) -> None:
    wire.tables.CreateTable(
        table_pb2.CreateTableRequest(
            name=name,
            arrow_schema=SCHEMA.serialize().to_pybytes(),
            primary_key=["player"],
            buckets=buckets,
            indexes=[table_pb2.IndexColumns(columns=columns) for columns in indexes],
        )
    )


def write(wire: Wire, name: str, batch: pa.RecordBatch) -> None:
    wire.writes.Upsert(write_pb2.UpsertRequest(table=name, rows=ipc_stream(SCHEMA, batch)))


@pytest.fixture(scope="module")
def tables(shared_server: ServerProcess) -> dict[bool, str]:
    """Makes two tables with the same rows, with and without indexes."""
    with Wire(shared_server.url) as wire:
        for indexed, name in TABLES.items():
            create(wire, name, INDEXES if indexed else [])
            write(wire, name, rows())
    return TABLES


def top(wire: Wire, table: str, **question: Any) -> tuple[pa.Table, lookup_pb2.TopNResponse]:
    where = question.pop("where", None)
    columns = question.pop("columns", None)
    request = lookup_pb2.TopNRequest(
        table=table,
        where=None if where is None else to_proto(where),
        columns=None if columns is None else scan_pb2.ColumnNames(names=columns),
        **question,
    )
    response = wire.lookups.TopN(request)
    return pa.ipc.open_stream(response.rows).read_all(), response


def test_the_first_ten_of_a_hundred_thousand_rows_take_forty_reads(wire: Wire, tables: dict[bool, str]) -> None:
    before = wire.server().rows_scanned
    _, told = top(wire, tables[True], by="score", n=10, columns=["player", "note"])
    assert 20 <= told.rows_scanned <= 40
    _, covered = top(wire, tables[True], by="score", n=10, columns=["score", "player"])
    assert 10 <= covered.rows_scanned <= 30
    assert wire.server().rows_scanned - before == told.rows_scanned + covered.rows_scanned


@pytest.mark.asyncio
async def test_explain_tells_what_will_be_read(client: Client, tables: dict[bool, str]) -> None:
    table = await client.table(tables[True])
    told = await table.scan(["note"], where=(col("league") == "league 7") & col("note").contains("1")).explain()
    assert told.index == ("league", "score")
    assert 10_000 < told.index_keys < ROWS
    assert (told.index_ranges, told.index_range_count) == (("league = 'league 7'",), 1)
    assert told.columns_read == ("note",)
    text = str(told)
    assert f"from the index on (league, score): league = 'league 7'; if over {told.index_keys:,}: all keys" in text
    by_key = await table.scan(where=(col("league") == "league 7") & (col("player") == "x")).explain()
    assert (by_key.index, by_key.index_ranges, by_key.index_keys) == ((), (), 0)
    assert not (await table.scan(where=col("score") != 7).explain()).index


@pytest.mark.asyncio
@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize(
    ("n", "by", "where", "index", "keys"),
    [
        (5, "score", None, ("score",), "in the order of the index on (score), until there are enough: all keys"),
        (5, "score", col("score") > 9, ("score",), "in the order of the index on (score), until there are enough: "),
        (5, "score", col("league") == "league 7", ("league", "score"), "the index on (league, score), until"),
        (5, "score", col("league") > "league 7", (), "from the index on (league, score): league > 'league 7'; if"),
        (5, "score", col("score") != 7, ("score",), "if over 10,050 entries: all keys"),
        (5, "score", col("player") > "player 9", (), "player > 'player 9'"),
        (5, "score", col("note") == "note 7", (), "all keys"),
        (5, "note", None, (), "all keys"),
        (20_000, "score", None, (), "all keys"),
    ],
)
async def test_explain_names_the_index_that_a_top_n_reads(
    client: Client,
    wire: Wire,
    tables: dict[bool, str],
    n: int,
    by: str,
    where: Predicate | None,
    index: tuple[str, ...],
    keys: str,
    ascending: bool,
) -> None:
    table = await client.table(tables[True])
    told = await table.explain_top_n(n, by, where, descending=not ascending)
    _, response = top(wire, table.name, by=by, n=n, where=where, ascending=ascending)
    assert tuple(response.index) == index
    assert (told.index if told.index_order else ()) == index
    assert (told.index_order, told.limit, told.reverse) == (bool(index), n, not ascending)
    text = str(told)
    assert keys in text
    assert f"{'ascending' if ascending else 'descending'} by {by}, nulls last; equal rows ascending by key" in text
    if not index:
        scanned = await table.scan([by], where=where).explain()
        assert (told.ranges, told.index, told.residual) == (scanned.ranges, scanned.index, scanned.residual)
        assert (told.read_path, told.read_path_reason) == (scanned.read_path, scanned.read_path_reason)
        assert told.columns_returned == tuple(table.schema.names)


@pytest.mark.asyncio
async def test_explain_of_a_top_n_refuses_what_the_query_refuses(client: Client, tables: dict[bool, str]) -> None:
    table = await client.table(tables[True])
    with pytest.raises(SchemaMismatch, match="scroe"):
        await table.explain_top_n(5, "scroe")
    with pytest.raises(UsageError, match="limit"):
        await table.explain_top_n(0, "score")
    ties = await table.explain_top_n(5, "score", ties="all", columns=["player"])
    assert "limit     5 rows and all ties" in str(ties)
    assert ties.columns_returned == ("player",)


@pytest.mark.asyncio
async def test_an_index_that_is_added_is_used_once_it_is_whole_and_one_that_is_dropped_no_more(
    client: Client, wire: Wire, name: str
) -> None:
    create(wire, name, [])
    write(wire, name, rows().slice(0, 20_000))
    table = await client.table(name)
    scan = table.scan(where=col("score") == 7919 * 5 % ROWS)
    expected = exact_rows(await scan.to_arrow())
    columns = table_pb2.IndexColumns(columns=["score"])
    wire.tables.AlterTable(table_pb2.AlterTableRequest(name=name, add_indexes=[columns]))

    async def ready() -> bool:
        assert exact_rows(await scan.to_arrow()) == expected
        request = table_pb2.GetTableRequest(name=name, statistics=True)
        return bool(wire.tables.GetTable(request).indexes[0].ready)

    await await_until(ready, "an index that is ready")
    assert (await scan.explain()).index == ("score",)
    assert exact_rows(await scan.to_arrow()) == expected
    wire.tables.AlterTable(table_pb2.AlterTableRequest(name=name, drop_indexes=[columns]))
    assert not (await scan.explain()).index
    assert exact_rows(await scan.to_arrow()) == expected


@pytest.mark.asyncio
async def test_entries_and_rows_are_one_view_beside_writers(client: Client, wire: Wire, name: str) -> None:
    """Players move between two leagues, always all of them in one batch: a scan by league returns all or none."""
    create(wire, name, [["league", "score"]], buckets=1)
    # So many that the server reads most entries after it has released the mutex of the bucket.
    players = [f"player {number}" for number in range(1200)]
    table = await client.table(name)
    others = rows().slice(0, 8000)
    write(wire, name, others.set_column(2, SCHEMA.field("score"), pa.nulls(8000, SCHEMA.field("score").type)))

    async def move(turn: int) -> None:
        league = "even" if turn % 2 == 0 else "odd"
        await table.upsert([{"player": p, "league": league, "score": turn, "note": f"{turn}"} for p in players])

    await move(0)
    assert (await table.scan(where=col("league") == "even").explain()).index == ("league", "score")

    async def writer() -> None:
        for turn in range(1, 20):
            await move(turn)

    writing = asyncio.create_task(writer())
    seen = 0
    while not writing.done():
        found = await table.scan(["note", "score"], where=col("league") == "even").to_pylist()
        assert len(found) in (0, 1200)
        assert len({row["note"] for row in found}) <= 1
        assert all(row["note"] == str(row["score"]) for row in found)
        first = await table.top_n(7, order_by="score", columns=["score", "note", "league"])
        assert len({row["note"] for row in first.to_pylist()}) == 1
        seen += 1
    await writing
    assert seen > 3


def test_wrong_questions_are_refused_before_an_index_is_looked_at(wire: Wire, tables: dict[bool, str]) -> None:
    for request, reason in (
        (lookup_pb2.TopNRequest(by="score", n=100_001), "INVALID_REQUEST"),
        (lookup_pb2.TopNRequest(by="scroe", n=1), "SCHEMA_MISMATCH"),
        (lookup_pb2.TopNRequest(by="score", n=1, where=to_proto(col("scroe") == 1)), "SCHEMA_MISMATCH"),
    ):
        request.table = tables[True]
        assert refusal(wire.lookups.TopN, request).reason == reason


def test_too_many_ties_are_refused(wire: Wire, name: str) -> None:
    create(wire, name, [["score"]], buckets=1)
    for start in (0, 60_000):
        part = range(start, start + 60_000)
        columns = [pa.array([f"{place}" for place in part]), *(pa.nulls(60_000, type_) for type_ in SCHEMA.types[1:])]
        write(wire, name, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    for by in ("score", "level"):
        request = lookup_pb2.TopNRequest(table=name, by=by, n=1, with_ties=True)
        found = refusal(wire.lookups.TopN, request)
        assert (found.reason, "more than 100,000" in found.message) == ("INVALID_REQUEST", True)
