"""`df.write.format("scankv")` writes all rows of a job in one transaction, each task's rows once, or nothing."""

from __future__ import annotations

import datetime
import decimal
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import spark_bridge
from aio_client import ScanKvError, agg, sync
from spark_bridge.types import spark_schema
from tests.spark import java, program
from tests.spark.task import task_context
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from spark_bridge.write_source import ScanKvWriter
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("n", pa.int32())])
ROWS = 1000
LARGE_ROWS = 25_000  # Spark passes 10,000 rows at a time; with 1,000 bytes each, they exceed the size of a request.


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    """A table of ten rows."""
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    table.upsert([{"k": k, "v": "old", "n": k} for k in range(10)])
    return table


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """A DataFrame of a thousand rows in two partitions."""
    return spark.range(0, ROWS, 1, 2).selectExpr("id AS k", "'new' AS v", "cast(id + 1 AS int) AS n")


@pytest.fixture
def save(shared_server: ServerProcess) -> Callable[..., None]:
    """Writes a DataFrame."""

    def save(rows: DataFrame, table: str, mode: str = "append", **options: Any) -> None:
        rows.write.format("scankv").options(**{"url": shared_server.url, **options}).mode(mode).save(table)

    return save


def content(table: sync.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().ordered().to_arrow().to_pylist()
    return rows


def expected(rows: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in rows.collect()), key=lambda row: row["k"])


def begin_write(url: str, table: sync.Table, *, overwrite: bool = False, **options: str) -> ScanKvWriter:
    """Returns the writer of a planned write of rows with the table's columns."""
    source = spark_bridge.ScanKvDataSource(CaseInsensitiveDict({"url": url, "path": table.name, **options}))
    return source.writer(spark_schema(SCHEMA), overwrite)


