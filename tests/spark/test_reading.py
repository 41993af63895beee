"""The data source `scankv` in a Spark session returns the rows of the table as of one instant in every query."""

from __future__ import annotations

import datetime
import decimal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

import spark_bridge
from aio_client import sync
from tests.spark.large_table import LARGE_ROWS, make_large
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.server_process import ServerProcess

SCORES = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64()), ("team", pa.string())])
ROWS = 1000
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def scores(client: sync.Client) -> sync.Table:
    """A table of a thousand rows, which no test changes."""
    table = client.create_table("spark.scores", SCORES, primary_key=["player"], buckets=3)
    numbers = range(ROWS)
    players, teams = [f"p{number:04}" for number in numbers], [f"t{number % 7}" for number in numbers]
    table.upsert(pa.table({"player": players, "score": [*numbers[:-1], None], "team": teams}, schema=SCORES))
    return table


@pytest.fixture
def own(client: sync.Client, name: str) -> sync.Table:
    """A small table for one test."""
    table = client.create_table(name, SCORES, primary_key=["player"], buckets=2)
    table.upsert([{"player": f"p{number}", "score": number, "team": "t"} for number in range(10)])
    return table


def told(error: Exception) -> str:
    """Returns the last lines of an error's text, which users read first."""
    return str(error)[-800:]


def test_the_source_is_discovered_and_can_be_registered(
    spark: SparkSession, load: Callable[..., DataFrame], scores: sync.Table, shared_server: ServerProcess
) -> None:
    found = load(scores.name)
    assert found.columns == SCORES.names
    assert [column.nullable for column in found.schema] == [False, True, True]
    assert found.count() == ROWS
    spark.dataSource.register(spark_bridge.ScanKvDataSource)
    options = {"URL": shared_server.url, "Table": scores.name, "rowsPerSplit": "100"}
    again = spark.read.format("ScanKV").options(**options).load()
    assert again.rdd.getNumPartitions() == ROWS // 100
    assert again.agg(F.sum("score"), F.countDistinct("player")).first() == (ROWS * (ROWS - 1) // 2 - ROWS + 1, ROWS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splitz": 3}, 'there is no option "splitz"; did you mean "splits"?'),
        ({"splits": "x"}, "option splits must be a whole number, not 'x'"),
        ({"columns": "player,scor"}, 'there is no column "scor"; did you mean "score"?'),
        ({"where": "score > 'x'"}, "score"),
        ({"where": "score >"}, "the predicate"),
        (
            {"key_start": '["p1", 2]'},
            "option key_start must have one value for each leading key column to restrict, of player, not 2 values",
        ),
        ({"snapshot": "gone"}, "option snapshot"),
        ({"pushdown": "true"}, "option pushdown"),
        # A worker does not know the tables of others.
        pytest.param(
            {"table": "spark.score"},
            'table "spark.score" does not exist; did you mean',
            marks=pytest.mark.one_process,
        ),
        ({"url": NOBODY}, f"no ScanKV server answers at {NOBODY}"),
        ({"url": "nowhere"}, "'nowhere' is not the address of a server"),
    ],
)
def test_a_wrong_option_is_one_short_error_of_load(
    spark: SparkSession, shared_server: ServerProcess, scores: sync.Table, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("scankv").options(**{"url": shared_server.url, "table": scores.name, **options}).load()
    assert message in told(caught.value)
    assert str(caught.value).count("  File ") <= 2
    assert "_transport.py" not in str(caught.value)
    assert "During handling" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("player string, points bigint", 'the schema has a column "points" that is not among the columns'),
        ("player string, score int", 'column "score" must have type bigint, as in the table, not int'),
        ("player string, score bigint not null", 'column "score" must be nullable'),
    ],
)
def test_a_schema_that_is_not_the_tables_is_refused_before_any_task_starts_and_keeps_no_lease(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, own: sync.Table, schema: str, message: str
) -> None:
    rows = spark.read.format("scankv").options(url=shared_server.url).schema(schema).load(own.name)
    with pytest.raises(AnalysisException) as caught:
        rows.collect()
    assert message in told(caught.value)
    assert client.snapshots(own.name) == []


def test_a_schema_selects_columns(spark: SparkSession, shared_server: ServerProcess, own: sync.Table) -> None:
    reading = spark.read.format("scankv").options(url=shared_server.url).schema("score bigint, player string")
    assert sorted(reading.load(own.name).collect()) == [(number, f"p{number}") for number in range(10)]


QUERIES: list[Callable[[Any], Any]] = [
    lambda d: d.filter("score = 1"),
    lambda d: d,
    lambda d: d.filter("score = 1").union(d.filter("score = 2")).union(d.filter("score is null")),
    lambda d: d.alias("a").join(d.alias("b").filter("team = 't2'"), "player"),
    lambda d: d.filter("score = 1").alias("a").crossJoin(d.filter("score = 3").alias("b")),
    lambda d: d.join(d.filter("score > 990").select("team").distinct(), "team", "left_anti").groupBy("team").count(),
]


