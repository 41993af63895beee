"""Maintenance of changelogs: small records become segments with the same changes, and old changes are trimmed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import PositionExpired, ScanSource, StartFrom, StopAt, TransactionConflict, sync
from tests.support.offline import offline_table
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server with continuous maintenance of changelogs and small retention holds."""
    arguments = ("--set", "log_maintenance_seconds=0.05", "--set", f"max_retention_hold_bytes={4 << 20}")
    with ServerProcess(tmp_path_factory.mktemp("maintenance") / "data", *arguments) as server:
        yield server


def changes_of(table: sync.Table, start: StartFrom = StartFrom.EARLIEST) -> sync.Scan:
    return table.scan().with_source(ScanSource.LOG).start_from(start).stop_at(StopAt.LATEST).with_row_kind()


def rows(start: int, count: int, value: str) -> pa.Table:
    return pa.table({"k": range(start, start + count), "v": [value] * count})


def noise(count: int) -> pa.Table:
    """Returns rows with different values each time, which no compression makes smaller."""
    return pa.table({"k": range(count), "v": [os.urandom(40).hex() for _ in range(count)]})


@pytest.mark.breadth
@pytest.mark.parametrize("changelog", ["full", "upsert"])
def test_many_small_commits_become_few_records_that_read_the_same(busy: ServerProcess, changelog: str) -> None:
    with sync.connect(busy.url) as client:
        table = client.create_table("maintenance.small", SCHEMA, primary_key=["k"], buckets=1, changelog=changelog)
        for commit in range(120):
            table.upsert(rows(commit * 20, 50, f"v{commit}"))
        table.upsert(rows(0, 5000, "large"))
        before = changes_of(table).to_arrow()
        for _ in range(5):  # while they are rewritten
            assert changes_of(table).to_arrow().equals(before)
        times = before["_commit_timestamp"].to_pylist()
        for place in (0, 1, 500, 4095, 4096, 5000, len(times) - 1):
            first = changes_of(table, StartFrom.timestamp(times[place])).to_arrow()
            assert first["_log_offset"][0].as_py() == times.index(times[place])
    busy.stop()
    with offline_table(busy.data_dir, "maintenance.small") as (bucket,):
        records = bucket.log()
        assert sum(len(record.changes) for record in records) == before.num_rows
        assert len(records) < 30, "over a hundred commits were rewritten"
        assert max(len(record.changes) for record in records) <= 4096


def test_old_changes_go_by_bytes_and_a_position_before_them_is_expired(busy: ServerProcess) -> None:
    with sync.connect(busy.url) as client:
        table = client.create_table(
            "maintenance.bytes", SCHEMA, primary_key=["k"], buckets=1, log_retention_bytes=3 << 20, compression="none"
        )
        start = StartFrom.offsets({0: 0})
        assert changes_of(table, start).to_arrow().num_rows == 0

        def is_trimmed() -> bool:
            table.upsert(noise(10_000))
            return bool(changes_of(table).limit(1).to_arrow()["_log_offset"][0].as_py())

        wait_until(is_trimmed, "trimmed", timeout=60)
        with pytest.raises(PositionExpired, match="no longer") as expired:
            changes_of(table, start).to_arrow()
        assert int(expired.value.details["wanted"]) == 0
        assert 0 < int(expired.value.details["earliest"]) <= int(expired.value.details["latest"])
        kept = changes_of(table).to_arrow()
        assert kept.num_rows > 0, "the newest ones are there"
        assert changes_of(table, start).start_from(start, clamp=True).to_arrow()["_log_offset"][0].as_py() > 0
        # The changes still have the same effect: only the beginning is gone.
        offsets = kept["_log_offset"].to_pylist()
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