def attempted(writer: ScanKvWriter, partition: int, first: int, count: int, *, rows_that_fail: bool = False) -> Any:
    """Runs an attempt of a task with a pickled copy of the writer, and returns its message."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"k": k, "v": "new", "n": k} for k in range(first, first + count)], SCHEMA)
        if rows_that_fail:
            # When the task takes the second of these batches, the rows above are staged.
            for _ in range(2):
                yield pa.RecordBatch.from_pylist([{"k": 1, "v": "x" * 9_000_000, "n": 1}] * 2, SCHEMA)
            raise RuntimeError("the task failed")

    with task_context(partition):
        return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(batches())))


def test_written_rows_are_visible_at_once_in_existing_and_new_tables(
    save: Callable[..., None], rows: DataFrame, table: sync.Table, client: sync.Client
) -> None:
    save(rows, table.name)
    assert content(table) == expected(rows)
    created = f"{table.name}c"
    options = {"create": "true", "primaryKey": "v, k", "buckets": 3, "merge_engine": "first_row"}
    for again in (rows, rows.withColumn("n", F.lit(0))):
        save(again, created, **options)
    found = client.table(created)
    assert (found.primary_key, found.buckets, found.merge_engine) == (["v", "k"], 3, "first_row")
    assert content(found) == expected(rows)
    assert client.transactions() == []


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"merge_engine": "aggregate", "aggregators": "n=sum, v = listagg"}, (7, "c,a,b")),
        ({"merge_engine": "aggregate", "aggregators": '{"n": {"function": "max", "ignore_retract": true}}'}, (4, "b")),
        ({"merge_engine": "versioned", "version_column": "n"}, (4, "a")),
        ({"sequence_column": "n, v"}, (4, "a")),
    ],
)
@pytest.mark.represented_by("options0-kept0")
def test_a_new_table_gets_the_options_of_its_merge_engine(
    save: Callable[..., None],
    spark: SparkSession,
    client: sync.Client,
    name: str,
    options: dict[str, str],
    kept: tuple[int, str],
) -> None:
    for row in [(1, 1, "c"), (1, 4, "a"), (1, 2, "b")]:
        rows = spark.createDataFrame([row], "k long, n int, v string")
        save(rows, name, create="true", primary_key="k", **options)
    assert content(client.table(name)) == [{"k": 1, "n": kept[0], "v": kept[1]}]


def test_overwrite_leaves_exactly_the_written_rows(
    save: Callable[..., None], rows: DataFrame, table: sync.Table, load: Callable[..., DataFrame]
) -> None:
    before = table.scan().to_arrow()
    save(rows.filter("k BETWEEN 5 AND 14"), table.name, "overwrite")
    assert [(row["k"], row["v"]) for row in content(table)] == [(k, "new") for k in range(5, 15)]
    # Overwriting a table by rows that were read from it works, too.
    save(load(table.name).filter("k > 12"), table.name, "overwrite")
    assert [row["k"] for row in content(table)] == [13, 14]
    save(rows.filter("k < 0"), table.name, "overwrite")
    assert content(table) == []
    assert before.num_rows == 10


@pytest.mark.breadth
def test_overwrite_replaces_only_the_rows_that_match(
    save: Callable[..., None], rows: DataFrame, table: sync.Table
) -> None:
    old = {row["k"]: row["v"] for row in content(table)}
    save(rows.filter("k BETWEEN 5 AND 6"), table.name, "overwrite", replace_where="k >= 5 and k < 8")
    expected = {key: value for key, value in old.items() if not 5 <= key < 8} | {5: "new", 6: "new"}
    assert {row["k"]: row["v"] for row in content(table)} == expected
    with pytest.raises(PySparkException, match=r"replace_where.*all but 1 row of a partition"):
        save(rows.filter("k = 9"), table.name, "overwrite", replace_where="k < 8")
    with pytest.raises(PySparkException, match="replace_where"):
        save(rows.filter("k = 9"), table.name, "append", replace_where="k < 8")
    assert {row["k"]: row["v"] for row in content(table)} == expected


@pytest.mark.breadth
def test_deletes_columns_and_changes_are_written_as_by_the_client(
    save: Callable[..., None], spark: SparkSession, rows: DataFrame, table: sync.Table
) -> None:
    save(rows.select("k").filter("k < 3"), table.name, operation="delete")
    save(rows.select("k", "n").filter("k = 3"), table.name, columns="k,n")
    save(rows.filter("k = 4"), table.name, operation="delete", columns="n")
    changes = [(5, "gone", 0, "-D"), (6, "new", 0, "+U"), (7, "old", 7, "-U"), (10, "new", 0, "+I")]
    save(spark.createDataFrame(changes, "k long, v string, n int, _change_type string not null"), table.name)
    assert [tuple(row.values()) for row in content(table)] == [
        (3, "old", 4),
        (4, "old", None),
        (6, "new", 0),
        (7, "old", 7),
        (8, "old", 8),
        (9, "old", 9),
        (10, "new", 0),
    ]


def test_values_of_every_type_are_read_back_unchanged(
    save: Callable[..., None], client: sync.Client, load: Callable[..., DataFrame], name: str
) -> None:
    zoned = datetime.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=datetime.UTC)
    columns: list[tuple[pa.DataType, Any]] = [
        (pa.bool_(), True),
        (pa.int8(), -8),
        (pa.uint8(), 255),
        (pa.uint16(), 65_535),
        (pa.uint32(), 2**32 - 1),
        (pa.uint64(), 2**64 - 1),
        (pa.float16(), 0.5),
        (pa.float32(), 0.25),
        (pa.float64(), 0.1),
        (pa.binary(), b"\x00\xff"),
        (pa.date32(), datetime.date(1900, 1, 1)),
        (pa.decimal128(12, 3), decimal.Decimal("1.125")),
        (pa.timestamp("us", "Europe/Berlin"), zoned),
        (pa.timestamp("ns"), zoned.replace(tzinfo=None)),
        (pa.list_(pa.string()), ["a", None]),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (pa.struct([("x", pa.int64()), ("t", pa.timestamp("us", "UTC"))]), {"x": 1, "t": zoned}),
    ]
    fields = [pa.field("k", pa.string(), nullable=False)]
    schema = pa.schema([*fields, *(pa.field(f"c{i}", type_) for i, (type_, _) in enumerate(columns))])
    table = client.create_table(name, schema, primary_key=["k"])
    values = {f"c{i}": [value, None] for i, (_, value) in enumerate(columns)}
    given = pa.table(
        [pa.array(["all", "none"]), *(pa.array(v, schema.field(n).type) for n, v in values.items())], schema=schema
    )
    table.upsert(given)
    before = table.scan().ordered().to_arrow()
    copy = client.create_table(f"{name}c", schema, primary_key=["k"])
    save(load(name), copy.name)
    assert copy.scan().ordered().to_arrow().equals(before)


NOBODY = "127.0.0.1:1"
COLUMNS = "k long, v string, n int"
NEW = {"path": "test.refused", "create": "true", "primary_key": "k"}


@pytest.mark.parametrize(
    ("columns", "options", "overwrite", "message"),
    [
        (COLUMNS, {"tabel": "x"}, False, 'there is no option "tabel"; did you mean "table"?'),
        (COLUMNS, {"operation": "remove"}, False, "option operation must be upsert or delete, not 'remove'"),
        (COLUMNS, {"buckets": "3"}, False, "option buckets requires create=true"),
        (COLUMNS, {"create": "true"}, False, "option primary_key is missing"),
        (COLUMNS, {"aggregators": "n=sum"}, False, "option aggregators requires create=true"),
        (
            COLUMNS,
            {**NEW, "aggregators": "n: sum"},
            False,
            "option aggregators must be column=function pairs separated by commas, or JSON",
        ),
        (COLUMNS, {**NEW, "aggregators": '{"n": {"of": "sum"}}'}, False, "option aggregators must be column=function"),
        (
            COLUMNS,
            {**NEW, "aggregators": "n=sum, n=max"},
            False,
            'option aggregators must name each column once; it names "n" twice',
        ),
        (COLUMNS, {**NEW, "aggregators": "n=sum"}, False, 'aggregators is only for merge_engine "aggregate"'),
        (COLUMNS, {**NEW, "merge_engine": "aggregate", "aggregators": "v=sum"}, False, "which sum does not take"),
        (COLUMNS, {**NEW, "merge_engine": "aggregate", "aggregators": "m=sum"}, False, 'there is no column "m"'),
        (COLUMNS, {**NEW, "merge_engine": "versioned"}, False, 'merge_engine "versioned" needs a version_column'),
        (COLUMNS, {**NEW, "merge_engine": "versioned", "version_column": "m"}, False, 'there is no column "m"'),
        (
            COLUMNS,
            {**NEW, "merge_engine": "first_row", "sequence_column": "n"},
            False,
            "sequence_column is only for merge_engine",
        ),
        (COLUMNS, {**NEW, "columns": "k,n"}, False, "option columns cannot be combined with create"),
        (f"{COLUMNS}, _change_type int", NEW, False, 'column "_change_type" must be a string'),
        (COLUMNS, {"create": "maybe"}, False, "option create must be true or false, not 'maybe'"),
        (COLUMNS, {"transaction_ttl": "0"}, False, "option transaction_ttl must be between 1 and"),
        (COLUMNS, {"operation": "delete"}, True, "option operation must be upsert with mode"),
        (COLUMNS, {"columns": "k,n"}, True, "option columns cannot be combined with mode"),
        (COLUMNS, {"columns": "k,m"}, False, '"m"'),
        (f"{COLUMNS}, m int", {}, False, 'there is no column "m"'),
        ("k long, v string, n string", {}, False, 'column "n" cannot be cast to int32'),
        ("k long, v string", {}, False, 'column "n" is missing'),
        ("k long, v string, n interval month", {}, False, 'column "n": ScanKV does not store type interval month'),
        (
            "k long, v variant",
            {},
            False,
            'column "v": ScanKV does not store type variant; write it as text, to_json(v)',
        ),
        ("k long, v array<struct<a variant>>", {}, False, 'column "v": ScanKV does not store type variant'),
        ("v string", {"operation": "delete"}, False, 'column "k" is missing'),
        (f"{COLUMNS}, _change_type string, _log_offset long, _bucket int", {}, False, 'drop("_log_offset", "_bucket")'),
        (f"{COLUMNS}, _change_type string", {}, True, 'column "_change_type" cannot be combined with mode'),
        (f"{COLUMNS}, _change_type int", {}, False, 'column "_change_type" cannot be cast to string'),
    ],
)
@pytest.mark.represented_by(
    'k long, v string, n int-options0-False-there is no option "tabel"; did you mean "table"?',
    'k long, v string, n int, _change_type int-options30-False-column "_change_type" cannot be cast to string',
)
def test_an_invalid_write_is_refused_when_it_is_planned(
    shared_server: ServerProcess,
    table: sync.Table,
    client: sync.Client,
    spark: SparkSession,
    columns: str,
    options: dict[str, str],
    overwrite: bool,
    message: str,
) -> None:
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    source = spark_bridge.ScanKvDataSource(
        CaseInsensitiveDict({"url": shared_server.url, "path": table.name, **options})
    )
    with pytest.raises(ScanKvError, match=re.escape(message)):
        source.writer(schema, overwrite)
    assert client.transactions() == []
    assert "test.refused" not in [each.name for each in client.tables()]


def test_a_refusal_is_an_error_of_save(
    save: Callable[..., None], rows: DataFrame, table: sync.Table, client: sync.Client
) -> None:
    for wrong, name, options, message in [
        (rows.drop("n"), table.name, {}, 'column "n" is missing'),
        (rows, f"{table.name}x", {}, 'option("create", "true")'),
        (rows, table.name, {"url": NOBODY}, f"no ScanKV server answers at {NOBODY}"),
        # This is Spark's default mode.
        (rows, table.name, {"mode": "errorifexists"}, 'either the "Append" or "Overwrite" mode'),
    ]:
        with pytest.raises(AnalysisException) as caught:
            save(wrong, name, **options)
        assert message in str(caught.value)
        assert str(caught.value).count("  File ") <= 2
    assert client.transactions() == []


@pytest.mark.breadth
def test_a_job_that_fails_leaves_nothing(
    save: Callable[..., None], rows: DataFrame, table: sync.Table, client: sync.Client
) -> None:
    before = content(table)
    for wrong, message in [
        ("if(k = 700, null, k)", 'column "k", row 200: k is null'),
        ("if(k = 700, raise_error('no row'), k)", "no row"),
    ]:
        with pytest.raises(Exception, match=r"no row|is null") as caught:
            save(rows.withColumn("k", F.expr(wrong)), table.name, "overwrite")
        assert message in str(caught.value)
    assert content(table) == before
    # The driver has aborted the transaction. A task that still runs cannot write to it.
    assert client.transactions() == []


def test_only_attempts_that_the_commit_names_count(
    shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    table = client.create_table(name, SCHEMA, primary_key=["k"], merge_engine="aggregate", aggregators={"n": agg.sum()})
    writer = begin_write(shared_server.url, table)
    with pytest.raises(RuntimeError, match="the task failed"):
        attempted(writer, 0, 0, 10, rows_that_fail=True)
    first, again = attempted(writer, 0, 0, 10), attempted(writer, 0, 0, 10)
    empty = attempted(writer, 1, 0, 0)
    assert client.transactions()[0].rows > 20
    assert table.count() == 0
    for _ in range(2):
        pickle.loads(pickle.dumps(writer)).commit([again, empty])
    assert [row["n"] for row in content(table)] == list(range(10))
    with pytest.raises(Exception, match="committed"):
        attempted(writer, 2, 0, 10)
    writer.abort([first, None])
    assert table.count() == 10


def test_an_expired_or_aborted_write_is_not_applied_in_part(
    shared_server: ServerProcess, table: sync.Table, client: sync.Client
) -> None:
    before = content(table)
    writer = begin_write(shared_server.url, table, overwrite=True)
    messages = [attempted(writer, 0, 20, 10)]
    writer.abort(messages)
    with pytest.raises(Exception, match="option transaction_ttl") as caught:
        writer.commit(messages)
    assert type(caught.value).__name__ == "TransactionLost"
    assert content(table) == before
    assert client.transactions() == []


def test_a_write_with_a_transaction_id_counts_once(
    save: Callable[..., None], spark: SparkSession, client: sync.Client, name: str
) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64())])
    table = client.create_table(name, schema, primary_key=["k"], merge_engine="aggregate", aggregators={"n": agg.sum()})
    rows = spark.createDataFrame([(1, 1), (1, 2)], "k long, n long")
    for _ in range(2):
        save(rows, name, transaction_id=f"{name}:1")
    assert content(table) == [{"k": 1, "n": 3}]


def test_a_job_continues_when_the_server_is_killed_and_restarted(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    go = tmp_path / "go"

    def in_two_steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
        wait_until(go.exists, "the server", timeout=300)
        yield pa.RecordBatch.from_pylist([{"k": LARGE_ROWS, "v": "y"}], batch.schema)

    with sync.connect(server.url) as client, ThreadPoolExecutor(1) as pool:
        table = client.create_table("test.killed", SCHEMA.remove(2), primary_key=["k"])

        def restart() -> None:
            try:
                wait_until(lambda: any(each.rows for each in client.transactions()), "rows", timeout=300)
                server.kill()
                server.restart()
                client.wait_ready()
                assert table.count() == 0
            finally:
                go.touch()

        rows = spark.range(0, LARGE_ROWS, 1, 1).selectExpr("id AS k", "repeat('x', 1000) AS v")
        restarted = pool.submit(restart)
        rows = rows.mapInArrow(in_two_steps, rows.schema)
        rows.write.format("scankv").options(url=server.url).mode("append").save(table.name)
        restarted.result()
        found = table.scan(["k"]).ordered().to_arrow().column(0).to_pylist()
        assert found == list(range(LARGE_ROWS + 1))


@pytest.mark.breadth
def test_a_task_that_is_killed_leaves_nothing(
    save: Callable[..., None], spark: SparkSession, table: sync.Table, client: sync.Client
) -> None:
    before = content(table)
    rows = spark.range(0, LARGE_ROWS, 1, 2).selectExpr("id AS k", "repeat('x', 1000) AS v", "0 AS n")
    with pytest.raises(Exception, match="crashed"):
        save(rows.mapInArrow(program.kill_worker, rows.schema), table.name, "overwrite")
    assert content(table) == before
    assert client.transactions() == []


@pytest.mark.soak
def test_tasks_that_are_killed_and_retried_write_their_rows_once(
    shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64()), ("v", pa.string())])
    table = client.create_table(name, schema, primary_key=["k"], merge_engine="aggregate", aggregators={"n": agg.sum()})
    done = java.run(program.__name__, "retries", shared_server.url, name)
    # Tasks that write while they read are killed and repeated, too: two of them, twice each.
    assert done.stdout.splitlines() == ["written", "[20, 28]"], done.stderr[-5000:]
    assert [row["n"] for row in table.scan(["n"]).ordered().to_arrow().to_pylist()] == [1] * program.RETRIED_ROWS
