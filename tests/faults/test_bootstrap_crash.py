"""After a kill or a full disk at any moment of a bootstrap, its table has all rows or does not exist."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import BootstrapLost, ConnectionFailed, DiskFull, ScanKvError, connect, sync
from tests.faults.test_transaction_crash import deaths_of
from tests.support.server_process import ServerProcess
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import BootstrapProgress


@pytest.mark.timeout(300)  # up to 60 kills, each with a start
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_a_table_has_all_rows_or_does_not_exist_wherever_the_server_dies(tmp_path: Path, stride: int) -> None:
    # Staged runs, several files for each of two buckets, their ingestion, and the rename are steps.
    assert deaths_of("dying_bootstrap", tmp_path, str(stride)) > 40 // stride


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [100_000, 300_000, 500_000])
async def test_a_client_learns_that_the_server_was_killed_and_bootstraps_again(
    server: ServerProcess, sent: int
) -> None:
    # Several requests.
    rows = pa.table({"k": pa.array(range(500_000))})

    kills: list[BootstrapProgress] = []

    def kill(progress: BootstrapProgress) -> None:
        if progress.rows >= sent and not kills:
            kills.append(progress)
            server.kill()
            server.restart()

    async with connect(server.url, operation_timeout=30) as client:
        with pytest.raises((BootstrapLost, ConnectionFailed)):
            await client.bootstrap("test.t", rows, primary_key=["k"], on_progress=kill)
        assert await client.tables() == []
        table = await client.bootstrap("test.t", rows, primary_key=["k"])
        assert await table.count() == 500_000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("megabytes", [200, 70])
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
        wait_until(lambda: not [*(disk.path / "data" / "trash").iterdir()], "everything was removed")
        assert client.tables() == []
        assert client.bootstrap("test.t", rows.slice(0, 100), primary_key=["k"], compression="none").count() == 100


def test_a_worker_that_starts_again_removes_what_it_had_staged_and_nothing_of_others(tmp_path: Path) -> None:
    names = [name for name, *_ in names_of_workers(2)]
    trash, rows = tmp_path / "data" / "trash", pa.table({"k": pa.array(range(1000))})
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
            assert len([*trash.iterdir()]) == 2
            kill_worker(server, 1)
            wait_for_worker(server, 1)
            assert len([*trash.iterdir()]) == 1
        finally:
            is_over.set()
        assert sources[0].result(60) == 1000
        with pytest.raises(BootstrapLost):
            sources[1].result(60)


def test_closing_a_client_ends_its_bootstraps(tmp_path: Path) -> None:
    is_sent, is_over = threading.Event(), threading.Event()
    batch = pa.record_batch({"k": pa.array(range(100_000))})

    def source() -> Iterator[pa.RecordBatch]:
        yield from [batch] * 3
        is_over.wait(60)
        yield batch

    reader = pa.RecordBatchReader.from_batches(batch.schema, source())
    trash = tmp_path / "data" / "trash"
    with ServerProcess(tmp_path / "data") as server, ThreadPoolExecutor(2) as threads:
        client = sync.connect(server.url)
        running = threads.submit(
            client.bootstrap, "test.t", reader, primary_key=["k"], on_progress=lambda _: is_sent.set()
        )
        assert is_sent.wait(60)
        assert [*trash.iterdir()] != []
        closing = threads.submit(client.close)
        wait_until(lambda: not [*trash.iterdir()], "everything was removed")
        is_over.set()
        closing.result(60)
        with pytest.raises(ScanKvError):
            running.result(60)
