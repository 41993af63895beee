"""A Spark program in its own process, which prints its results: `python -m tests.spark.program HOW URL TABLE`.

`cluster`: executors in their own processes, some of which are killed while they read or write. `connect` and
`connect_writing`: the session is a client of a Spark Connect server, of the test's and of its own. `cluster` and
`connect_writing` copy the table, see `copy`.
`retries`: tasks are tried again, and the first try of one is killed while it writes. `discovery`: the data source has
to be registered. `create_sql_table` and `read_sql_table`: two sessions of one catalog. `pipeline`: a declarative one.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_bridge
from tests.spark import java
from tests.spark.instants import counts_of_one_instant, writing, written_and_killed
from tests.spark.large_table import LARGE_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame


def cluster(url: str, table: str) -> None:
    """Reads the table in four tasks, and copies it. The first attempt of one task of each job kills its executor."""
    spark = java.configured(SparkSession.builder.master("local-cluster[2,1,1024]")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.read.format("scankv").options(url=url, columns="k", splits=4).load(table)
    say(found(rows.mapInArrow(kill_executor, "k bigint")))
    copy(spark, url, table, "cluster", kill_executor_at_the_end)
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    say(sum(not executors.apply(number).isActive() for number in range(executors.size())))
    spark.stop()


def kill_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Kills the executor of the first attempt of partition 0 after its first batch."""
    for batch in batches:
        yield batch
        end_executor()


def kill_executor_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `kill_executor`, after the last batch; in a streaming query, in its first micro-batch."""
    yield from batches
    end_executor()


def end_executor() -> None:
    """Kills the executor of the first attempt of partition 0; in a streaming query, in its first micro-batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    is_first = context.getLocalProperty("streaming.sql.batchId") in (None, "0")
    if is_first and context.partitionId() == 0 and context.attemptNumber() == 0:
        os.kill(parent_of(os.getppid()), signal.SIGKILL)
        signal.pause()


Batches: TypeAlias = "Iterator[pa.RecordBatch]"


