"""After a kill at any moment, a bootstrap continues where it stopped. After a full disk, its table does not exist."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import BootstrapProgress, DiskFull, ScanKvError, connect, sync
from tests.support.server_process import ServerProcess
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path


@pytest.mark.asyncio
@pytest.mark.parametrize("phase", [0, 3, 5, "commit", *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 4))])
@pytest.mark.represented_by("0")
async def test_a_call_continues_after_a_kill_of_the_server(server: ServerProcess, phase: int | str) -> None:
    # Five requests, after so many of which the server is killed, or while the table is made. Rows in memory cannot be
    # resumed by another call.
    rows, reports = pa.table({"k": pa.array(range(500_000))}), list[BootstrapProgress]()
    kills: list[Future[None]] = []

    def kill_in_time(progress: BootstrapProgress) -> None:
        reports.append(progress)
        if phase != "commit" and progress.rows == phase * 100_000:
            kills.append(threads.submit(kill_and_restart, server))

    with ThreadPoolExecutor(1) as threads:
        if phase in (0, "commit"):
            kills.append(threads.submit(kill_and_restart, server, "commit.json" if phase else "bootstrap.json"))
        async with connect(server.url, operation_timeout=60) as client:
            reader = rows.to_reader(max_chunksize=100_000)
            table = await client.bootstrap("test.t", reader, primary_key=["k"], on_progress=kill_in_time)
            kills.pop().result()
            assert await table.count() == 500_000
            assert all(check.is_consistent for check in await client.check_table("test.t"))
    # Each request was answered once.
    assert [each.rows for each in reports][:5] == [100_000, 200_000, 300_000, 400_000, 500_000]
    # The answer to the begin may have been lost, and the begin repeated.
    assert len(left_in(server.data_dir)) <= (phase == 0)


def left_in(data: Path) -> list[str]:
    """Returns what is left of bootstraps in a data directory."""
    return [path.name for name in ("trash", "bootstraps") for path in (data / name).glob("*")]


def kill_and_restart(server: ServerProcess, file: str = "bootstrap.json") -> None:
    """Kills a server once its bootstrap has a file, or is over."""
    bootstraps, tables = server.data_dir / "bootstraps", server.data_dir / "tables"
    wait_until(lambda: [*bootstraps.glob(f"*/{file}"), *tables.glob("*/*/table.json")] != [], "the file exists")
    server.kill()
    server.restart()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("megabytes", [200, 70])
@pytest.mark.breadth
def test_a_full_disk_ends_a_bootstrap_with_an_error_and_takes_no_space(tmp_path: Path, megabytes: int) -> None:
    # 200 MB do not fit while they are staged; 70 MB do, but not together with the files that are made of them.
    rng = random.Random(1)
    rows = pa.table(
        {"k": pa.array(range(megabytes * 10)), "v": [rng.randbytes(100_000) for _ in range(megabytes * 10)]}
    )
    settings = "--set=min_free_bytes=1048576"
    with (
        small_disk(tmp_path / "disk", 128 << 20) as disk,
        ServerProcess(disk.path / "data", settings) as server,
        sync.connect(server.url) as client,
    ):
        with pytest.raises(DiskFull, match="free some space"):
            client.bootstrap("test.t", rows, primary_key=["k"], compression="none")
        wait_until(lambda: left_in(disk.path / "data") == [], "everything was removed")
        assert client.tables() == []
        assert client.bootstrap("test.t", rows.slice(0, 100), primary_key=["k"], compression="none").count() == 100


def test_bootstraps_continue_after_a_kill_of_their_worker(tmp_path: Path) -> None:
    names = [name for name, *_ in names_of_workers(2)]
    bootstraps, rows = tmp_path / "data" / "bootstraps", pa.table({"k": pa.array(range(1000))})
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, ThreadPoolExecutor(2) as threads:
        is_over = threading.Event()
        staged = [threading.Event() for _ in names]

        def source(number: int) -> Iterator[pa.RecordBatch]:
            yield from rows.to_batches()
            staged[number].set()
            is_over.wait(60)

        def bootstrap(number: int) -> int:
            with sync.connect(server.url) as client:
                reader = pa.RecordBatchReader.from_batches(rows.schema, source(number))
                return client.bootstrap(names[number], reader, primary_key=["k"]).count()

        sources = [threads.submit(bootstrap, number) for number in range(2)]
        try:
            assert all(each.wait(60) for each in staged)
            assert len([*bootstraps.iterdir()]) == 2
            kill_worker(server, 1)
            wait_for_worker(server, 1)
            assert len([*bootstraps.iterdir()]) == 2
        finally:
            is_over.set()
        assert [each.result(60) for each in sources] == [1000, 1000]


def test_closing_a_client_ends_its_bootstraps(tmp_path: Path) -> None:
    is_sent, is_over = threading.Event(), threading.Event()
    batch = pa.record_batch({"k": pa.array(range(100_000))})

    def source() -> Iterator[pa.RecordBatch]:
        yield from [batch] * 3
        is_over.wait(60)
        yield batch

    reader = pa.RecordBatchReader.from_batches(batch.schema, source())
    data = tmp_path / "data"
    with ServerProcess(data) as server, ThreadPoolExecutor(2) as threads:
        client = sync.connect(server.url)
        running = threads.submit(
            client.bootstrap, "test.t", reader, primary_key=["k"], on_progress=lambda _: is_sent.set()
        )
        assert is_sent.wait(60)
        assert left_in(data) != []
        closing = threads.submit(client.close)
        wait_until(lambda: left_in(data) == [], "everything was removed")
        is_over.set()
        closing.result(60)
        with pytest.raises(ScanKvError):
            running.result(60)
