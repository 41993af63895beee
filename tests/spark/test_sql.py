"""Tables and views in SQL: the options that CREATE TABLE stores, also for later sessions, and INSERT."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from spark_bridge.sql_tables import STORED
from tests.spark import java, program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64())])


def filled(client: sync.Client, name: str, rows: int = 10) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["player"], buckets=2)
    table.upsert([{"player": f"p{number}", "score": number} for number in range(rows)])
    return table


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    return filled(client, name)


class Sql:
    """Runs SQL statements in which `{}` stands for a unique name."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._url = url
        self.name = f"sql_{uuid.uuid4().hex}"

    def __call__(self, text: str) -> DataFrame:
        return self._spark.sql(text.replace("{}", self.name))

    def rows(self, text: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in self(text).collect())

    def create(self, table: str, what: str = "table {}", **options: str) -> None:
        listed = ", ".join(f"{name} '{value}'" for name, value in {"url": self._url, "table": table, **options}.items())
        self(f"create {what} using scankv options ({listed})")


@pytest.fixture
def sql(spark: SparkSession, shared_server: ServerProcess) -> Iterator[Sql]:
    made = Sql(spark, shared_server.url)
    yield made
    spark.sql(f"drop table if exists {made.name}")


def told(error: Exception) -> str:
    return str(error)[-1000:]


@pytest.mark.breadth
def test_a_statement_can_add_options_to_those_of_its_table(sql: Sql, table: sync.Table) -> None:
    sql.create(table.name, where="score < 8", rows_per_split="3")
    assert sql.rows("select count(*), max(score) from {}") == [(8, 7)]
    assert sql.rows("select a.player from {} a join {} b using (player) where b.score = 3") == [("p3",)]
    # The server evaluates it, in addition to the `where` of the table.
    assert sql.rows("select count(*) from {} with (where = 'score > 5')") == [(2,)]
    assert sql.rows("select count(*) from {} with (`key_prefix` = 'p1', splits = '1')") == [(1,)]
    table.delete(["p3"])
    assert sql.rows("select count(*) from {}") == [(7,)]
    sql("create or replace temporary view v as select * from {} where score = 4")
    assert sql.rows("select score from v") == [(4,)]
    assert sql.rows("select count(*) from {} with (`limit` = '2')") == [(2,)]


def test_the_where_of_a_statement_only_narrows_the_where_of_its_table(sql: Sql, table: sync.Table) -> None:
    sql.create(table.name, where="score < 2")
    with pytest.raises(AnalysisException) as caught:
        sql.rows("select * from {} with (where = 'score = 1) or (score > 0')")
    assert "predicate" in told(caught.value)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select * from {} with (splitz = '3')", 'there is no option "splitz"; did you mean "splits"?'),
        ("select * from {} with (endingOffsets = '3')", 'there is no option "endingoffsets": use option stop'),
        ("select * from {} with (`table` = 'test.other')", "option table must be '"),
        ("select * from {} with (url = 'other:1')", "option url must be '"),
    ],
)
def test_options_that_a_statement_cannot_change_are_refused(
    sql: Sql, table: sync.Table, statement: str, message: str
) -> None:
    sql.create(table.name)
    with pytest.raises(AnalysisException) as caught:
        sql.rows(statement)
    assert message in told(caught.value)


def test_a_table_that_cannot_be_read_is_not_created(sql: Sql, table: sync.Table) -> None:
    for options, message in [
        ({"table": "test.nothing_of_the_kind"}, "does not exist"),
        ({"wher": "true"}, 'there is no option "wher"'),
        ({"where": "points > 3"}, "points"),
    ]:
        with pytest.raises(AnalysisException) as caught:
            sql.create(**{"table": table.name, **options})
        assert message in told(caught.value)
    # If the statement lists columns, Spark does not call the data source and drops the options.
    sql.create(table.name, "table {} (player string)")
    with pytest.raises(AnalysisException) as caught:
        sql.rows("select * from {}")
    assert "without columns" in told(caught.value)


def test_inserting_through_a_sql_table_is_refused_whatever_the_source(
    sql: Sql, client: sync.Client, spark: SparkSession, table: sync.Table
) -> None:
    sql.create(table.name)
    other = Sql(spark, sql._url)
    other.create(filled(client, f"{table.name}_other", 3).name)
    before = table.scan().to_arrow()
    try:
        for statement in (
            "insert into {} values ('x', 1)",
            "insert into {} (score, player) values (1, 'x')",
            f"insert into {{}} select * from {other.name}",
            f"insert overwrite {{}} select * from {other.name}",
        ):
            with pytest.raises(AnalysisException) as caught:
                sql(statement)
            assert "INSERT INTO does not work with a table" in told(caught.value)
            assert "CREATE TEMPORARY VIEW" in told(caught.value)
    finally:
        other("drop table {}")
    assert table.scan().to_arrow().sort_by("player") == before.sort_by("player")
    assert client.table(f"{table.name}_other").count() == 3


@pytest.mark.breadth
def test_rows_are_inserted_through_a_temporary_view_from_a_table(
    sql: Sql, client: sync.Client, spark: SparkSession, table: sync.Table
) -> None:
    target = filled(client, f"{table.name}_target", 0)
    sql.create(table.name)
    view = Sql(spark, sql._url)
    view.create(target.name, "temporary view {}")
    view("insert into {} values ('x', 1), ('y', null)")
    assert view.rows("select player from {}") == [("x",), ("y",)]
    view(f"insert into {{}} select * from {sql.name} where score < 2")
    assert sorted(target.scan(["player"]).to_arrow()["player"].to_pylist()) == ["p0", "p1", "x", "y"]
    view(f"insert overwrite {{}} select * from {sql.name} where score = 5")
    assert target.scan().to_pylist() == [{"player": "p5", "score": 5}]
    assert table.count() == 10


@pytest.mark.breadth
def test_a_stream_of_a_table_follows_it(sql: Sql, spark: SparkSession, table: sync.Table, tmp_path: Path) -> None:
    sql.create(table.name, row_kinds="true")
    found: list[int] = []
    writing = spark.readStream.table(sql.name).writeStream.foreachBatch(lambda rows, _: found.append(rows.count()))
    query = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert sum(found) == 10
    with pytest.raises(AnalysisException) as caught:
        sql.rows("select * from {}")
    assert "option row_kinds is an option of readStream only" in told(caught.value)


def test_no_option_that_is_a_secret_is_stored() -> None:
    assert not {name for name in STORED if "token" in name or "password" in name} - {"token_file", "token_env"}


@pytest.mark.soak
def test_a_sql_table_exists_in_later_sessions(
    shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> None:
    filled(client, name)
    for how, expected in [("create_sql_table", ["created"]), ("read_sql_table", ["(10, 9)", "(4,)"])]:
        done = java.run(program.__name__, how, shared_server.url, name, SCANKV_TEST_CATALOG=str(tmp_path))
        assert done.returncode == 0, done.stderr[-5000:]
        assert done.stdout.splitlines() == expected


@pytest.mark.soak
def test_a_declarative_pipeline_reads_and_writes_tables(
    shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> None:
    filled(client, name)
    done = java.run(program.__name__, "pipeline", shared_server.url, name, SCANKV_TEST_CATALOG=str(tmp_path))
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines() == ["[(10,)]"]
    assert client.table(f"{name}_copy").count() == 10
