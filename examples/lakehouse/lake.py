"""The lake: an S3 server on loopback, and `scankv publish` in two formats."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moto.server import ThreadedMotoServer
from pyarrow import fs

from examples.spark_delays.departures import FLIGHTS
from scankv import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
ICEBERG: Final = "PYICEBERG_CATALOG__LAKE__"
FORMATS: Final = {"delta": (), "iceberg": ("--catalog", f"lake:{FLIGHTS}")}


@contextmanager
def serve_s3() -> Iterator[str]:
    """Serves S3 from memory. All readers and publishers find it by the environment. Yields the URI of a bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    os.environ |= {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo", "AWS_REGION": "us-east-1"}
    # On AWS, these are not needed.
    os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
    os.environ |= {f"{ICEBERG}S3__ENDPOINT": endpoint, f"{ICEBERG}S3__REGION": "us-east-1"}
    try:
        fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True).create_dir("lake")
        yield "s3://lake"
    finally:
        server.stop()


def use_catalog(file: Path) -> None:
    """Makes a file of SQLite the Iceberg catalog `lake` of publishers and readers."""
    os.environ |= {f"{ICEBERG}TYPE": "sql", f"{ICEBERG}URI": f"sqlite:///{file}"}


def publisher(url: str, lake: str, format_: str, *when: str) -> list[str]:
    """Returns the command that publishes the flights in a format, once or again and again."""
    publish = ["scankv", "publish", FLIGHTS, f"{lake}/{format_}", "--format", format_, *FORMATS[format_]]
    return [*publish, *when, "--url", url]


def publish_once(url: str, lake: str) -> None:
    """Publishes the flights in both formats as of now."""
    for format_ in FORMATS:
        with run(*publisher(url, lake, format_, "--once")) as process:
            if process.wait():
                raise Unavailable("a publisher has failed; see its output above")


@contextmanager
def run(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a Python module in a process of its own for the length of the block, then kills it."""
    # In a group of its own, so that Ctrl-C reaches only this process, which then kills the others.
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()
