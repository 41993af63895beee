"""`client.sql()`: queries over live tables have the answers of DuckDB over a copy; what would change is refused."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pytest

from aio_client import TableNotFound, UsageError, connect, sync
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

ROWS: Final = 3_000
DATA: Final = pa.table(
    {
        "k": range(ROWS),
        "league": [None if row % 11 == 0 else f"l{row % 7}" for row in range(ROWS)],
        "score": pa.array([float("nan") if row % 13 == 0 else row / 3 for row in range(ROWS)], from_pandas=False),
        "points": pa.array([None if row % 5 == 0 else row % 100 for row in range(ROWS)], pa.int32()),
    }
)


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(shared_server.url) as client:
        table = client.create_table("sql.scores", DATA.schema, primary_key=["k"], buckets=3)
        table.upsert(DATA)
        yield client


@pytest.fixture
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
    ("insert into sql.scores select * from sql.scores", r"SQL only reads: for this, use table\.upsert\(rows\)"),
    ("update sql.scores set points = 1", r"table\.upsert_columns"),
    ("delete from sql.scores", r"table\.delete_where"),
    ("create table sql.others (k int)", r"client\.create_table"),
    ("drop table sql.scores", r"client\.drop_table"),
    ("attach 'x.db'", r"SQL only reads: begin the statement with select"),
    ("set threads = 1", r"SQL only reads"),
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
    ("select * from sql.scores, sql.others", r"the query names sql\.scores and sql\.others"),
]


@pytest.mark.parametrize(("query", "message"), REFUSED_LATER)
def test_an_error_of_a_query_says_what_is_wrong_and_the_next_query_runs(
    client: sync.Client, query: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        client.sql(query).to_arrow()
    assert client.sql("select count(*) n from sql.scores").to_pylist() == [{"n": ROWS}]


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
            return bool(client._sql._running)

        await await_until(runs, "the query runs")
    with pytest.raises(UsageError, match="the client was closed before the query ended"):
        await running
