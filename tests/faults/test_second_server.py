"""A second server on a data directory in use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aio_client import sync
from tests.support.forked import run_forked
from tests.support.tables import SCORES

if TYPE_CHECKING:
    import subprocess

    from tests.support.server_process import ServerProcess


def serve(server: ServerProcess) -> subprocess.CompletedProcess[bytes]:
    return run_forked(sys.executable, "-m", "scankv", "serve", "--data", str(server.data_dir), "--port", "0")


def test_a_second_server_is_refused_with_the_name_of_the_first_and_harms_nothing(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = client.create_table("test.t", SCORES, primary_key=["player"], buckets=2)
        table.upsert([{"player": f"player {n}", "score": n} for n in range(100)])
        stream = table.scan().with_chunk(rows=1).stream()
        next(stream)
        for _ in range(2):
            done = serve(server)
            assert done.returncode == 3
            said = done.stderr.decode()
            assert str(server.process.pid) in said
            assert str(server.data_dir) in said
            assert "Traceback" not in said
            assert done.stdout == b""
        assert sum(rows.num_rows for rows in stream) == 99
        table.upsert([{"player": "late", "score": 1}])
        assert table.count() == 101


def test_a_killed_server_releases_the_directory(server: ServerProcess) -> None:
    server.kill()
    server.restart()
    with sync.connect(server.url) as client:
        assert client.tables() == []
