"""Reads published tables by the jars of Delta Lake and Iceberg, in an environment with a Spark that they support.

The newest Spark that ScanKV supports is newer than any that these jars support. Run as a program, this module is the
reader, which needs nothing but PySpark: each line of its input is a request, and each line of its output an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

PYSPARK: Final = "pyspark==4.1.*"
JARS: Final = (
    "io.delta:delta-spark_4.1_2.13:4.1.0",
    "io.delta:delta-storage:4.1.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
_ENVIRONMENT: Final = Path(__file__).parents[2] / ".venv-jars"


class SparkWithJars:
    """A process that reads published tables. Makes its environment first, which needs `mvn`, PyPI and Maven Central."""

    def __init__(self) -> None:
        jars = _make_environment()
        self._process = subprocess.Popen(
            [str(_ENVIRONMENT / "bin" / "python"), __file__, *map(str, jars)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, format_: str, uri: str, version: int | None, target: Path) -> None:
        """Reads all rows of a table, and writes them to a new directory as Parquet files.

        Args:
            format_: `delta` or `iceberg`.
            uri: The directory of the table.
            version: The version of a Delta table, or the snapshot id of an Iceberg table. None: the latest.
            target: The new directory.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"format": format_, "uri": uri, "version": version, "target": str(target)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "Spark has ended"}')
        if "error" in answer:
            raise RuntimeError(f"Spark cannot read {format_} from {uri}: {answer['error']}")

    def close(self) -> None:
        """Ends the process, once it has answered."""
        assert self._process.stdin is not None
        with self._process:
            self._process.stdin.close()


def _make_environment() -> list[Path]:
    """Installs PySpark and the jars, unless that was done. Returns the jars."""
    python, jars = _ENVIRONMENT / "bin" / "python", _ENVIRONMENT / "jars"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(_ENVIRONMENT)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", PYSPARK], check=True)
    found = []
    for coordinates in JARS:
        _, artifact, version = coordinates.split(":")
        found.append(jars / f"{artifact}-{version}.jar")
        if not found[-1].exists():
            copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={jars}"]
            subprocess.run(copy, check=True)
    return found


def _main(jars: Sequence[str]) -> None:
    spark = _start(jars)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        answer: dict[str, str] = {}
        try:
            rows = _read(spark.newSession(), request["format"], request["uri"], request["version"])
            rows.coalesce(1).write.parquet(request["target"])
        except Exception as error:  # whatever it is, it is the answer
            answer["error"] = str(error)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    spark.stop()


def _start(jars: Sequence[str]) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _read(spark: SparkSession, format_: str, uri: str, version: int | None) -> DataFrame:
    """Returns a table. The session is new, as a session keeps its catalogs."""
    if format_ == "delta":
        reader = spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(uri)
    # A table is found by the name of its catalog, too, which is that of the publisher.
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        ".uri": f"jdbc:sqlite:{uri}/catalog.db",
        ".warehouse": uri,
    }
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.scankv{name}", value)
    of_version = "" if version is None else f" VERSION AS OF {version}"
    return spark.sql(f"SELECT * FROM scankv.scankv.published{of_version}")


if __name__ == "__main__":
    _main(sys.argv[1:])
