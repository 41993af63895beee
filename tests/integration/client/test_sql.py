"""`client.sql()`: queries over live tables have the answers of DuckDB over a copy; what would change is refused."""

from __future__ import annotations

import asyncio
import datetime
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import DeadlineExceeded, ScanInterrupted, TableNotFound, UsageError, connect, sync
from aio_client._sql.shortcuts import TopRows, find_shortcut
from aio_client._sql.statement import parse_statement
from tests.support.waiting import await_until, wait_until
from tests.support.workers import freeze

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

ROWS: Final = 3_000
_DAY: Final = datetime.date(2024, 1, 1)
DATA: Final = pa.table(
    {
        "k": range(ROWS),
        "league": [None if row % 11 == 0 else f"l{row % 7}" for row in range(ROWS)],
        "score": pa.array([float("nan") if row % 13 == 0 else row / 3 for row in range(ROWS)], from_pandas=False),
        "points": pa.array([None if row % 5 == 0 else row % 100 for row in range(ROWS)], pa.int32()),
        "flag": [None if row % 17 == 0 else row % 2 == 0 for row in range(ROWS)],
        "amount": pa.array([Decimal(row % 40) / 4 for row in range(ROWS)], pa.decimal128(10, 2)),
        "small": pa.array([row % 30 / 10 for row in range(ROWS)], pa.float32()),
        "day": [_DAY + datetime.timedelta(row % 90) for row in range(ROWS)],
        "at": pa.array([datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=row) for row in range(ROWS)]),
    }
)


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(shared_server.url) as client:
        table = client.create_table("sql.scores", DATA.schema, primary_key=["k"], buckets=3)
        table.upsert(DATA)
        yield client


