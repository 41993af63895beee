"""With a full disk, errors name the cause, all rows can be read, tables can be dropped, and every start succeeds."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import DiskFull, ScanKvError, ScanSource, StartFrom, StopAt
from aio_client.sync import connect
from streaming_server.storage.files.disk_reserve import DiskReserve
from tests.support.server_process import ServerProcess
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client.sync import Client, Table
    from tests.support.small_disk import SmallDisk

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.binary())])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 24 << 20) as disk:
        yield disk


@pytest.fixture
def full_server(disk: SmallDisk) -> Iterator[ServerProcess]:
    """A server on a small disk."""
    with ServerProcess(disk.path / "data", "--set", "write_buffer_bytes=8388608") as server:
        yield server


def fill(disk: SmallDisk) -> None:
    """Fills all of the free space."""
    with (disk.path / "filler").open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def fill_by_writing(table: Table) -> int:
    """Writes rows until the disk is full. Returns the number of acknowledged rows."""
    acknowledged: list[int] = []

    def write() -> None:
        while len(acknowledged) < 1000:
            number = len(acknowledged)
            table.upsert([{"k": number, "v": number.to_bytes(4, "big") * 50_000}])
            acknowledged.append(number)

    with pytest.raises(DiskFull, match=r"is full .* free some space") as refused:
        write()
    assert refused.value.reason == "DISK_FULL"
    return len(acknowledged)


def can_write(table: Table, keys: range = range(1)) -> bool:
    try:
        table.upsert([{"k": key, "v": b"new"} for key in keys])
    except DiskFull:
        return False
    return True


def new_table(client: Client, name: str) -> Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


@pytest.mark.soak
def test_a_server_killed_on_a_full_disk_starts_serves_reads_and_drops_tables_and_then_writes_again(
    full_server: ServerProcess, disk: SmallDisk
) -> None:
    with connect(full_server.url) as client:
        kept, big = new_table(client, "full.kept"), new_table(client, "full.big")
        kept.upsert([{"k": number, "v": b"old"} for number in range(100)])
        with client.transaction(id="job:1") as tx:
            tx.upsert(kept, [{"k": 100, "v": b"old"}])
        rows = fill_by_writing(big)
        fill(disk)
        for _ in range(2):
            full_server.kill()
            fill(disk)
            full_server.restart()
            assert kept.count() == 101
            assert len(kept.scan().to_arrow()) == 101
            assert sorted(big.scan().to_arrow()["k"].to_pylist()) == list(range(rows))
            assert kept.get(7) == {"k": 7, "v": b"old"}
            fill(disk)
            with pytest.raises(DiskFull, match="is full"):
                kept.upsert([{"k": 0, "v": b"new"}])
            with pytest.raises(DiskFull, match="is full"):
                new_table(client, "full.more")
            with pytest.raises(DiskFull, match="is full"), client.transaction() as tx:
                tx.upsert(kept, [{"k": 0, "v": b"new"}])
            with pytest.raises(DiskFull, match="is full"), kept.snapshot(ttl=60):
                pass
        client.drop_table("full.big")
        # Each bucket notices by itself that there is space again.
        wait_until(lambda: can_write(kept, range(8)), "writing to all buckets", timeout=60)
        with client.transaction(id="job:2") as tx:
            tx.upsert(kept, [{"k": 1, "v": b"new"}])
        full_server.kill()
        full_server.restart()
        assert kept.get(0) == {"k": 0, "v": b"new"}
        assert kept.get(1) == {"k": 1, "v": b"new"}
        assert kept.count() == 101
    assert "Traceback" not in full_server.log


def test_a_running_server_writes_again_once_there_is_space(full_server: ServerProcess, disk: SmallDisk) -> None:
    with connect(full_server.url) as client:
        table = new_table(client, "full.running")
        table.upsert([{"k": number, "v": b"old"} for number in range(100)])
        reader = table.scan().stream()
        fill(disk)
        rows = fill_by_writing(table)
        assert table.count() == max(rows, 100)
        assert not can_write(table)
        assert len(list(reader)) > 0
        (disk.path / "filler").unlink()
        wait_until(lambda: can_write(table), "writing", timeout=60)
        assert table.get(0) == {"k": 0, "v": b"new"}
        with pytest.raises(ScanKvError, match="exists"):
            new_table(client, "full.running")


def test_concurrent_writers_that_find_the_disk_full_succeed_once_there_is_space(
    full_server: ServerProcess, disk: SmallDisk
) -> None:
    """Some writers wait for a sync when the write of another one fails."""
    with connect(full_server.url) as client:
        table = client.create_table("full.busy", SCHEMA, primary_key=["k"], buckets=1)
        # Creates the files of the bucket, without which nothing can be read.
        table.upsert([{"k": -1, "v": b"first"}])
        acknowledged = [-1]
        refused: list[Exception] = []

        def write(writer: int) -> None:
            for number in range(1000):
                k = writer * 1000 + number
                try:
                    table.upsert([{"k": k, "v": k.to_bytes(4, "big") * (5 if writer % 2 else 20_000)}])
                except ScanKvError as error:
                    refused.append(error)
                    return
                acknowledged.append(k)

        writers = [Thread(target=write, args=(writer,)) for writer in range(8)]
        for each in writers:
            each.start()
        fill(disk)
        for each in writers:
            each.join()
        assert len(refused) == len(writers)
        assert {type(error) for error in refused} == {DiskFull}
        wait_until(lambda: set(table.scan().to_arrow()["k"].to_pylist()) >= set(acknowledged), "reading")
        (disk.path / "filler").unlink()
        wait_until(lambda: can_write(table), "writing", timeout=60)
        table.upsert([{"k": 1, "v": b"new"}])
        full_server.kill()
        full_server.restart()
        assert set(table.scan().to_arrow()["k"].to_pylist()) >= {*acknowledged, 0, 1}


def test_a_bucket_that_finds_no_space_on_first_use_is_created_once_there_is_space(
    full_server: ServerProcess, disk: SmallDisk
) -> None:
    with connect(full_server.url) as client:
        table = new_table(client, "full.first")
        fill(disk)
        for _ in range(2):
            with pytest.raises(DiskFull, match="is full"):
                table.upsert([{"k": 0, "v": b"new"}])
        (disk.path / "filler").unlink()
        wait_until(lambda: can_write(table), "writing", timeout=60)
        assert table.count() == 1


def test_net_changes_that_cannot_spill_to_a_full_disk_are_refused(disk: SmallDisk) -> None:
    # Without a reserve, nothing is flushed here: a flush would free some space again.
    names = ("catch_up_changes=10", f"catch_up_memory_bytes={1 << 20}", "min_free_bytes=0")
    settings = [each for name in names for each in ("--set", name)]
    with ServerProcess(disk.path / "data", *settings) as server, connect(server.url) as client:
        table = client.create_table("full.behind", SCHEMA, primary_key=["k"], buckets=1)
        for number in range(4):
            table.upsert([{"k": k, "v": bytes([number, k]) * 10_000} for k in range(40)])
        changes = table.scan().with_source(ScanSource.LOG).with_row_kind().with_catch_up("net")
        changes = changes.start_from(StartFrom.EARLIEST).stop_at(StopAt.LATEST)
        fill(disk)
        with pytest.raises(DiskFull, match=r"is full .* free some space"):
            changes.to_arrow()
        (disk.path / "filler").unlink()
        assert sorted(changes.to_arrow()["k"].to_pylist()) == list(range(40))
    assert "Traceback" not in server.log


def can_delete(table: Table, keys: list[int]) -> bool:
    try:
        table.delete(keys)
    except DiskFull:
        return False
    return True


@pytest.mark.breadth
def test_while_the_reserve_is_in_use_reads_and_deletes_continue_until_writes_do(tmp_path: Path) -> None:
    settings = ("write_buffer_bytes=2097152", "log_maintenance_seconds=0.1")
    arguments = [each for setting in settings for each in ("--set", setting)]
    with small_disk(tmp_path / "disk", 128 << 20) as disk, ServerProcess(disk.path / "data", *arguments) as server:
        reserve = (128 << 20) // 20
        with connect(server.url) as client:
            table = client.create_table("full.kept", SCHEMA, primary_key=["k"], buckets=2, changelog="none")
            number = 0

            def write() -> None:
                nonlocal number
                while True:
                    table.upsert([{"k": k, "v": os.urandom(4000)} for k in range(number, number + 200)])
                    number += 200

            with pytest.raises(DiskFull, match=rf"keeps {reserve:,} bytes free \(min_free_bytes\)"):
                write()
            # Flushes and compactions of what was written free some space, too.
            with disk.full(spare_bytes=reserve // 2):
                assert table.count() == number
                assert len(table.scan().to_arrow()) == number
                with pytest.raises(DiskFull, match="min_free_bytes"):
                    new_table(client, "full.more")
                with pytest.raises(DiskFull, match="min_free_bytes"), client.transaction() as tx:
                    tx.upsert(table, [{"k": 0, "v": b"new"}])
                for first in range(0, number // 2, 200):
                    keys = list(range(first, min(first + 200, number // 2)))
                    # A compaction that is larger than the reserve may take all of it for a moment.
                    wait_until(partial(can_delete, table, keys), "deletes")
                with table.snapshot() as snapshot:
                    assert table.scan().as_of(snapshot).to_arrow().num_rows == number - number // 2
                wait_until(lambda: can_write(table), "writing")
            server.kill()
            server.restart()
            assert table.count() == number - number // 2 + 1


def can_shorten(client: Client) -> bool:
    try:
        client.alter_table("full.changed", log_retention_bytes=1 << 20)
    except DiskFull:
        return False
    return True


@pytest.mark.breadth
def test_a_shorter_retention_makes_room_after_deletes_have_filled_the_disk(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", 96 << 20) as disk,
        ServerProcess(disk.path / "data", "--set", "log_maintenance_seconds=0.1") as server,
        connect(server.url) as client,
    ):
        table = client.create_table("full.changed", SCHEMA, primary_key=["k"], buckets=1)
        written = deleted = 0
        with suppress(DiskFull):
            while True:
                table.upsert([{"k": k, "v": os.urandom(120)} for k in range(written, written + 5000)])
                written += 5000
        while deleted < written and can_delete(table, list(range(deleted, deleted + 5000))):
            deleted += 5000
        assert deleted < written
        # A compaction may take the reserve for a moment.
        wait_until(lambda: can_shorten(client), "a shorter retention")
        wait_until(lambda: can_write(table), "writing", timeout=60)
        assert table.get(written - 1) is not None


def test_processes_divide_the_write_buffer_that_a_small_disk_takes_in(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 30) as disk:
        reserve = DiskReserve(disk.path, 1 << 30)
        assert [reserve.limit_write_buffer(1 << 30, processes) for processes in (1, 3)] == [3_355_443, 1_118_481]
        assert reserve.limit_write_buffer(9, 4) == 9
    with small_disk(tmp_path / "larger", 6 << 30) as disk:
        # A memtable and more, which RocksDB flushes as usual.
        assert DiskReserve(disk.path, 1 << 30).limit_write_buffer(1 << 30, 1) == (6 << 30) // 80
        assert DiskReserve(disk.path, 0).limit_write_buffer(1 << 30, 4) == 1 << 30


def test_the_space_of_a_dropped_ballast_is_not_for_deletes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 40 << 20) as disk:
        (data := disk.path / "data").mkdir()
        reserve = DiskReserve(data, 1 << 30, clock=iter(range(100)).__next__)
        with disk.full(spare_bytes=3 << 20):
            assert (reserve.bytes, reserve.is_low) == (2 << 20, False)
            assert shutil.disk_usage(disk.path).free == 2 << 20
        fill(disk)
        assert reserve.is_low
        reserve.check_step()
        reserve.drop_ballast()
        assert shutil.disk_usage(disk.path).free == 1 << 20
        with pytest.raises(DiskFull, match="for flushes, retention and compaction"):
            reserve.check_step()
        (disk.path / "filler").unlink()
        reserve.check_step()


def test_a_server_that_starts_within_the_reserve_serves_reads_and_deletes(disk: SmallDisk) -> None:
    with ServerProcess(disk.path / "data") as server, connect(server.url) as client:
        table = new_table(client, "full.kept")
        table.upsert([{"k": k, "v": b"old"} for k in range(100)])
        server.kill()
        with disk.full(spare_bytes=1 << 19):
            server.restart()
            assert table.count() == 100
            with pytest.raises(DiskFull, match="min_free_bytes"):
                table.upsert([{"k": 0, "v": b"new"}])
            table.delete([0])
            client.drop_table("full.kept")
        wait_until(lambda: can_write(new_table(client, "full.again")), "writing")
