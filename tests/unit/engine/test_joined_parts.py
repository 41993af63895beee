"""What several workers contribute to a backup, or to a segment of the archive, becomes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from scankv.model.tables.schema import TableDefinition
from streaming_server.clock import StoredTimes
from streaming_server.engine.backups.archived_so_far import ArchivedSoFar
from streaming_server.engine.backups.divided_backup import join_parts
from streaming_server.engine.backups.segment_capture import CapturedLog, SegmentCapture, join_captures
from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredTable
from streaming_server.storage.bucket.bucket_state import BucketState
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


DIVIDED = TableDefinition.create(
    "t.divided", pa.schema([("k", pa.int64())]), ["k"], (), 4, tablets=3, incarnation="d", created_millis=0
)


def stored(definition: TableDefinition) -> StoredTable:
    """Returns a table or a tablet with one row in each of its buckets."""
    return StoredTable(definition=definition, states={n: BucketState(rows=1) for n in definition.own_buckets}, files=())


def test_a_backup_has_tablets_as_buckets_of_their_table() -> None:
    table, first, second, third = map(stored, DIVIDED.parts)
    parts = [replace(manifest(), tables=(second,)), replace(manifest(), tables=(table, first, third))]
    for joined in (join_parts(parts), join_parts([replace(manifest(), tables=(second, third, table, first))])):
        (found,) = joined.tables
        assert (found.name, sorted(found.states), found.rows) == ("t.divided", [0, 1, 2, 3], 4)


def test_a_backup_lacks_tables_of_which_a_tablet_is_missing_and_says_why() -> None:
    table, first, _, third = map(stored, DIVIDED.parts)
    reasons: tuple[dict[str, str], ...] = ({"t.divided#1": "bucket 1 is damaged"}, {})
    said = []
    for left_out in reasons:
        joined = join_parts([replace(manifest(), tables=(table, first, third), left_out=left_out), manifest()])
        assert joined.tables == ()
        said.append(joined.left_out)
    assert said == [
        {"t.divided": "tablet 1 cannot be backed up: bucket 1 is damaged"},
        {"t.divided": "tablet 1 cannot be backed up: its owner does not know it yet"},
    ]


def test_a_backup_ignores_tablets_of_a_table_that_was_dropped_in_the_meantime() -> None:
    _, first, _, third = map(stored, DIVIDED.parts)
    part = replace(manifest(), tables=(first, third), left_out={"t.divided#1": "it is being dropped"})
    joined = join_parts([part, manifest()])
    assert (joined.tables, joined.left_out) == ((), {})


def test_an_archive_has_the_later_log_of_a_tablet_that_was_dropped_while_it_was_captured() -> None:
    earlier = CapturedLog(Path("tablet"), (), ((3, 10),))
    for kept in (((3, 25),), ((3, 10), (4, 1)), ((4, 1),)):
        later = CapturedLog(Path("kept"), (), kept)
        parts = [
            SegmentCapture(capture_id="", micros=1, times=TIMES, files={("d", 2): log}) for log in (earlier, later)
        ]
        for ordered in (parts, parts[::-1]):
            assert join_captures(ordered, ()).files == {("d", 2): later}


def captured(*found: CommittedTransaction) -> SegmentCapture:
    return SegmentCapture(capture_id="", micros=9, times=TIMES, committed=list(found))


def test_an_archive_has_a_commit_again_once_a_worker_that_was_late_has_applied_its_share() -> None:
    archived = ArchivedSoFar()
    first, share = committed("x", "t.a"), committed("x", "t.b", coordinator=0)
    offsets = []
    for parts in ([captured(first), captured()], [captured(), captured()], [captured(), captured(share)], [captured()]):
        joined = join_captures(parts, archived.commits)
        archived.add_commits([each for part in parts for each in part.committed], joined.committed)
        offsets.append([set(each.log_offsets) for each in joined.committed])
    assert offsets == [[{"t.a"}], [], [{"t.a", "t.b"}], []]
    assert archived.commits == []


def test_an_archive_has_a_share_that_was_applied_before_its_coordinator_knew_the_commit() -> None:
    archived = ArchivedSoFar()
    first, share = committed("x", "t.a"), committed("x", "t.b", coordinator=0)
    archived.add_commits([share], join_captures([captured(share)], ()).committed)
    (joined,) = join_captures([captured(first)], archived.commits).committed
    assert joined.log_offsets == {"t.a": {0: 3}, "t.b": {0: 3}}