SUBQUERIES = (
    "select a.player, (select count(*) from {} where score < 10) from {} a join {} b on a.score = b.score + 1 "
    "where a.score > 990 and b.player in (select player from {} where team = 't1')"
)


@pytest.fixture(scope="module")
def answers(
    spark: SparkSession, shared_server: ServerProcess, scores: sync.Table, tmp_path_factory: pytest.TempPathFactory
) -> list[list[str]]:
    """What the queries return of a Parquet copy of `scores`."""
    path = str(tmp_path_factory.mktemp("parquet") / "copy")
    spark.read.format("scankv").options(url=shared_server.url).load(scores.name).write.parquet(path)
    copy = spark.read.parquet(path)
    copy.createOrReplaceTempView("copied_scores")
    by_text = spark.sql(SUBQUERIES.replace("{}", "copied_scores"))
    return [content(rows) for rows in [*(query(copy) for query in QUERIES), by_text]]


@pytest.mark.parametrize("pushing", ["false", "true"])
@pytest.mark.represented_by("false")
def test_one_dataframe_in_many_queries_is_the_same_as_its_parquet_copy(
    spark: SparkSession, load: Callable[..., DataFrame], scores: sync.Table, answers: list[list[str]], pushing: str
) -> None:
    rows = load(scores.name)
    rows.createOrReplaceTempView("live_scores")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushing)
    try:
        for query, answer in zip(QUERIES, answers[:-1], strict=True):
            assert content(query(rows)) == answer
        assert content(spark.sql(SUBQUERIES.replace("{}", "live_scores"))) == answers[-1]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def content(rows: DataFrame) -> list[str]:
    return sorted(map(str, rows.collect()))


def test_a_named_snapshot_is_read_by_all_queries_and_not_released(
    load: Callable[..., DataFrame], client: sync.Client, own: sync.Table
) -> None:
    with own.snapshot(ttl=300) as snapshot:
        own.delete(["p1"])
        assert load(own.name, snapshot=snapshot.id).count() == 10
        assert [each.ttl for each in client.snapshots(own.name)] == [300]


@pytest.mark.breadth
def test_the_options_that_spark_does_not_push_down_reach_the_server(
    load: Callable[..., DataFrame], scores: sync.Table
) -> None:
    def players(**options: object) -> list[str]:
        return sorted(row.player for row in load(scores.name, **options).collect())

    assert load(scores.name, columns="score").columns == ["score"]
    assert players(where="score in (3, 5)", columns="player") == ["p0003", "p0005"]
    assert players(key_prefix="p099") == [f"p099{digit}" for digit in range(10)]
    assert players(keyStart="p0008", keyEnd='["p0010"]', splits=2) == ["p0008", "p0009", "p0010"]
    assert players(key_start="p0995", rows_per_split=50) == [f"p099{digit}" for digit in range(5, 10)]
    assert players(key_start="q") == []
    assert len(set(players(limit=7))) == 7
    narrow = load(scores.name, key_prefix="p099", rows_per_split=100)
    assert narrow.rdd.getNumPartitions() <= 2


@pytest.mark.parametrize("options", [{"splits": 1}, {"splits": 7}, {"rows_per_split": 500}, {"rows_per_split": 400}])
@pytest.mark.breadth
def test_the_parts_of_a_table_with_skewed_buckets_add_up_to_the_table(
    load: Callable[..., DataFrame], client: sync.Client, name: str, options: dict[str, int]
) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64(), nullable=False)])
    table = client.create_table(name, schema, primary_key=["a", "b"], bucket_key=["a"], buckets=4)
    table.upsert(pa.table({"a": [0] * 1800 + list(range(200)), "b": range(2000)}, schema=schema))
    rows = load(name, **options)
    found = rows.groupBy(F.spark_partition_id()).count().collect()
    assert sum(row["count"] for row in found) == 2000
    assert sorted(row.b for row in rows.collect()) == list(range(2000))
    if rows.rdd.getNumPartitions() > 1:
        assert max(row["count"] for row in found) < 1.5 * 2000 / rows.rdd.getNumPartitions()


def test_an_empty_table_has_no_rows(load: Callable[..., DataFrame], client: sync.Client, name: str) -> None:
    client.create_table(name, SCORES, primary_key=["player"])
    assert load(name).collect() == []
    assert load(name, splits=3).count() == 0