def copy(spark: SparkSession, url: str, table: str, name: str, through: Callable[[Batches], Batches]) -> None:
    """Adds up the rows in two new tables, `<table>_<name>_job` by a job and `..._query` by a streaming query."""
    adding_up = {"create": "true", "primary_key": "k", "merge_engine": "aggregate", "aggregators": "n=sum"}
    rows = spark.read.format("scankv").options(url=url, columns="k", splits=4).load(table)
    rows = rows.selectExpr("k", "1L AS n").mapInArrow(through, "k long, n long")
    rows.write.format("scankv").options(url=url, **adding_up).mode("append").save(f"{table}_{name}_job")

    reading = spark.readStream.format("scankv").options(url=url, columns="k", row_kinds="true", rows_per_split=3000)
    changes = reading.option("max_rows_per_trigger", LARGE_ROWS // 2).load(table)
    changes = changes.selectExpr("k", "1L AS n", "_change_type")
    changes = changes.mapInArrow(through, "k long, n long, _change_type string")
    with tempfile.TemporaryDirectory() as checkpoint:
        writing = changes.writeStream.format("scankv").options(url=url, table=f"{table}_{name}_query", **adding_up)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        say(len({progress["batchId"] for progress in query.recentProgress}) > 1)


def parent_of(pid: int) -> int:
    """Returns the parent of a process. A worker's parent is Spark's daemon, whose parent is the executor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def connect_writing(url: str, table: str) -> None:
    """Copies the table, as a client of a Spark Connect server that it starts."""
    builder: SparkSession.Builder = SparkSession.builder.remote("local[2]")
    spark = java.configured(builder).getOrCreate()
    copy(spark, url, table, "connect_writing", lambda batches: batches)
    spark.stop()


def connect(url: str, table: str) -> None:
    """Reads the table through data source, view and fast path, as a client of the server that `SPARK_REMOTE` names."""
    spark = SparkSession.builder.getOrCreate()
    say(found(spark.read.format("scankv").options(url=url, columns="k").load(table)))
    spark.sql(f"create temporary view large using scankv options (url '{url}', table '{table}', columns 'k')")
    say(found(spark.sql("select k from large")))
    say(found(spark_bridge.scan_dataframe(spark, url, table, columns=["k"], splits=2)))
    try:
        spark.read.format("scankv").options(url=url, splitz=2).load(table).schema  # noqa: B018  # sends a request to the server
    except Exception as error:
        say('there is no option "splitz"' in str(error))
    say(counts_of_one_instant(spark, url, f"{table}_connect_instants", writing))
    say(spark_bridge.bootstrap(spark.range(1000), url, f"{table}_connect_bootstrap", primary_key=["id"]))
    spark.stop()


def discovery(url: str, table: str) -> None:
    """Reads the table where another package ends Spark's search for data sources."""
    spark = java.configured(SparkSession.builder.master("local[2]")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    reading = spark.read.format("scankv").options(url=url, columns="k")
    try:
        reading.load(table)
    except Exception as error:
        say("[DATA_SOURCE_NOT_FOUND]" in str(error))
    spark.dataSource.register(spark_bridge.ScanKvDataSource)
    say(found(reading.load(table)))
    spark.stop()


def create_sql_table(url: str, table: str) -> None:
    """Creates a SQL table, and a temporary view of it, in a catalog that outlives the session."""
    spark = with_catalog()
    spark.sql(f"create table kept using scankv options (url '{url}', table '{table}')")
    say("created")
    spark.stop()


def read_sql_table(url: str, table: str) -> None:
    """Reads the table that `create_sql_table` created in another session."""
    spark = with_catalog()
    say(tuple(spark.sql("select count(*), max(score) from kept").first() or ()))
    say(tuple(spark.sql("select count(*) from kept with (where = 'score > 5')").first() or ()))
    spark.stop()


def with_catalog() -> SparkSession:
    """Creates a session with a Hive catalog in Derby, in the directory that the test names."""
    directory = os.environ["SCANKV_TEST_CATALOG"]
    builder = java.configured(SparkSession.builder.master("local[2]")).enableHiveSupport()
    connection = f"jdbc:derby:;databaseName={directory}/metastore;create=true"
    builder = builder.config("spark.hadoop.javax.jdo.option.ConnectionURL", connection)
    builder = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse")
    # By default, Derby writes a log to the working directory.
    options = f"{java.JAVA_OPTIONS} -Dderby.stream.error.file={directory}/derby.log"
    spark = builder.config("spark.driver.extraJavaOptions", options).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def pipeline(url: str, table: str) -> None:
    """Runs a declarative pipeline that reads the table, and one that follows it into `<table>_copy`."""
    from pyspark import pipelines
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run

    directory = os.environ["SCANKV_TEST_CATALOG"]
    builder: SparkSession.Builder = SparkSession.builder.remote("local[2]")
    spark = java.configured(builder).config("spark.sql.warehouse.dir", f"{directory}/warehouse").getOrCreate()
    graph = create_dataflow_graph(spark, None, None, {})
    with graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):

        @pipelines.materialized_view
        def counted() -> DataFrame:
            return spark.read.format("scankv").options(url=url).load(table).groupBy().count()

        target = {"url": url, "table": f"{table}_copy", "create": "true", "primary_key": "player"}
        pipelines.create_sink("copied", "scankv", target)

        @pipelines.append_flow(target="copied")
        def copying() -> DataFrame:
            rows = spark.readStream.format("scankv").options(url=url, row_kinds="true").load(table)
            return rows.drop("_log_offset", "_bucket", "_commit_timestamp")

    started = start_run(spark, graph, None, False, None, False, f"file://{directory}/storage")
    with redirect_stdout(sys.stderr):
        handle_pipeline_events(started)
    say([tuple(row) for row in spark.table("counted").collect()])
    spark.stop()


RETRIED_ROWS = 50_000


def retries(url: str, table: str) -> None:
    """Writes `RETRIED_ROWS` rows in two tasks of some 25 MB each. The first attempt of one of them is killed."""
    spark = java.configured(SparkSession.builder.master("local[2,3]")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.range(0, RETRIED_ROWS, 1, 2).selectExpr("id AS k", "1L AS n", "repeat('x', 1000) AS v")
    rows = rows.mapInArrow(kill_worker, rows.schema)
    rows.write.format("scankv").options(url=url).mode("append").save(table)
    say("written")
    say(counts_of_one_instant(spark, url, f"{table}_instants", written_and_killed))
    spark.stop()


def kill_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Kills its process after the last batch of the first attempt of partition 0."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def say(found: object) -> None:
    """Prints a line."""
    sys.stdout.write(f"{found}\n")


def found(rows: object) -> object:
    """Returns the number of rows, the number of distinct keys, and the sum of the keys."""
    (row,) = rows.agg(F.count("*"), F.countDistinct("k"), F.sum("k")).collect()  # type: ignore[attr-defined]
    return tuple(row)


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    programs = (cluster, connect, connect_writing, retries, discovery, create_sql_table, read_sql_table, pipeline)
    {each.__name__: each for each in programs}[sys.argv[1]](*sys.argv[2:])
