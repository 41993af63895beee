"""When a disk becomes full or fails, writes are refused with one error, reads continue, and nothing is lost."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import DiskFailed, DiskFull, InvalidRequest, StartFrom, StopAt, TableExists, Unavailable
from aio_client.sync import connect
from tests.support.bases import ALL_THE_TIME
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
    from collections.abc import Callable
    from pathlib import Path

    from aio_client.sync import Client, Table

ARGUMENTS = (
    *ALL_THE_TIME,
    *("--set", "base_min_rows=1", "--set", "log_maintenance_seconds=0.05", "--set", "bucket_idle_seconds=1"),
)
"""Arguments of the server, under which maintenance runs all the time."""
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
MAIN, OTHER = "disk.main", "disk.other"
ROWS = 40


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes system calls of a server fail."""
    return compile_library(tmp_path_factory.mktemp("failing-disk"))


def can_write(table: Table, rows: pa.Table | None = None) -> bool:
    try:
        table.upsert([{"k": 2, "v": 2}] if rows is None else rows, columns=["k", "v"])
    except (DiskFull, DiskFailed):
        return False
    return True


def rows_of(number: int) -> pa.Table:
    return pa.table({"k": range(ROWS), "v": [number] * ROWS}, SCHEMA)


def refusals_of(client: Client, number: int) -> list[DiskFull | DiskFailed]:
    """Writes in every way that a server has, but by a transaction, and returns the errors of what is refused."""
    main, other = client.table(MAIN), client.table(OTHER)

    def write_as() -> None:
        with main.writer("job") as writer:
            writer.upsert(rows_of(number), columns=["k", "v"])

    def lock() -> None:
        with other.lock_columns(["v"], owner="test", ttl=60, take_over=True):
            pass

    def consume() -> None:
        with other.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="c", clamp=True).stream() as stream:
            for _ in stream:
                pass
            stream.commit()

    writes: list[Callable[[], object]] = [
        lambda: main.upsert(rows_of(number), columns=["k", "v"]),
        lambda: other.delete([-1]),
        lambda: client.create_table(f"disk.more{number}", SCHEMA, primary_key=["k"], buckets=1),
        lambda: client.alter_table(OTHER, add_columns=pa.schema([(f"c{number}", pa.int64())])),
        lambda: main.snapshot(ttl=60).release(),
        *(lock, write_as, consume),
    ]
    refused: list[DiskFull | DiskFailed] = []
    for write in writes:
        try:
            # An earlier attempt may have had an effect.
            with suppress(TableExists, InvalidRequest):
                write()
        except (DiskFull, DiskFailed) as error:
            refused.append(error)
        except Unavailable as error:
            # It reads, too, and the last write is not durable.
            assert write is consume
            assert "cannot be made durable" in error.message  # noqa: PT017  # or it is refused
    return refused


def check_rows(client: Client, least: int, most: int) -> None:
    """Reads both tables in several ways. Each row must be of one of some attempts to write all of them."""
    for table in map(client.table, (MAIN, OTHER)):
        rows = table.scan(["k", "v"]).ordered().to_arrow()
        assert rows["k"].to_pylist() == list(range(ROWS))
        values = rows["v"].to_pylist()
        assert least <= min(values) <= max(values) <= most
        assert table.count() == ROWS
        assert table.count(f"v = {values[0]}") == values.count(values[0])
        found = table.get(0)
        assert found is not None
        assert found["v"] == values[0]


def commit(client: Client, number: int) -> None:
    """Commits to both tables. They may lack the rows until the disk works again."""
    with suppress(DiskFull, DiskFailed, Unavailable), client.transaction() as transaction:
        for name in (MAIN, OTHER):
            transaction.upsert(client.table(name), rows_of(number), columns=["k", "v"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "error", "reserve_bytes"),
    [
        # With a reserve, the server refuses writes before they fail; without, each of them may fail on its own.
        (FULL, DiskFull, 1 << 30),
        *((fault, DiskFull, 0) for fault in (FULL, FULL_AT_SYNC, OVER_QUOTA)),
        *((fault, DiskFailed, 0) for fault in (BROKEN, READ_ONLY)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.breadth
def test_a_disk_that_fails_refuses_writes_with_one_error_and_reads_continue_until_it_works_again(
    tmp_path: Path, library: Path, fault: DiskFault, error: type[DiskFull | DiskFailed], reserve_bytes: int
) -> None:
    disk = FailingDisk(tmp_path, library)
    reserve = ("--set", f"min_free_bytes={reserve_bytes}")
    with ServerProcess(disk.root, *ARGUMENTS, *reserve, wrapper=disk.wrapper) as server:
        with connect(server.url) as patient, connect(server.url, operation_timeout=4) as client:
            patient.create_table(MAIN, SCHEMA, primary_key=["k"], buckets=2, indexes=["v"], columnar_base="eager")
            patient.create_table(OTHER, SCHEMA, primary_key=["k"], buckets=1, changelog="upsert")
            tables = [patient.table(name) for name in (MAIN, OTHER)]
            assert all(can_write(table, rows_of(0)) for table in tables)
            for number, after in enumerate((0, 2, 7, 30), 1):
                disk.fail(fault, after)
                refused = wait_until(partial(refusals_of, client, number), "refused")
                assert {type(each) for each in refused} == {error}, (disk.place, refused)
                assert all("free some space" in each.message or error is DiskFailed for each in refused)
                try:
                    check_rows(client, number - 1, number)
                except Unavailable as unreadable:
                    assert fault.fails_syncs
                    assert "cannot be made durable" in unreadable.message  # noqa: PT017  # or it is readable
                commit(client, number)
                disk.heal()
                for table in tables:
                    wait_until(partial(can_write, table, rows_of(number)), "writing", timeout=30)
                check_rows(patient, number, number)
            server.kill()
            server.restart()
            check_rows(patient, number, number)
            assert all(bucket.is_consistent for table in tables for bucket in patient.check_table(table.name))
        assert server.stop() == 0
    for trouble in ("Traceback", "incident", "DATA_LOSS"):
        assert trouble not in server.log


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
