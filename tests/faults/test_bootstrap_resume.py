"""After a kill of the client or of the server at any moment, the same bootstrap continues where it stopped."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet

from aio_client import BootstrapProgress, TableExists, sync
from tests.support.forked import ForkedProcess
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 500_000
REQUEST = 100_000
NAME = "test.t"


def rows(count: int = ROWS) -> pa.Table:
    texts = pa.array([f"text {number}" if number % 3 else None for number in range(1000)] * (count // 1000))
    return pa.table({"id": pa.array(range(count)), "text": texts})


def write(path: Path, format_: str) -> str:
    """Writes a table as several files, and returns its location."""
    path.mkdir()
    for number, first in enumerate(range(0, ROWS, 2 * REQUEST)):
        part = rows().slice(first, 2 * REQUEST)
        if format_ == "delta":
            deltalake.write_deltalake(path, part, mode="append")
        else:
            parquet.write_table(part, path / f"{number}.parquet", row_group_size=30_000)
    return str(path)


def run_until_killed(server: ServerProcess, source: str, moment: int | str, name: str = NAME) -> None:
    """Runs a bootstrap in a process of its own, which is killed at a moment: see `killed_bootstrap`.

    A further moment is `begun`, when the server has the bootstrap.
    """
    command = [server.url, name, source, "never" if moment == "begun" else str(moment)]
    with ForkedProcess[bytes]([sys.executable, "-m", "tests.support.killed_bootstrap", *command]) as process:
        if moment == "begun":
            bootstraps = server.data_dir / "bootstraps"
            wait_until(lambda: [*bootstraps.glob("*/bootstrap.json")] != [], "the bootstrap has begun")
            process.kill()
        assert process.wait(60) == -signal.SIGKILL


def bootstrap(url: str, source: str, name: str = NAME) -> list[BootstrapProgress]:
    """Bootstraps, checks that the table has the rows of the source, and returns all reports."""
    reports: list[BootstrapProgress] = []
    with sync.connect(url, operation_timeout=60) as client:
        table = client.bootstrap(name, source, primary_key=["id"], on_progress=reports.append)
        assert table.scan().to_arrow().sort_by("id").equals(rows().cast(table.schema))
        assert all(check.is_consistent for check in client.check_table(name))
    return reports


@pytest.mark.parametrize("server_dies", [False, True])
@pytest.mark.parametrize(
    ("format_", "moment"),
    [
        ("parquet", "begun"),
        ("delta", REQUEST),
        ("parquet", 3 * REQUEST),
        ("delta", "commit"),
        ("parquet", "made"),
        *(
            pytest.param(format_, moment, marks=pytest.mark.soak)
            for format_ in ("delta", "parquet")
            for moment in ("begun", *range(REQUEST, ROWS + 1, REQUEST), "commit", "made")
        ),
    ],
)
@pytest.mark.breadth
def test_the_same_call_continues_after_a_kill_of_the_client(
    server: ServerProcess, tmp_path: Path, format_: str, moment: int | str, server_dies: bool
) -> None:
    source = write(tmp_path / "source", format_)
    run_until_killed(server, source, moment)
    if server_dies:
        server.kill()
        server.restart()
    reports = bootstrap(server.url, source)
    sent = moment if isinstance(moment, int) else {"begun": 0}.get(moment, ROWS)
    # Only the rest was sent. Once the table exists, the server does not know what was sent. A commit may have made it
    # before the kill.
    is_made = reports[0].rows_in_table is not None
    assert is_made or moment != "made"
    assert reports[0].rows >= sent
    assert reports[0].resumed_rows >= (0 if is_made else sent)
    assert reports[-1].rows == reports[-1].rows_in_table == ROWS
    assert [*(server.data_dir / "bootstraps").iterdir()] == []
    with pytest.raises(TableExists):
        bootstrap(server.url, source)


@pytest.mark.breadth
def test_two_clients_that_resume_at_once_make_one_table(server: ServerProcess, tmp_path: Path) -> None:
    source = write(tmp_path / "source", "delta")
    run_until_killed(server, source, 2 * REQUEST)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(bootstrap, server.url, source) for _ in range(2)]
        ends = [each.exception(120) for each in both]
    # One that is slower than the other one's complete call finds a table of which its client knows.
    assert None in ends
    assert all(end is None or isinstance(end, TableExists) for end in ends), ends
    assert [*(server.data_dir / "bootstraps").iterdir()] == []


@pytest.mark.breadth
def test_a_bootstrap_continues_with_another_number_of_workers(tmp_path: Path) -> None:
    names, data = [name for name, *_ in names_of_workers(2)], tmp_path / "data"
    source = write(tmp_path / "source", "parquet")
    with ServerProcess(data, "--workers", "2") as server:
        for name in names:
            run_until_killed(server, source, 2 * REQUEST, name)
        kill_worker(server, 1)
        wait_for_worker(server, 1)
        assert bootstrap(server.url, source, names[1])[0].resumed_rows >= 2 * REQUEST
    with ServerProcess(data) as server:
        assert bootstrap(server.url, source, names[0])[0].resumed_rows >= 2 * REQUEST
    assert [*(data / "bootstraps").iterdir()] == []