@pytest.mark.breadth
def test_a_stream_holds_what_it_has_not_read_but_not_without_end(busy: ServerProcess) -> None:
    with sync.connect(busy.url) as client:
        table = client.create_table(
            "maintenance.held", SCHEMA, primary_key=["k"], buckets=1, log_retention_seconds=4, compression="none"
        )
        table.upsert(rows(0, 1000, "first"))
        with (
            table.scan()
            .with_source(ScanSource.LOG)
            .start_from(StartFrom.EARLIEST)
            .with_row_kind()
            .with_chunk(rows=10)
            .stream() as slow
        ):
            assert next(slow).num_rows
            kept_offset = changes_of(table, StartFrom.EARLIEST).limit(1).to_arrow()["_log_offset"][0].as_py()
            assert kept_offset == 0, "what the stream has not read is kept"

            def has_lost_its_hold() -> bool:
                table.upsert(noise(10_000))
                return "loses them" in busy.log

            wait_until(has_lost_its_hold, "the hold of the stream was broken", timeout=60)
            with pytest.raises(PositionExpired, match="no longer"):
                for _ in slow:
                    pass


def test_a_table_without_changelog_needs_no_maintenance_and_goes_on_counting(busy: ServerProcess) -> None:
    options: dict[str, Any] = {"changelog": "none", "log_retention_seconds": 1, "log_retention_bytes": 1}
    with sync.connect(busy.url) as client:
        table = client.create_table("maintenance.none", SCHEMA, primary_key=["k"], buckets=1, **options)
        for commit in range(3):
            table.upsert(rows(0, 5000, f"v{commit}"))
        beside = client.create_table(
            "maintenance.beside", SCHEMA, primary_key=["k"], buckets=1, log_retention_seconds=1
        )
        beside.upsert(rows(0, 10, "old"))
        # Once the other table is trimmed, this one was visited as well.
        wait_until(lambda: _is_trimmed(beside), "old changes are gone")
        assert table.upsert(rows(0, 1, "last")).log_offsets == {0: 15_001}
    assert "changelog of bucket" not in busy.log
    busy.stop()
    with offline_table(busy.data_dir, "maintenance.none") as (bucket,):
        assert bucket.log() == []
        state = bucket.bucket.state
        assert (state.count, state.log_first, state.log_bytes) == (15_001, 15_001, 0)


@pytest.mark.breadth
def test_a_transaction_keeps_the_changes_in_which_conflicts_are_looked_for(busy: ServerProcess) -> None:
    with sync.connect(busy.url) as client:
        written, read, beside = (
            client.create_table(f"maintenance.{name}", SCHEMA, primary_key=["k"], buckets=1, log_retention_seconds=1)
            for name in ("written", "read", "beside_them")
        )
        for table in (written, read):
            table.upsert(rows(0, 10, "first"))
        starts = [StartFrom.offsets(table.lookup([1], with_version=True).log_offsets) for table in (written, read)]
        writing = [client.transaction(conflict="abort") for _ in range(2)]
        reading = [client.transaction() for _ in range(2)]
        for number, tx in enumerate(writing):
            tx.upsert(written, rows(number, 1, "in the transaction"))
        for number, tx in enumerate(reading):
            assert tx.get_for_update(read, [number]).num_rows == 1
            tx.upsert(read, rows(number, 1, "in the transaction"))
        for table in (written, read, beside):
            table.upsert(rows(50, 10, "meanwhile"))
        # Once the last table is trimmed, the others were visited as well.
        wait_until(lambda: _is_trimmed(beside), "old changes are gone")
        assert (writing[0].commit().rows, reading[0].commit().rows) == (1, 1)

        busy.kill()
        busy.restart()
        for table in (written, read, beside):
            table.upsert(rows(1, 1, "after the restart"))
        edge = StartFrom.offsets(beside.lookup([1], with_version=True).log_offsets)
        beside.upsert(rows(60, 10, "behind that"))
        wait_until(lambda: _is_trimmed(beside, edge), "old changes are gone after the restart")
        for tx in (writing[1], reading[1]):
            with pytest.raises(TransactionConflict):
                tx.commit()
            tx.abort()
        for table, start in zip((written, read), starts, strict=True):
            wait_until(lambda: _is_trimmed(table, start), "changes that no reader needs any more are gone")  # noqa: B023


def _is_trimmed(table: sync.Table, start: StartFrom | None = None) -> bool:
    try:
        changes_of(table, start or StartFrom.offsets({0: 0})).to_arrow()
    except PositionExpired:
        return True
    return False