@pytest.fixture(scope="module")
def copy() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with a copy of the table under its name."""
    with duckdb.connect() as con:
        con.execute("create schema sql")
        con.from_arrow(DATA).create("sql.scores")
        yield con


QUERIES: Final[list[tuple[str, Any]]] = [
    ("select * from sql.scores order by k", None),
    ("from sql.scores select k, score where score > 900 order by all", None),
    ("select league, count(*), sum(points), max(score) from sql.scores where points > $least group by all order by all",
     {"least": 10}),
    ("select k from sql.scores where league in (?, ?) and k < ? order by k", ["l1", "l2", 50]),
    ("select count(*) from sql.scores where score > 5 or score <> 7", None),
    ("select sql.scores.k, scores.league from sql.scores where points is null order by 1", None),
    ("with best as (select max(points) m from sql.scores) select k from sql.scores, best where points = m order by 1",
     None),
    ("select a.k from sql.scores a join sql.scores b on a.k = b.k + 1 where b.points = 3 order by 1", None),
    ("select k from sql.scores qualify row_number() over (partition by league order by k) = 1 order by 1", None),
    ("select league from sql.scores where k = 3 union all select 'x'", None),
    ("select count(*) filter (where points > 3), list(k order by k) from sql.scores where k < 5", None),
    ("pivot (select league, points from sql.scores where k < 90) on league using sum(points)", None),
    ("select league as l, count(*) from sql.scores group by l order by l", None),
    ("select k as League from sql.scores order by league desc limit 3", None),
    ("describe select k from sql.scores", None),
    ("values (1), (2)", None),
]  # fmt: skip


@pytest.mark.parametrize(("query", "parameters"), QUERIES)
def test_a_query_has_the_answer_that_it_has_over_a_copy(
    client: sync.Client, copy: duckdb.DuckDBPyConnection, query: str, parameters: Any
) -> None:
    found = client.sql(query, parameters).to_arrow()
    expected = copy.sql(query, params=parameters).to_arrow_table()
    assert found.schema == expected.schema
    assert str(found.to_pylist()) == str(expected.to_pylist())


@st.composite
def plain_queries(draw: st.DrawFn) -> str:
    """Draws queries that the server may compute, and some that it must not."""
    condition = draw(
        st.sampled_from(
            [
                *("score > 300", "score >= 300 and points < 50", "not (score > 300)", "score <> 13", "score = 1"),
                *("league in ('l1', 'l2')", "league not in ('l1', null)", "league like 'l%'", "league is null"),
                *("points between 10 and 20 or score > 990", "k = 5", "k < 0", "Points = 3", "league = 'L1'"),
                *("score > points", "points = 3.0", "points < 2.5", "k + 1 < 10", "flag", "not flag"),
                *("amount > 1.5", "amount = 2", "amount in (0.5, 7)", "small < 0.1", "small >= 0.1"),
                *("day >= '2024-03-01'", "day = date '2024-01-05'", "at < '2024-02-01 12:00:00'"),
            ]
        )
    )
    where = draw(st.sampled_from(["", f"where {condition}"]))
    if draw(st.booleans()):
        order = draw(
            st.sampled_from(["score desc, k", "points, k", "k", "k desc", "league desc nulls first, k", "amount, k"])
        )
        shown = draw(st.sampled_from(["*", "k", "k, points * 2 as twice", "scores.league, k"]))
        limit = draw(st.sampled_from(["limit 5", "limit 3 offset 2", "limit 0", ""]))
        return f"select {shown} from sql.scores {where} order by {order} {limit}"
    columns = st.sampled_from(["k", "points", "score", "league", "amount", "small", "flag", "day", "at"])
    functions = st.sampled_from(["count", "sum", "min", "max", "avg"])
    found = [f"{draw(functions)}({draw(columns)})" for _ in range(draw(st.integers(1, 3)))]
    listed = draw(st.sampled_from([[*found, "count(*)"], found, [f"{found[0]} as x", *found[1:]], [f"{found[0]} + 1"]]))
    keys = draw(st.lists(st.sampled_from(["league", "flag", "points"]), max_size=2, unique=True))
    order = f"group by {', '.join(keys)} order by {', '.join(keys)}" if keys else ""
    having = draw(st.sampled_from(["", "having count(*) > 3"])) if keys else ""
    order = order.replace(" order", f" {having} order")
    return f"select {', '.join([*keys, *listed])} from sql.scores {where} {order}"


@given(query=plain_queries())
def test_a_plain_query_has_the_answer_names_and_types_of_duckdb(
    client: sync.Client, copy: duckdb.DuckDBPyConnection, query: str
) -> None:
    try:
        expected = copy.sql(query).to_arrow_table()
    except duckdb.Error as error:
        with pytest.raises(UsageError, match=re.escape(str(error).partition("\n")[0][:40])):
            client.sql(query).to_arrow()
        return
    found = client.sql(query).to_arrow()
    assert found.schema == expected.schema
    assert _rounded(found) == _rounded(expected)


def _rounded(rows: pa.Table) -> list[str]:
    """Returns rows as texts, with floats of 12 digits, since they are added in any order."""
    columns = [column.to_pylist() for column in rows.columns]  # Some may have the same name.
    return [
        str([f"{each:.12g}" if isinstance(each, float) else each for each in row]) for row in zip(*columns, strict=True)
    ]


COUNTED: Final = 'SELECT CAST(SUM("k_count") AS BIGINT) FROM sql.scores'
PLAIN: Final[list[tuple[str, Any, str | None]]] = [
    ("select count(*) from sql.scores", None, 'SELECT CAST(SUM("k_count") AS BIGINT) FROM sql.scores'),
    ("select count(*) from sql.scores where score > 3", None, 'SELECT CAST(SUM("k_count") AS BIGINT) FROM sql.scores'),
    (
        "select max(points) + 1 from sql.scores s where s.k = ?",
        [3],
        'SELECT MAX("points_max") + 1 FROM sql.scores AS s',
    ),
    ("select league from sql.scores group by league", None, 'SELECT "league" FROM sql.scores GROUP BY "league"'),
    ("select k from sql.scores order by score desc limit 3", None, "3 by score"),
    ("select k from sql.scores where league = $x order by score limit 3 offset 2", {"x": "l1"}, "5 by score"),
    ("select k from sql.scores limit 3", None, None),
    ("select k from sql.scores where points > ? order by score limit ?", [1, 3], None),
    ("select k as z from sql.scores order by z limit 3", None, None),
    ("select k from sql.scores order by score nulls first limit 3", None, None),
    ("select distinct league from sql.scores", None, None),
    ("select count(distinct k) from sql.scores", None, None),
    ("select avg(points) from sql.scores", None, None),
    ("select sum(points) from sql.scores group by score", None, None),
    ("select sum(points) as points from sql.scores", None, None),
    ("select count(*) from sql.scores where small > 1", None, None),
    ("select count(*) from sql.scores where league = upper('x')", None, None),
    ("select count(*) from sql.scores where score > $x", {"x": 1.5}, None),
    ("select league, k from sql.scores group by league", None, None),
    ("select league as l, count(*) from sql.scores group by l", None, None),
    ("select k as League from sql.scores order by league limit 3", None, None),
    ("select points as p, sum(p) from sql.scores group by points", None, None),
]


@pytest.mark.parametrize(("query", "parameters", "expected"), PLAIN)
def test_the_server_computes_plain_aggregates_and_first_rows(query: str, parameters: Any, expected: str | None) -> None:
    found = find_shortcut(parse_statement(query).tree, DATA.schema, ["k"], parameters)
    if isinstance(found, TopRows):
        assert f"{found.limit} by {found.order_by}" == expected
    else:
        assert (found and found.text) == expected


def test_rows_come_as_pandas_and_polars_too(client: sync.Client) -> None:
    query = client.sql("select k, points from sql.scores where k between 4 and 5 order by k")
    assert query.to_pylist() == [{"k": 4, "points": 4}, {"k": 5, "points": None}]
    assert query.to_pandas()["points"].dtype.pyarrow_dtype == pa.int32()
    assert query.to_polars()["points"].to_list() == [4, None]
    assert repr(query).startswith("<sync SqlQuery 'select k, points")


def test_frames_and_files_are_joined_with_live_tables(client: sync.Client, tmp_path: Any) -> None:
    names = pa.table({"league": ["l1", "l2"], "name": ["One", "Two"]})
    file = tmp_path / "names.csv"
    file.write_text("league,name\nl1,One\nl2,Two\n")
    for source, frames in (("names", {"names": names}), (f"'{file}'", {})):
        query = f"select distinct name from sql.scores join {source} using (league) order by name"
        assert client.sql(query, frames=frames).to_arrow()["name"].to_pylist() == ["One", "Two"]


REFUSED: Final = [
    ("selec 1", r'DuckDB: Parser Error: syntax error at or near "selec"'),
    ("", r"one statement is run at a time, not 0"),
    ("select 1; select 2", r"one statement is run at a time, not 2"),
    ("attach 'x.db'", r"SQL only reads here: begin the statement with select"),
    ("set threads = 1", r"SQL only reads here"),
]


@pytest.mark.parametrize(("query", "message"), REFUSED)
def test_what_is_no_query_is_refused_before_it_runs(client: sync.Client, query: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        client.sql(query)


REFUSED_LATER: Final = [
    ("select nothing from sql.scores", r'Referenced column "nothing" not found'),
    ("select league::int from sql.scores", r"Could not convert string 'l"),
    ("select * from scores", r"A table of the server is named as database\.table"),
    ("select * from client", r"Table with name client does not exist"),
    ("select $x", r"DuckDB: "),
]


@pytest.mark.parametrize(("query", "message"), REFUSED_LATER)
def test_an_error_of_a_query_says_what_is_wrong_and_the_next_query_runs(
    client: sync.Client, query: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        client.sql(query).to_arrow()
    assert client.sql("select count(*) n from sql.scores").to_pylist() == [{"n": ROWS}]


def test_arguments_of_other_types_are_refused(client: sync.Client) -> None:
    query: Any = 5
    with pytest.raises(UsageError, match="query must be text, not a int"):
        client.sql(query)
    with pytest.raises(UsageError, match="a frame must not be named 'scankv_0'"):
        client.sql("select * from scankv_0, sql.scores", frames={"scankv_0": DATA}).to_arrow()


def test_the_error_of_a_scan_is_the_error_of_the_query(client: sync.Client) -> None:
    with pytest.raises(TableNotFound, match=r'"sql\.score" does not exist; did you mean "sql\.scores"'):
        client.sql("select * from sql.score").to_arrow()


def test_a_table_that_is_named_twice_shows_one_instant(client: sync.Client, name: str) -> None:
    table = client.create_table(
        name, pa.schema([pa.field("k", pa.int64(), False), ("n", pa.int64())]), primary_key=["k"]
    )
    table.upsert([{"k": 1, "n": 0}])
    is_over = threading.Event()

    def count() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            table.upsert([{"k": 1, "n": number}])

    writer = threading.Thread(target=count)
    writer.start()
    try:
        for _ in range(10):
            (row,) = client.sql(f"select (select n from {name}) a, (select n from {name}) b").to_pylist()
            assert row["a"] == row["b"]
    finally:
        is_over.set()
        writer.join()


@pytest.mark.asyncio
async def test_a_query_that_is_cancelled_ends_with_its_scans(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("sql.scores", DATA.schema, primary_key=["k"])
        await table.upsert(DATA)
        endless = client.sql("select count(*) from sql.scores, range(10_000_000_000) r where k + r.range > 3")
        for turns in (0, 1, 1_000):
            running = asyncio.create_task(endless.to_arrow())
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        few = client.sql("select k from sql.scores limit 3")
        assert [each.num_rows for each in await asyncio.gather(*(few.to_arrow() for _ in range(12)))] == [3] * 12
        assert (await client.stats()).live_scans == 0
        running = asyncio.create_task(endless.to_arrow())

        async def runs() -> bool:
            return client._sql is not None and bool(client._sql._running)

        await await_until(runs, "the query runs")
    with pytest.raises(UsageError, match="the client was closed before the query ended"):
        await running


@pytest.mark.asyncio
async def test_a_query_that_waits_for_a_frozen_server_can_be_cancelled(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("sql.scores", DATA.schema, primary_key=["k"])
        await table.upsert(DATA)
        query = client.sql("select avg(points) from sql.scores")
        await query.to_arrow()
        assert client._sql is not None
        engine = client._sql

        async def waits() -> bool:
            return bool(engine._running)

        running = asyncio.create_task(query.to_arrow())
        await await_until(waits, "the query runs")
        with freeze(server.process.pid):
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, 5)  # DuckDB would wait for the rows for longer.


@pytest.mark.asyncio
async def test_a_query_whose_scan_breaks_off_fails_and_says_so(server: ServerProcess) -> None:
    many = pa.table({"k": range(300_000), "text": ["x" * 200] * 300_000})
    async with connect(server.url, operation_timeout=30) as client:
        table = await client.create_table("sql.broken", many.schema, primary_key=["k"])
        await table.upsert(many)
        query = client.sql("select max(text || r.range) from sql.broken, range(20_000) r")
        running = asyncio.create_task(query.to_arrow())

        async def scans() -> bool:
            return (await client.stats()).rows_scanned > 0

        await await_until(scans, "the query reads")
        assert not running.done()
        server.kill()
        server.restart()
        with pytest.raises(ScanInterrupted, match=r"scan of sql.broken broke off .*; run the query again$"):
            await asyncio.wait_for(running, 30)
        assert client._sql is not None
        assert not client._sql._running
        assert (await client.stats()).live_scans == 0
        rows = await client.sql("select count(*) as rows from sql.broken where k + 1 > 0").to_pylist()
        assert rows == [{"rows": many.num_rows}]


def test_what_does_not_fit_into_memory_is_written_where_only_this_user_reads_it(shared_server: ServerProcess) -> None:
    with sync.connect(shared_server.url) as client:
        rows = client.sql("select current_setting('temp_directory') as d").to_pylist()
        directory = Path(rows[0]["d"])
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not directory.exists()


def test_a_query_is_limited_in_memory_and_time(client: sync.Client) -> None:
    small = client.sql("select current_setting('memory_limit') m", memory_bytes=2**28)
    assert small.to_pylist() == [{"m": "256.0 MiB"}]
    assert client.sql("select current_setting('memory_limit') m").to_pylist() != [{"m": "256.0 MiB"}]
    endless = client.sql("select max(hash(k + range)) from sql.scores, range(100_000_000_000)", timeout=0.2)
    with pytest.raises(DeadlineExceeded, match=r"the query took longer than 0\.2 s: select less"):
        endless.to_arrow()
    wait_until(lambda: client.stats().live_scans == 0, "its scan ended")
    for wrong in (0, 1.5, True):
        with pytest.raises(UsageError, match=f"memory_bytes must be a whole number of at least 1,048,576, not {wrong}"):
            client.sql("select 1", memory_bytes=wrong)  # type: ignore[arg-type]
