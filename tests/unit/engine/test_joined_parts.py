"""What several workers contribute to a backup, or to a segment of the archive, becomes one."""

from __future__ import annotations

from streaming_server.clock import StoredTimes
from streaming_server.engine.backups.divided_backup import join_parts
from streaming_server.storage.backup.backup_manifest import BackupManifest
from streaming_server.storage.transactions.decisions import CommittedTransaction

TIMES = StoredTimes(service=1, commit=1, wall=1, uptime=1, boot="", jumped=0, agreed=0)


def committed(token: str, table: str, *, coordinator: int | None = None) -> CommittedTransaction:
    """Returns what a worker remembers of a transaction that has written to two tables, of which it owns one."""
    return CommittedTransaction(
        number=1,
        token=token,
        id="",
        micros=5,
        served_micros=5,
        rows=1,
        tables={"t.a": "1", "t.b": "2"} if coordinator is None else {table: "2"},
        log_offsets={table: {0: 3}},
        coordinator=coordinator,
    )


def manifest(*remembered: CommittedTransaction) -> BackupManifest:
    return BackupManifest(
        backup_id="",
        micros=9,
        pause_micros=0,
        seconds=0,
        directory_format=5,
        times=TIMES,
        epoch=1,
        committed=tuple(each.to_json() for each in remembered),
        tables=(),
        left_out={},
        new_bytes=0,
    )


def test_a_backup_has_all_offsets_of_a_commit_that_its_coordinator_still_tells_others_of() -> None:
    share = committed("x", "t.b", coordinator=0)
    joined = join_parts([manifest(committed("x", "t.a")), manifest(share, committed("y", "t.b"))])
    assert {each["token"]: set(each["log_offsets"]) for each in joined.committed} == {"x": {"t.a", "t.b"}, "y": {"t.b"}}
    assert all("coordinator" not in each for each in joined.committed)


def test_a_backup_lacks_a_share_that_its_coordinator_does_not_know_as_committed() -> None:
    joined = join_parts([manifest(), manifest(committed("x", "t.b", coordinator=0))])
    assert joined.committed == ()
