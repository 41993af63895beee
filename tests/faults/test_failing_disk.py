"""Wherever a disk becomes full or fails, writes are refused with one error, reads continue, and nothing is lost."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import DiskFailed, DiskFull, Unavailable
from aio_client.sync import connect
from tests.faults.disk_story import SETTINGS, DiskStory
from tests.support.failing_disk import (
    BROKEN,
    FULL,
    FULL_AT_SYNC,
    OVER_QUOTA,
    READ_ONLY,
    DiskFault,
    FailingDisk,
    compile_library,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client.sync import Table

ARGUMENTS = tuple(each for name, value in SETTINGS.items() for each in ("--set", f"{name}={value}"))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PLACES = 100
FEW_PLACES = frozenset({4, 28, 57})
"""The places of `make test`: each kind of full disk, with and without reserve and restart. `make soak` has all."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes system calls of a server fail."""
    return compile_library(tmp_path_factory.mktemp("failing-disk"))


@pytest.fixture(scope="module")
def calls(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[DiskFault, int]:
    """How many calls the story makes that a fault concerns."""
    counts = {}
    for fault in (FULL, FULL_AT_SYNC, READ_ONLY):
        disk = FailingDisk(tmp_path_factory.mktemp("counted"), library)
        with ServerProcess(disk.root, *ARGUMENTS, wrapper=disk.wrapper) as server, DiskStory(server.url) as story:
            story.create()
            disk.watch(fault)
            story.run("counted")
            counts[fault] = disk.calls
            assert story.refused == []
    counts[OVER_QUOTA], counts[BROKEN] = counts[FULL], counts[FULL_AT_SYNC]
    return counts


def can_write(table: Table) -> bool:
    try:
        table.upsert([{"k": 2, "v": 2}])
    except DiskFailed:
        return False
    return True


def run_to_failure(
    tmp_path: Path,
    library: Path,
    fault: DiskFault,
    after: int,
    error: type[DiskFull | DiskFailed],
    *,
    restarts: bool,
    reserve_bytes: int = 0,
) -> None:
    """Runs the story on a disk that fails after some calls, until the disk works again."""
    disk = FailingDisk(tmp_path, library)
    # With a reserve, the server refuses writes before they fail; without, each of them may fail on its own.
    reserve = ("--set", f"min_free_bytes={reserve_bytes}")
    server = ServerProcess(disk.root, *ARGUMENTS, *reserve, wrapper=disk.wrapper)
    with server, DiskStory(server.url) as story:
        story.create()
        disk.fail(fault, after)
        story.is_failing, story.syncs_work = True, not fault.fails_syncs
        story.run("failing", after_failure=story.check_rows)
        story.check_rows()
        # The story may have made fewer calls than when they were counted.
        wait_until(lambda: not story.can_write(), "failing")
        story.check_rows()
        for step, refusal in story.refused:
            assert type(refusal) is error, (disk.place, step, refusal)
            assert "free some space" in refusal.message or error is DiskFailed
        if restarts:
            server.kill()
            disk.fail(fault, after % 5)
            server.restart()
            story.check_rows()
            assert not story.can_write()
        disk.heal()
        story.is_failing = False
        wait_until(story.can_write, "writing", timeout=30)
        story.refused.clear()
        story.run("healed")
        assert story.refused == []
        story.check_rows()
        server.kill()
        server.restart()
        story.check_rows()
        story.check_stored()
        assert server.stop() == 0
    assert "Traceback" not in server.log
    assert "incident" not in server.log
    assert "DATA_LOSS" not in server.log


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "place", [pytest.param(each, marks=() if each in FEW_PLACES else pytest.mark.soak) for each in range(PLACES)]
)
@pytest.mark.breadth
def test_a_disk_that_is_full_from_some_write_on_refuses_writes_and_loses_nothing(
    tmp_path: Path, library: Path, calls: dict[DiskFault, int], place: int
) -> None:
    fault = FULL_AT_SYNC if place % 10 == 4 else OVER_QUOTA if place % 10 == 8 else FULL
    after = calls[fault] * place // PLACES
    reserve_bytes = 1 << 30 if place % 3 == 0 else 0
    run_to_failure(tmp_path, library, fault, after, DiskFull, restarts=place % 2 == 0, reserve_bytes=reserve_bytes)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "place", [pytest.param(each, marks=() if each == 5 else pytest.mark.soak) for each in range(10)]
)
@pytest.mark.parametrize("fault", [BROKEN, READ_ONLY], ids=lambda fault: fault.name)
@pytest.mark.breadth
def test_a_disk_that_is_broken_or_read_only_from_some_call_on_refuses_writes_and_loses_nothing(
    tmp_path: Path, library: Path, calls: dict[DiskFault, int], fault: DiskFault, place: int
) -> None:
    run_to_failure(tmp_path, library, fault, calls[fault] * place // 10, DiskFailed, restarts=False)


@pytest.mark.breadth
def test_an_index_that_finds_no_space_is_built_once_there_is_space(tmp_path: Path, library: Path) -> None:
    # The definition of the table, which is elsewhere, gets its index, however late the build begins.
    disk = FailingDisk(tmp_path, library, "tables/disk/indexed/buckets")
    with ServerProcess(disk.root, wrapper=disk.wrapper) as server, connect(server.url) as client:
        table = client.create_table("disk.indexed", SCHEMA, primary_key=["k"], buckets=1)
        table.upsert(pa.table({"k": range(10_000), "v": range(10_000)}, SCHEMA))
        disk.fail(FULL)
        client.alter_table("disk.indexed", add_indexes=["v"], wait=False)
        wait_until(lambda: "indexes of bucket 0" in server.log, "refusing to build the index")
        assert not any(index.ready for index in table.index_status())
        disk.heal()
        wait_until(lambda: all(index.ready for index in table.index_status()), "the index is ready", timeout=30)
        assert table.scan().where("v = 7").to_arrow()["k"].to_pylist() == [7]


@pytest.mark.breadth
def test_a_table_that_a_read_only_disk_keeps_from_being_dropped_is_served(tmp_path: Path, library: Path) -> None:
    disk = FailingDisk(tmp_path, library)
    with ServerProcess(disk.root, wrapper=disk.wrapper) as server, connect(server.url) as client:
        table = client.create_table("disk.kept", SCHEMA, primary_key=["k"], buckets=1)
        table.upsert([{"k": 1, "v": 1}])
        table.snapshot(ttl=600, id="kept")
        disk.fail(READ_ONLY)
        with pytest.raises(DiskFailed, match="Read-only file system"):
            client.drop_table("disk.kept")
        assert table.get(1) == {"k": 1, "v": 1}
        disk.heal()
        wait_until(lambda: can_write(table), "writing", timeout=30)
        assert table.scan().as_of("kept").to_pylist() == [{"k": 1, "v": 1}]
        with table.lock_columns(["v"], owner="test"):
            pass
        client.drop_table("disk.kept")
        assert client.tables() == []


@pytest.mark.breadth
def test_a_bucket_that_a_read_only_disk_keeps_from_being_created_is_not_damaged(tmp_path: Path, library: Path) -> None:
    disk = FailingDisk(tmp_path, library)
    with ServerProcess(disk.root, wrapper=disk.wrapper) as server, connect(server.url) as client:
        tables = []
        for after in range(1, 60, 3):
            table = client.create_table(f"disk.t{after}", SCHEMA, primary_key=["k"], buckets=1)
            disk.fail(READ_ONLY, after)
            for _ in range(2):
                with suppress(DiskFailed):
                    table.upsert([{"k": 1, "v": 1}])
            disk.heal()
            tables.append(table)
        for table in tables:
            wait_until(partial(can_write, table), "writing", timeout=30)
    assert "DATA_LOSS" not in server.log


def test_a_server_on_a_read_only_disk_does_not_start_and_names_the_cause(tmp_path: Path, library: Path) -> None:
    disk = FailingDisk(tmp_path, library)
    with ServerProcess(disk.root, wrapper=disk.wrapper) as server, connect(server.url) as client:
        table = client.create_table("disk.kept", SCHEMA, primary_key=["k"], buckets=1)
        table.upsert([{"k": 1, "v": 1}])
        assert server.stop() == 0
        disk.fail(READ_ONLY)
        with pytest.raises(Unavailable, match="Read-only file system"):
            server.restart()
        assert "Traceback" not in server.log
        disk.heal()
        server.restart()
        assert table.get(1) == {"k": 1, "v": 1}
