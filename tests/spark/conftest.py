"""Fixtures of the Spark bridge's tests: one session for all of them in a process, and tables of a server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from aio_client import sync
from tests.spark import fork_worker, java, worker_zygote
from tests.spark.large_table import make_large
from tests.support.forked import ONE_THREAD
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame


@pytest.fixture(scope="session")
def forking_python() -> Iterator[Path]:
    """A Python for Spark whose processes are forked from one that has imported everything."""
    # Not below the directory of the tests, whose path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="scankv-") as directory:
        address, python = Path(directory, "zygote"), Path(directory, "python")
        program = Path(fork_worker.__file__)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -ISE {program} {address} "$@"\n')
        python.chmod(0o700)
        with subprocess.Popen(
            [sys.executable, "-m", worker_zygote.__name__, str(address)],
            env=os.environ | java.environment() | ONE_THREAD | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as zygote:
            assert zygote.stdout is not None
            assert zygote.stdout.readline() == b"ready\n"
            yield python


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, forking_python: Path) -> Iterator[SparkSession]:
    """A session with two concurrent tasks, in a time zone far from UTC. Its JVM is a Spark Connect server, too."""
    java.check()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in java.environment().items():
            patch.setenv(name, value)
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.setenv(name, str(forking_python))
        builder = java.configured(SparkSession.builder.master("local[2]"))
        session = (
            builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.sql.session.timeZone", "America/St_Johns")
            .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            .config("spark.connect.grpc.binding.address", "127.0.0.1")
            .config("spark.connect.grpc.binding.port", "0")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_remote(spark: SparkSession) -> str:
    """The address of the Spark Connect server in the session's JVM, which saves starting another one."""
    jvm: Any = spark._jvm
    # This is a Scala object.
    service = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for these tests only, so that tests can check that no transactions are left."""
    with ServerProcess(tmp_path_factory.mktemp("spark") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def client(shared_server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(shared_server.url) as client:
        yield client


@pytest.fixture(scope="session")
def large(client: sync.Client) -> sync.Table:
    """60 MB, which no test changes."""
    return make_large(client, "spark.large")


@pytest.fixture
def name() -> str:
    """A unique name of a table."""
    return f"test.t{uuid.uuid4().hex}"


@pytest.fixture
def load(spark: SparkSession, shared_server: ServerProcess) -> Callable[..., DataFrame]:
    """Loads a table through the data source, which Spark has discovered."""

    def load(table: str, **options: Any) -> DataFrame:
        return spark.read.format("scankv").options(url=shared_server.url, **options).load(table)

    return load
