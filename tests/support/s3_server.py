"""An S3 server on loopback, from the package moto, which keeps its objects in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from pyarrow import fs

from tests.support.monitoring import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_bucket(name: str) -> Iterator[str]:
    """Serves S3 with one bucket for the length of the block, and sets the credentials. Yields the URI of the bucket."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _accepts(port), "the S3 server accepts connections")
        with mock.patch.dict(os.environ, CREDENTIALS):
            address = f"127.0.0.1:{port}"
            fs.S3FileSystem(endpoint_override=address, scheme="http", allow_bucket_creation=True).create_dir(name)
            yield f"s3://{name}/%s?endpoint_override={address}&scheme=http"
    finally:
        server.kill()
        server.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
