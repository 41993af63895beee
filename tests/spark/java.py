"""The environment of Spark in the tests: Java, a small JVM, and Python workers that find the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def check() -> None:
    """Fails with a message that says what to install if Java is missing."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        pytest.fail(
            "Spark needs Java 17 or newer, and there is none: install a JRE (Debian: apt-get install "
            "default-jre-headless), or set JAVA_HOME"
        )


def environment() -> dict[str, str]:
    """Returns the environment variables of the JVM and its Python workers, with this interpreter and checkout."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a module in its own process with additional variables, within the time limit of a test."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment(), **variables},
    )


def configured(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Configures Spark to be small, to start quickly, and to use loopback only."""
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Short runs are faster with little compilation.
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder
