"""Spark and a server with TLS and tokens: every process reads the token itself, and no plan or page has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from aio_client import Tls, TokenFile, sync
from scankv.spark import count, scan_dataframe
from tests.support.tls_server import TlsServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A server with TLS and tokens, and a table of two rows."""
    with TlsServer(tmp_path_factory.mktemp("tls")) as server:
        with sync.connect(server.url, token=server.root, tls=Tls(ca=server.authority.path)) as client:
            table = client.create_table("game.scores", SCHEMA, primary_key=["player"])
            table.upsert(pa.table({"player": ["ann", "bob"], "score": [31, 27]}, SCHEMA))
        yield server


@pytest.fixture
def options(server: TlsServer, tmp_path: Path) -> dict[str, Any]:
    """The options of a read or a write."""
    file = tmp_path / "token"
    file.write_text(server.root)
    return {"url": server.url, "token_file": str(file), "tls_ca": str(server.authority.path)}


def test_a_read_and_a_write_use_the_token_file(spark: SparkSession, options: dict[str, Any], server: TlsServer) -> None:
    rows = spark.read.format("scankv").options(**options).load("game.scores")
    assert sorted(map(tuple, rows.collect())) == [("ann", 31), ("bob", 27)]
    write = rows.write.format("scankv").options(**options, create="true", primary_key="player")
    write.mode("append").save("game.copies")
    copies = spark.read.format("scankv").options(**options).load("game.copies")
    assert copies.count() == 2
    assert server.root not in repr(rows) + rows._jdf.queryExecution().toString() + str(rows._jdf.queryExecution())


@pytest.mark.breadth
def test_a_stream_reads_and_writes_with_the_token_file(
    spark: SparkSession, options: dict[str, Any], tmp_path: Path
) -> None:
    changes = spark.readStream.format("scankv").options(**options, row_kinds="true").load("game.scores")
    query = (
        changes.select("player", "score")
        .writeStream.format("scankv")
        .options(**options, create="true", primary_key="player", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start("game.streamed")
    )
    query.awaitTermination()
    assert spark.read.format("scankv").options(**options).load("game.streamed").count() == 2


def test_a_table_of_sql_uses_the_token_file(spark: SparkSession, options: dict[str, Any], server: TlsServer) -> None:
    texts = ", ".join(f"{name} '{value}'" for name, value in {**options, "table": "game.scores"}.items())
    spark.sql(f"CREATE TEMPORARY VIEW secured USING scankv OPTIONS ({texts})")
    try:
        assert spark.sql("SELECT sum(score) FROM secured").collect()[0][0] == 58
        assert server.root not in "".join(map(str, spark.sql("EXPLAIN EXTENDED SELECT * FROM secured").collect()))
    finally:
        spark.sql("DROP VIEW secured")


def test_functions_use_the_token(spark: SparkSession, options: dict[str, Any], server: TlsServer) -> None:
    tls = Tls(ca=options["tls_ca"])
    assert count(server.url, "game.scores", token=server.root, tls=tls) == 2
    frame = scan_dataframe(spark, server.url, "game.scores", token=TokenFile(options["token_file"]), tls=tls)
    assert frame.count() == 2
    assert server.root not in frame._jdf.queryExecution().toString()


def test_what_the_pages_of_spark_show_has_no_token(
    spark: SparkSession, options: dict[str, Any], server: TlsServer
) -> None:
    rows = spark.read.format("scankv").options(**options).load("game.scores")
    assert rows.count() == 2
    assert rows.filter("score > 30").collect() == [("ann", 31)]
    context, state = spark._jsc.sc(), spark._jsparkSession.sharedState()

    def shown_of_executions() -> str:
        executions = state.statusStore().executionsList()
        found = [executions.apply(number) for number in range(executions.size())]
        return "".join(
            part for each in found for part in (each.description(), each.details(), each.physicalPlanDescription())
        )

    def shown_if_read(shown: str) -> str:
        return shown if "scankv" in shown else ""

    # Spark notes an execution after its result.
    pages = {"SQL": wait_until(lambda: shown_if_read(shown_of_executions()), "shown")}
    environment = context.statusStore().environmentInfo()
    pages["environment"] = "".join(
        properties.mkString()
        for properties in (
            environment.sparkProperties(),
            environment.hadoopProperties(),
            environment.systemProperties(),
            environment.classpathEntries(),
        )
    )
    pages["configuration"] = str(context.getConf().toDebugString())
    pages["settings"] = "".join(map(str, spark.sql("SET -v").collect()))
    secret = server.root.split("_", 2)[2]
    for page, shown in pages.items():
        assert shown, page
        assert secret[:10] not in shown, page
        assert secret[-10:] not in shown, page


def test_a_profile_is_read_where_spark_plans(
    spark: SparkSession, options: dict[str, Any], tmp_path: Path, server: TlsServer
) -> None:
    # The workers have the environment of the session, which names no profiles, so this process plans alone.
    with pytest.raises(PySparkException, match=r"there is no profile|does not exist"):
        spark.read.format("scankv").option("profile", "missing").load("game.scores")


def test_a_token_as_an_option_is_refused_and_not_shown(
    spark: SparkSession, options: dict[str, Any], server: TlsServer
) -> None:
    given = {name: value for name, value in options.items() if name != "token_file"}
    with pytest.raises(PySparkException, match='no option "token": Spark shows and stores options') as caught:
        spark.read.format("scankv").options(**given, token=server.root).load("game.scores")
    assert server.root not in str(caught.value)


def test_a_job_without_a_token_is_refused(spark: SparkSession, options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if name != "token_file"}
    with pytest.raises(PySparkException, match="token"):
        spark.read.format("scankv").options(**given).load("game.scores")
