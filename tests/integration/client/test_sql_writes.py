"""`client.sql(...).run()`: statements that write do what DuckDB does to a copy, and lose no update of others."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import SchemaMismatch, TableNotFound, UsageError, connect, sync
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

SCHEMA: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("x", pa.float64()),
        pa.field("Text", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
NAN: Final = float("nan")
FRAME: Final = pa.table({"k": [1, 2, 3, 90], "n": pa.array([7, None, 5, 6], pa.int32()), "word": ["a", "b", None, "d"]})


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(shared_server.url) as client:
        client.create_table("sqlw.t", SCHEMA, primary_key=["k"], buckets=3)
        client.create_table("sqlw.other", SCHEMA, primary_key=["k"])
        yield client


rows = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.integers(0, 12),
            "n": st.none() | st.integers(-3, 3),
            "x": st.none() | st.sampled_from([0.5, -0.0, 1e9, NAN]),
            "Text": st.none() | st.sampled_from(["a", "b", ""]),
            "tags": st.none() | st.lists(st.none() | st.sampled_from(["u", "v"]), max_size=2),
        }
    ),
    max_size=8,
    unique_by=lambda row: str(row["k"]),
)
CONDITIONS: Final = (
    *("n > 0", "n is null", "x > 0.5", "x <> 1", "not (x > 1)", "text = 'a'", "k in (1, 2, 3)", "n % 2 = 1", "true"),
    *("k in (select k from f where n > 5)", "n = (select max(n) from sqlw.t)", "len(tags) = 1", "n / 2 = 0.5"),
)
SETS: Final = (
    *("n = n + 1", "x = n / 2, n = k", "text = text || 'z'", "tags = ['a', text]", "n = 1.5, x = null", "X = k"),
    *("n = (select count(*) from f)", 'tags = null, "Text" = k'),
)
MERGES: Final = (
    "when matched and f.n > 5 then update set n = f.n, text = word when matched then delete "
    "when not matched then insert (k, n) values (f.k, f.n)",
    "when matched then update set x = t.x + f.n when not matched and f.k > 50 then insert (k, text) values (f.k, word)",
    "when matched and t.n is null then do nothing when matched then update set n = t.n * 2",
)
STATEMENTS: Final = st.one_of(
    st.builds("delete from sqlw.t where {}".format, st.sampled_from(CONDITIONS)),
    st.builds("update sqlw.t set {} where {}".format, st.sampled_from(SETS), st.sampled_from(CONDITIONS)),
    st.builds("merge into sqlw.t using f on t.k = f.k {}".format, st.sampled_from(MERGES)),
    st.sampled_from(
        [
            "delete from sqlw.t",
            "truncate sqlw.t",
            "delete from sqlw.t as d using f where d.k = f.k and f.n > 4",
            "update sqlw.t as u set n = f.n from f where f.k = u.k",
            "with g as (select k, n from f where n > 5) update sqlw.t set n = g.n from g where g.k = t.k",
            "insert into sqlw.t values (100, 1, 2.5, 'x', ['p']), (101, 1.5, null, null, null)",
            "insert into sqlw.t (x, K) select n, k + 50 from f where k < 50",
            "insert into sqlw.t by name select n, k + 200 as k from f",
            "insert or replace into sqlw.t select k, n, n, word, [word] from f",
            "insert or ignore into sqlw.t (k, n) select k, n from f",
            "insert into sqlw.t (k, n) select k, n from f on conflict do nothing",
            "with g as (select 77 as k) insert into sqlw.t (k) select k from g",
            "merge into sqlw.t as m using f using (k) when matched then update set n = f.n when not matched "
            "then insert values (f.k, f.n, null, null, null)",
        ]
    ),
)


@examples(30)
@given(stored=rows, statement=STATEMENTS)
def test_a_statement_changes_the_rows_that_duckdb_changes(
    client: sync.Client, stored: list[dict[str, Any]], statement: str
) -> None:
    table = client.table("sqlw.t")
    data = pa.Table.from_pylist(stored, SCHEMA)
    table.truncate()
    table.upsert(data)
    with duckdb.connect() as con:
        con.register("f", FRAME)
        con.register("given", data)
        con.execute("create schema sqlw")
        con.execute('create table sqlw.t (k bigint primary key, n int, x double, "Text" varchar, tags varchar[])')
        con.execute("insert into sqlw.t from given")
        (expected_count,) = con.execute(statement).fetchone() or (None,)
        expected = con.sql("from sqlw.t order by k").to_arrow_table()
    done = client.sql(statement, frames={"f": FRAME}).run()
    found = table.scan().to_arrow().sort_by("k")
    # DuckDB leaves a -0.0 that becomes 0.0 as it is.
    assert str(found.to_pylist()).replace("-0.0", "0.0") == str(expected.to_pylist()).replace("-0.0", "0.0")
    if not statement.startswith("truncate"):
        assert done.rows == expected_count
    assert done.summary.startswith(f"{done.rows} row")


@pytest.mark.asyncio
async def test_no_update_is_lost_among_concurrent_ones_and_other_writers(shared_server: ServerProcess) -> None:
    async with connect(shared_server.url) as client:
        table = await client.create_table("sqlw.counters", SCHEMA, primary_key=["k"], buckets=2)
        await table.upsert([{"k": k, "n": 0, "x": 0.0} for k in range(20)])
        # One is computed by joins, and all change overlapping rows in different orders.
        statements = [
            "update sqlw.counters set n = n + 1",
            "update sqlw.counters as c set n = c.n + 1 from (select k from sqlw.counters) s where s.k = c.k",
            "merge into sqlw.counters c using (select 3 as k) s using (k) when matched then update set n = c.n + 100",
        ]
        done = await asyncio.gather(*(client.sql(each).run() for each in statements * 4))
        assert [each.rows for each in done] == [20, 20, 1] * 4
        found = {row["k"]: row["n"] for row in await table.scan().to_pylist()}
        assert found == {k: 8 + (400 if k == 3 else 0) for k in range(20)}


def test_a_row_that_others_change_is_read_again(client: sync.Client) -> None:
    """Writers that take no locks change the row at any moment: the statement adds to what it has then."""
    table = client.create_table("sqlw.contended", SCHEMA, primary_key=["k"])
    table.upsert([{"k": 1, "n": 0, "x": 0.0}])

    def write() -> None:
        for number in range(300):
            table.upsert([{"k": 1, "x": float(number)}], columns=["k", "x"])

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(3):
        client.sql("update sqlw.contended set n = n + 1").run()
    writer.join()
    assert table.get(1) == {"k": 1, "n": 3, "x": 299.0, "Text": None, "tags": None}


REFUSED: Final = [
    ("insert into sqlw.other (k) values (1)", UsageError, r"has 1 row with these keys already, such as \{'k': 1\}"),
    ("insert into sqlw.other (k) values (5), (5)", UsageError, "several new rows have one key"),
    ("insert into sqlw.other (k, n) values (5)", UsageError, "1 values are given for 2 columns"),
    ("insert into sqlw.other (k, nn) values (5, 5)", SchemaMismatch, '"nn" is not a column; did you mean "n"'),
    ("insert into sqlw.other (k, n) values (5, 'x')", UsageError, "Could not convert string 'x'"),
    ("insert into sqlw.other (k) values (1) on conflict (k) do update set n = 1", UsageError, "use merge into"),
    ("insert into sqlw.other (k) values (9) returning k", UsageError, "RETURNING is not supported"),
    ("update sqlw.other set k = 2", UsageError, "k is a key column"),
    ("update sqlw.other set n = 1, N = 2", UsageError, "a column is set twice"),
    ("update sqlw.other set n = 3 from range(2)", UsageError, "several new rows have one key"),
    ("update sqlw.other set n = k * 10000000000", UsageError, "DuckDB: Conversion Error"),
    ("update other set n = 1", UsageError, "name one as database.table"),
    ("update sqlw.nothing set n = 1", TableNotFound, "sqlw.nothing"),
    ("update sqlw.logged set n = 1", UsageError, "has no primary key"),
    ("merge into sqlw.other using f on true when not matched by source then delete", UsageError, "not exists"),
    ("merge into sqlw.other o using f on o.k = f.k when matched then update", UsageError, "name the columns"),
    ("create table sqlw.n (k int primary key, n int default 5)", UsageError, r"client\.create_table"),
    ("create table sqlw.n as select 1 as k", UsageError, r"client\.create_table"),
    ("create view sqlw.n as select 1 as k", UsageError, r"client\.create_table"),
    ("create or replace table sqlw.n (k int primary key)", UsageError, r"client\.create_table"),
    ("drop schema sqlw", UsageError, r"client\.drop_table"),
    ("alter table sqlw.other drop column n", UsageError, r"client\.alter_table"),
    ("alter table sqlw.other rename to n", UsageError, r"client\.alter_table"),
    ("select 1", UsageError, r"only reads: get its rows with to_arrow"),
]


@pytest.mark.parametrize(("statement", "error", "message"), REFUSED)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    client: sync.Client, statement: str, error: type[Exception], message: str
) -> None:
    table = client.table("sqlw.other")
    if not table.count():
        table.upsert([{"k": 1, "n": 1, "x": 1.0}])
    if "logged" in statement:
        client.create_table("sqlw.logged", SCHEMA, primary_key=[])
    # Other tests may have left some on the server.
    before = {each.token for each in client.transactions()}
    with pytest.raises(error, match=message):
        client.sql(statement, frames={"f": FRAME}).run()
    assert {each.token for each in client.transactions()} == before
    assert table.scan().to_pylist() == [{"k": 1, "n": 1, "x": 1.0, "Text": None, "tags": None}]
    assert table.schema.names == SCHEMA.names


def test_more_rows_than_a_transaction_reads_are_refused_with_the_call_to_use(client: sync.Client) -> None:
    keys = pa.table({"k": range(100_001)})
    client.create_table("sqlw.many", keys.schema, primary_key=["k"])
    with pytest.raises(UsageError, match=r"100,001 rows of sqlw\.many: at most 100,000 .*use insert or replace into"):
        client.sql("insert into sqlw.many from f", frames={"f": keys}).run()
    assert client.sql("insert or replace into sqlw.many from f", frames={"f": keys}).run().rows == 100_001
    with pytest.raises(UsageError, match=r"at most 100,000 can be locked in one transaction; use several statements"):
        client.sql("delete from sqlw.many where k % 1 = 0").run()
    # The server evaluates this condition.
    assert client.sql("delete from sqlw.many where k >= ?", [1]).run().rows == 100_000


def test_statements_create_alter_and_drop_tables(client: sync.Client) -> None:
    def run(text: str) -> str:
        return str(client.sql(text).run())

    columns = 'k bigint, "At" timestamp not null, amount decimal(10, 2), parts struct(a int, b varchar[])'
    assert run(f'create table sqlw.made ({columns}, primary key (k, "At"))') == "table sqlw.made created"
    table = client.table("sqlw.made")
    assert table.primary_key == ["k", "At"]
    assert [str(field.type) for field in table.schema] == [
        *("int64", "timestamp[us]", "decimal128(10, 2)", "struct<a: int32, b: list<item: string>>")
    ]
    run("create table if not exists sqlw.made (k int primary key)")
    assert run("alter table sqlw.made add column more varchar") == "table sqlw.made altered"
    run("alter table sqlw.made rename column amount to total")
    assert client.table("sqlw.made").schema.names == ["k", "At", "total", "parts", "more"]
    assert repr(client.sql("drop table sqlw.made").run()) == "<SqlResult: table sqlw.made dropped>"
    run("drop table if exists sqlw.made")
    with pytest.raises(TableNotFound):
        client.table("sqlw.made")


def test_a_statement_takes_parameters_and_defaults_and_appends_to_logs(client: sync.Client) -> None:
    table = client.create_table("sqlw.defaults", SCHEMA, primary_key=["k"])
    client.alter_table("sqlw.defaults", column_defaults={"n": 5})
    client.sql("insert into sqlw.defaults (k, x) values (?, ?)", [1, 2.5]).run()
    client.sql("update sqlw.defaults set text = $text, n = n + 1 where k = $k", {"k": 1, "text": "it's"}).run()
    assert table.scan().to_pylist() == [{"k": 1, "n": 6, "x": 2.5, "Text": "it's", "tags": None}]
    log = client.create_table("sqlw.log", SCHEMA, primary_key=[])
    assert repr(client.sql("insert into sqlw.log (k) values (1), (1)").run()) == "<SqlResult: 2 rows inserted>"
    assert log.count() == 2
    with pytest.raises(UsageError, match=r"has no rows: run it with run\(\)"):
        client.sql("delete from sqlw.t").to_arrow()