@pytest.mark.breadth
def test_tasks_return_each_row_once_when_the_server_is_killed(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    with sync.connect(server.url) as client:
        make_large(client, "spark.large")
    rows = spark.read.format("scankv").options(url=server.url, splits=2).load("spark.large")
    gated = rows.mapInArrow(gate(str(tmp_path)), rows.schema).select("k")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: sorted(row.k for row in gated.collect()))
        try:
            begun = [tmp_path / "begun-0", tmp_path / "begun-1"]
            wait_until(lambda: job.done() or all(each.exists() for each in begun), "two tasks reading", timeout=300)
            server.kill()
            server.restart()
        finally:
            (tmp_path / "go").touch()
        assert job.result() == list(range(LARGE_ROWS))


def gate(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Blocks the first batch of each task until the file `go` exists, and reports its arrival in another file."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first, context = next(batches), TaskContext.get()
        assert context is not None
        (Path(directory) / f"begun-{context.partitionId()}").touch()
        wait_until((Path(directory) / "go").exists, "let through", timeout=300)
        yield first
        yield from batches

    return wait


def test_a_limit_leaves_no_live_scan(load: Callable[..., DataFrame], client: sync.Client, large: sync.Table) -> None:
    assert len(load(large.name, splits=2).limit(5).collect()) == 5
    wait_until(lambda: all(each.table != large.name for each in client.live_scans()), "no live scan", timeout=60)


@pytest.mark.breadth
@pytest.mark.parametrize("splits", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_many_tasks_leave_no_scan_and_one_lease_of_the_plan_and_one_of_the_query(
    load: Callable[..., DataFrame], client: sync.Client, own: sync.Table, splits: int
) -> None:
    assert load(own.name, splits=splits).count() == 10
    assert [each for each in client.live_scans() if each.table == own.name] == []
    assert sorted(each.ttl for each in client.snapshots(own.name)) == [60, 600]


UTC = datetime.UTC
TYPES = pa.schema(
    [
        pa.field("k", pa.int32(), nullable=False),
        ("flag", pa.bool_()),
        ("i8", pa.int8()),
        ("u8", pa.uint8()),
        ("u32", pa.uint32()),
        ("u64", pa.uint64()),
        ("f16", pa.float16()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("amount", pa.decimal128(12, 2)),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("local", pa.timestamp("ms")),
        ("instant", pa.timestamp("ns", "Asia/Kolkata")),
        ("many", pa.list_(pa.uint16())),
        ("by_name", pa.map_(pa.string(), pa.timestamp("s", "UTC"))),
        ("both", pa.struct([pa.field("a", pa.int8(), nullable=False), ("b", pa.list_(pa.string()))])),
    ]
)
SEEN = datetime.datetime(2024, 3, 10, 2, 30, 0, 123000)
VALUES: dict[str, Any] = {
    "k": 1,
    "flag": True,
    "i8": -128,
    "u8": 255,
    "u32": 2**32 - 1,
    "u64": 2**64 - 1,
    "f16": 1.5,
    "f32": 0.25,
    "f64": 0.1,
    "amount": decimal.Decimal("-1234567890.12"),
    # Longer than gRPC's default limit of a message.
    "text": 5_000_000 * "é",
    "data": b"\0\xff",
    "day": datetime.date(1969, 7, 20),
    "local": SEEN,
    "instant": SEEN.replace(tzinfo=UTC),
    "many": [1, None, 65_535],
    "by_name": [("x", SEEN.replace(microsecond=0, tzinfo=UTC)), ("y", None)],
    "both": {"a": 1, "b": ["x", None]},
}


@pytest.mark.represented_by("True")
@pytest.mark.parametrize("fast", [False, True])
def test_every_type_has_the_same_values_in_a_session_that_is_not_in_utc(
    spark: SparkSession,
    shared_server: ServerProcess,
    load: Callable[..., DataFrame],
    client: sync.Client,
    fast: bool,
    name: str,
) -> None:
    client.create_table(name, TYPES, primary_key=["k"]).upsert(
        pa.Table.from_pylist([VALUES, {"k": 2, "both": None}], TYPES)
    )
    rows = spark_bridge.scan_dataframe(spark, shared_server.url, name) if fast else load(name)
    # Compared as text that Spark formats in UTC, since Python's conversion depends on the time zone of the process.
    shown = rows.withColumn("instant", F.unix_micros("instant")).withColumn(
        "by_name", F.transform_values("by_name", lambda _, value: F.unix_micros(value))
    )
    first, second = shown.orderBy("k").collect()
    micros = 1_710_037_800_123_000
    assert first.asDict(recursive=True) == {
        **VALUES,
        "u64": decimal.Decimal(2**64 - 1),
        "instant": micros,
        "by_name": {"x": micros - 123_000, "y": None},
    }
    assert second.k == 2
    assert set(second[1:]) == {None}
    assert rows.filter("instant = timestamp'2024-03-10 02:30:00.123Z' and day = date'1969-07-20'").count() == 1
