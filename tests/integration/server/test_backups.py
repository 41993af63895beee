"""Backups through a real server: what they contain, what they share, and what is refused."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import xxhash

from aio_client import (
    BackupFailed,
    DataLoss,
    InvalidRequest,
    InvalidResumeToken,
    ScanKvError,
    StartFrom,
    StopAt,
    TableExists,
    TableNotFound,
    TableRecreated,
    Unavailable,
    UsageError,
    sync,
)
from streaming_server.clock import ServerClock
from streaming_server.engine.backups.backups import complete
from streaming_server.engine.backups.restore import restore_all, restore_tables
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import BackupManifest, find_backup, read_manifest
from streaming_server.storage.backup.backup_store import MAX_PACK_BYTES, BackupStore
from streaming_server.storage.backup.claims import Claim
from streaming_server.storage.backup.prune import prune
from streaming_server.storage.backup.verify import verify
from streaming_server.storage.bucket.writer_states import DEFAULT_WRITER_LIMITS, WriterStates
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.tables.clock_file import ClockFile
from tests.support.examples import seeds
from tests.support.prepared import flip
from tests.support.s3_server import s3_bucket
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([("player", pa.string()), ("score", pa.int64())])


@contextmanager
def serving(data: Path, location: Path | str = "", *settings: str) -> Iterator[sync.Client]:
    """Serves a data directory for the length of the block."""
    backups = ("--backup-location", str(location)) if location else ()
    with ServerProcess(data, *backups, *settings) as server, sync.connect(server.url) as client:
        yield client


def create_scores(client: sync.Client, name: str = "game.scores", rows: int = 1000, **options: Any) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["player"], **options)
    players = [f"p{number}" for number in range(rows)]
    table.upsert(pa.table({"player": players, "score": list(range(rows))}))
    return table


def latest(location: Path | str) -> tuple[BackupStore, BackupManifest]:
    store = BackupStore(str(location))
    return store, read_manifest(store, find_backup(store, "latest"))


def test_unchanged_files_are_not_stored_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        table = create_scores(client, rows=50_000)
        first, again = client.create_backup(), client.create_backup()
        table.upsert([{"player": "new", "score": 1}])
        changed = client.create_backup()
    assert first.new_bytes == first.total_bytes > 500_000
    assert again.new_bytes <= 0.02 * first.new_bytes
    assert 0 < changed.new_bytes <= 0.2 * first.new_bytes
    store = BackupStore(str(tmp_path / "backups"))
    assert verify(store, store.manifests()) == {backup_id: [] for backup_id in store.manifests()}


def test_buckets_without_writes_are_taken_from_the_backup_before(tmp_path: Path) -> None:
    # No maintenance may write to a bucket in between.
    with serving(tmp_path / "data", tmp_path / "backups", "--set", "log_maintenance_seconds=3600") as client:
        table = create_scores(client, buckets=4, indexes=[["score"]])
        first = client.create_backup()
        table.upsert([{"player": "p1", "score": 77}])
        client.create_backup()
        again = client.create_backup()
        assert again.new_bytes == 0
        assert again.done_bytes == again.total_bytes >= first.total_bytes
        store, manifest = latest(tmp_path / "backups")
        lost = next(iter(manifest.objects))
        store.remove_object(lost)
        mended = client.create_backup()
        assert mended.new_bytes > 0
    store, manifest = latest(tmp_path / "backups")
    assert verify(store, [manifest.backup_id]) == {manifest.backup_id: []}
    assert sorted(manifest.tables[0].states) == [0, 1, 2, 3]
    restore_all(store, plan_backup(manifest), tmp_path / "restored")
    with serving(tmp_path / "restored") as client:
        table = client.table("game.scores")
        assert table.count() == 1000
        assert table.get("p1") == {"player": "p1", "score": 77}
        assert all(bucket.is_consistent for bucket in client.check_table("game.scores"))


def test_buckets_that_are_closed_or_were_never_used_are_backed_up(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as client:
        create_scores(client, "game.closed")
        client.create_table("game.unused", SCHEMA, primary_key=["player"])
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        status = client.create_backup()
        assert client.stats().open_buckets == 0
    assert status.tables == 2
    store, manifest = latest(tmp_path / "backups")
    assert [(table.name, table.rows) for table in manifest.tables] == [("game.closed", 1000), ("game.unused", 0)]
    restore_all(store, plan_backup(manifest), tmp_path / "restored")
    with serving(tmp_path / "restored") as client:
        assert client.table("game.closed").count() == 1000
        assert client.table("game.unused").count() == 0
        client.table("game.unused").upsert([{"player": "a", "score": 1}])


def test_changes_consumers_and_commits_survive_and_later_positions_are_refused(tmp_path: Path) -> None:
    committed = [f"c{number}" for number in range(200)]
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        table = create_scores(client, changelog="full", indexes=[["score"]], buckets=16)
        read = _consume(table)
        with client.transaction(id="job:1") as transaction:
            transaction.upsert(table, [{"player": player, "score": 1} for player in committed])
        client.create_backup()
        with client.transaction(id="job:2") as transaction:
            transaction.upsert(table, [{"player": "later", "score": 2}])
        offsets = table.log_offsets()
    store, manifest = latest(tmp_path / "backups")
    assert verify(store, [manifest.backup_id]) == {manifest.backup_id: []}
    restore_all(store, plan_backup(manifest), tmp_path / "restored")
    restore_all(store, plan_backup(manifest), tmp_path / "another")
    with serving(tmp_path / "another") as client:
        other = client.table("game.scores").incarnation
    with serving(tmp_path / "restored") as client:
        table = client.table("game.scores")
        assert table.incarnation != other, "positions of one restore are refused by another"
        assert table.count() == 1200
        with pytest.raises(TableRecreated, match="scankv consumers accept"):
            _consume(table)
        table.accept_consumer("job")
        assert sorted([*read, *_consume(table)]) == sorted([*(f"p{number}" for number in range(1000)), *committed])
        with pytest.raises(TableRecreated):
            table.changes(StartFrom.offsets(offsets), StopAt.LATEST).to_arrow()
        with client.transaction(id="job:1") as transaction:
            assert transaction.result is not None
            assert len(transaction.result.log_offsets[table.name]) == 16
        with client.transaction(id="job:2") as transaction:
            assert transaction.result is None
            transaction.upsert(table, [{"player": "later", "score": 2}])
        assert table.count() == 1201
        assert all(bucket.is_consistent for bucket in client.check_table("game.scores"))


def _consume(table: sync.Table) -> list[str]:
    """Reads the changes that the consumer `job` has not read, and commits its position."""
    changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_consumer_id("job")
    with changes.stream() as stream:
        players = [player for rows in stream for player in rows["player"].to_pylist()]
        stream.commit()
    return players


def test_a_damaged_table_is_left_out_and_all_others_are_backed_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as client:
        create_scores(client, "game.good")
        create_scores(client, "game.bad")
        create_scores(client, "game.lost")
    (data / "tables" / "game" / "bad" / "table.json").write_text("{}")
    shutil.rmtree(data / "tables" / "game" / "lost" / "buckets" / "0001")
    (data / "tables" / "game" / "lost" / "buckets" / "0001").mkdir()
    (data / "tables" / "game" / "lost" / "buckets" / "0001" / "CURRENT").write_text("MANIFEST-000001\n")
    with serving(data, tmp_path / "backups") as client:
        status = client.create_backup()
    assert set(status.left_out) == {"game.bad", "game.lost"}
    store, manifest = latest(tmp_path / "backups")
    assert [table.name for table in manifest.tables] == ["game.good"]
    with pytest.raises(TableNotFound, match="lacks it"):
        restore_tables(store, plan_backup(manifest), tmp_path / "restored", {"game.bad": "game.bad"})


def test_a_backup_that_has_lost_or_changed_a_file_is_detected_and_not_restored(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        create_scores(client)
        client.create_backup()
    store, manifest = latest(tmp_path / "backups")
    objects = sorted((tmp_path / "backups" / "objects").glob("*/*"))
    assert len(objects) >= 5
    for number, path in enumerate(objects):
        content, target = path.read_bytes(), tmp_path / f"restored-{number}"
        for damage in ("lost", "shortened", "changed"):
            if damage == "lost":
                path.unlink()
            elif damage == "shortened":
                path.write_bytes(content[:-1])
            else:
                flip(path, 7)
            (problems,) = verify(store, [manifest.backup_id]).values()
            assert [path.name in problem for problem in problems] == [True]
            with pytest.raises(DataLoss, match=path.name):
                restore_all(store, plan_backup(manifest), target)
            with pytest.raises(UsageError, match="did not finish"), serving_offline(target):
                pass
            with pytest.raises(DataLoss, match=path.name):
                restore_tables(store, plan_backup(manifest), tmp_path / "other", {"game.scores": "game.scores"})
            path.write_bytes(content)
        restore_all(store, plan_backup(manifest), target)
    assert not list((tmp_path / "other" / "tables").iterdir())


@contextmanager
def serving_offline(data: Path) -> Iterator[None]:
    """Opens a data directory as a server does."""
    from streaming_server.storage.tables.data_directory import DataDirectory

    directory = DataDirectory(data)
    try:
        yield
    finally:
        directory.close()


def test_a_damaged_manifest_is_no_backup_and_the_next_backup_is_complete(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        create_scores(client)
        client.create_backup()
        (path,) = (tmp_path / "backups" / "manifests").iterdir()
        flip(path, path.stat().st_size // 2)
        store = BackupStore(str(tmp_path / "backups"))
        with pytest.raises(DataLoss, match="manifest"):
            read_manifest(store, path.stem)
        with pytest.raises(DataLoss, match="manifest"):
            prune(store, keep=1)
        again = client.create_backup()
    assert again.new_bytes < again.total_bytes / 2
    assert verify(store, [again.backup_id]) == {again.backup_id: []}
    assert verify(store, [path.stem])[path.stem]


def test_pruning_keeps_exactly_what_the_remaining_backups_need(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        table = create_scores(client)
        for number in range(5):
            table.upsert([{"player": f"p{number}", "score": -number}])
            client.create_backup()
        client.drop_table("game.scores")
        create_scores(client, rows=10)
        client.create_backup()
        known = store.manifests()
        claim = Claim(store, "create", against="prune", clock=lambda: 0.0)
        claim.take()
        with pytest.raises(BackupFailed, match="being created"):
            prune(store, keep=1)
        assert store.manifests() == known
        claim.release()
        (tmp_path / "backups" / "objects" / "ab").mkdir(exist_ok=True)
        (tmp_path / "backups" / "objects" / "ab" / "abc.partial-1").write_text("left by a crash")
        pruned = prune(store, keep=2)
        assert pruned.backups == known[:-2]
        assert verify(store, store.manifests()) == {backup_id: [] for backup_id in known[-2:]}
        prune(store, keep=1)
        assert store.objects() == read_manifest(store, known[-1]).objects
        assert not store.partial_objects()
        assert not store.claims()
        claim = Claim(store, "prune", against="create", clock=lambda: 0.0)
        claim.take()
        with pytest.raises(BackupFailed, match="being removed"):
            client.create_backup()
        claim.release()
        assert client.create_backup().new_bytes == 0


def test_the_server_creates_backups_by_itself_and_keeps_the_newest(tmp_path: Path) -> None:
    settings = ("--backup-every", "0.05", "--set", "backup_keep=2")
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", tmp_path / "backups", *settings) as client:
        create_scores(client, rows=10)
        seen: set[str] = set()

        def collect() -> bool:
            seen.update(store.manifests())
            return len(seen) >= 5

        wait_until(collect, "five backups were created")
        assert client.backup_status().last_completed_at is not None
    assert len(store.manifests()) in (2, 3)


def test_a_schedule_without_a_location_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="backup_location"),
        serving(tmp_path / "data", "", "--set", "backup_every_seconds=60"),
    ):
        pass


def test_wrong_locations_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path / "none") as client, pytest.raises(BackupFailed, match="--backup-location"):
        client.create_backup()
    location = tmp_path / "backups"
    with serving(tmp_path / "data", location) as client:
        create_scores(client)
        location.rmdir()
        location.write_text("in the way")
        with pytest.raises(BackupFailed, match="cannot be read or written"):
            client.create_backup()
        assert client.table("game.scores").count() == 1000
        assert not list((tmp_path / "data" / "trash").iterdir())
        location.unlink()
        location.symlink_to(tmp_path)
        with pytest.raises(UsageError, match="contain one another"):
            client.create_backup()
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID") as refused:
        BackupStore("s3://user:secret@bucket/backups")
    assert "secret" not in refused.value.message.replace("AWS_SECRET_ACCESS_KEY", "")
    with pytest.raises(UsageError, match="no location"):
        BackupStore("nothing://bucket")


def test_tables_are_restored_beside_others_under_other_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, tmp_path / "backups") as client:
        create_scores(client, indexes=[["score"]])
        client.create_backup()
        client.table("game.scores").upsert([{"player": "later", "score": 1}])
    store, manifest = latest(tmp_path / "backups")
    for names, error in (
        ({"game.scores": "game.scores"}, TableExists),
        ({"game.scores": "wrong"}, InvalidRequest),
        ({"game.other": "game.other"}, TableNotFound),
    ):
        with pytest.raises(error):
            restore_tables(store, plan_backup(manifest), data, names)
    with pytest.raises(UsageError, match="data directory already"):
        restore_all(store, plan_backup(manifest), data)
    restored = restore_tables(store, plan_backup(manifest), data, {"game.scores": "archive.scores"})
    assert [(each.restored_as, each.rows) for each in restored.tables] == [("archive.scores", 1000)]
    with serving(data) as client:
        assert client.table("archive.scores").count() == 1000
        assert client.table("game.scores").count() == 1001
        both = [client.table(name) for name in ("archive.scores", "game.scores")]
        with client.transaction() as transaction:
            for table in both:
                transaction.upsert(table, [{"player": "together", "score": 7}])
        assert all(bucket.is_consistent for bucket in client.check_table("archive.scores"))


@pytest.mark.breadth
def test_rows_and_writers_keep_their_age_in_the_directory_of_a_server_that_has_run_longer(tmp_path: Path) -> None:
    old = tmp_path / "old"
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        _create_log(client, "t.log", rows=20)
        with client.transaction(id="load") as transaction:
            transaction.append(client.table("t.log"), [{"player": "last", "score": 20}])
        client.create_backup()
    with serving(old) as client:
        _create_log(client, "t.control", rows=1)
    file = ClockFile(old)
    times = file.read(is_new=False)
    assert times is not None
    file.write(replace(times, service=times.service + 400 * 86_400 * 10**9))
    store, manifest = latest(tmp_path / "backups")
    restore_tables(store, plan_backup(manifest), old, {"t.log": "t.log"})
    assert _forgotten_writers(old, "t.log") == 0
    assert _forgotten_writers(old, "t.control") == 1
    with serving(old, "", "--set", "log_maintenance_seconds=0.05") as client:
        # The tables are maintained in the order in which they are used first.
        assert client.table("t.log").count() == 21
        with client.transaction(id="load") as transaction:
            assert transaction.result is not None
        wait_until(lambda: client.table("t.control").count() == 0, "the rows of the other table have expired")
        assert client.table("t.log").count() == 21


def _create_log(client: sync.Client, name: str, *, rows: int) -> None:
    table = client.create_table(name, SCHEMA, primary_key=[], buckets=1, log_retention_seconds=30 * 86_400)
    for number in range(rows):  # The age of rows is known by the mebibyte.
        table.append([{"player": "x" * (1 << 20), "score": number}])


def _forgotten_writers(data: Path, table: str) -> int:
    """Returns how many writers a table forgets when its server starts."""
    path = data / "tables" / table.replace(".", "/") / "buckets" / "0000"
    resources = RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    store = RocksStore(path, table, compression="lz4", resources=resources)
    try:
        writers = WriterStates(store, DEFAULT_WRITER_LIMITS, ServerClock(None, ClockFile(data).read(is_new=False)))
        return writers.sweep()
    finally:
        store.close()


@pytest.mark.breadth
def test_backups_in_an_object_store(tmp_path: Path) -> None:
    with s3_bucket("backups") as uri:
        location = uri % "prod/scankv"
        with serving(tmp_path / "data", location) as client:
            table = create_scores(client, rows=20_000)
            first = client.create_backup()
            table.upsert([{"player": "new", "score": 1}])
            second = client.create_backup()
            assert second.new_bytes < first.new_bytes / 5
        store, manifest = latest(location)
        assert verify(store, store.manifests()) == {first.backup_id: [], second.backup_id: []}
        prune(store, keep=1)
        restore_all(store, plan_backup(manifest), tmp_path / "restored")
        some = next(iter(manifest.objects))
        store.remove_object(some)
        assert verify(store, [second.backup_id])[second.backup_id]
        with pytest.raises(DataLoss, match=some):
            restore_all(store, plan_backup(manifest), tmp_path / "refused")
    with serving(tmp_path / "restored") as client:
        assert client.table("game.scores").count() == 20_001


def test_a_manifest_with_a_path_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        create_scores(client)
        client.create_backup()
    store, manifest = latest(tmp_path / "backups")
    for path in ("../../../../tmp/x", "/tmp/x", "buckets/0000/../../x", "table.json"):
        content = json.loads(json.dumps(manifest.to_json()))
        content["tables"][0]["files"][0]["path"] = path
        store.write_manifest(manifest.backup_id, content)
        with pytest.raises(DataLoss, match="no file of a table"):
            read_manifest(store, manifest.backup_id)


def test_a_resume_token_from_before_is_refused_after_a_restore(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        table = create_scores(client)
        client.create_backup()
        with table.scan().with_chunk(rows=10).stream() as stream:
            next(iter(stream))
            token = stream.resume_token
            assert token is not None
    store, manifest = latest(tmp_path / "backups")
    restore_all(store, plan_backup(manifest), tmp_path / "restored")
    with (
        serving(tmp_path / "restored") as client,
        pytest.raises(InvalidResumeToken, match="before the table was"),
    ):
        client.table("game.scores").scan().resume_from(token).to_arrow()


def test_a_backup_that_lacks_a_table_displaces_no_other(tmp_path: Path) -> None:
    data, store = tmp_path / "data", BackupStore(str(tmp_path / "backups"))
    with serving(data, store.location) as client:
        create_scores(client, "game.good")
        create_scores(client, "game.bad")
        complete_backup = client.create_backup().backup_id
    (data / "tables" / "game" / "bad" / "table.json").write_text("{}")
    with serving(data, store.location, "--set", "backup_keep=1") as client:
        assert client.create_backup().left_out
        assert complete_backup in store.manifests()
        client.drop_table("game.bad")
        newest = client.create_backup().backup_id
    assert store.manifests() == [newest]


def test_a_backup_whose_objects_were_removed_is_not_completed(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        create_scores(client)
        client.create_backup()
    store, manifest = latest(tmp_path / "backups")
    store.remove_manifest(manifest.backup_id)
    claim = Claim(store, "create", against="prune", clock=lambda: 0.0)
    claim.take()
    removed = next(iter(manifest.objects))
    content = store.read_object(removed, MAX_PACK_BYTES)
    store.remove_object(removed)
    with pytest.raises(BackupFailed, match="create it again"):
        complete(store, manifest, claim)
    assert not store.manifests()
    store.put_object(removed, content)
    complete(store, manifest, claim)
    assert store.manifests() == [manifest.backup_id]
    with pytest.raises(BackupFailed, match="another server"):
        complete(store, manifest, claim)
    assert verify(store, [manifest.backup_id]) == {manifest.backup_id: []}


HOSTILE: list[Any] = [None, True, -1, 0, 1.5, 2**63, 2**70, 10**30, "", "x", "../x", "\ud800", [], {}, [[]], {"a": 1}]


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all values within a JSON value."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield from _leaves(each, (*path, key))


def _with_change(content: dict[str, Any], random: Random) -> dict[str, Any]:
    """Returns JSON with another value in one place, or without it."""
    changed = json.loads(json.dumps(content))
    *parents, last = random.choice([path for path in _leaves(content) if path])
    within = changed
    for key in parents:
        within = within[key]
    if random.random() < 0.2:
        del within[last]
    elif isinstance(within[last], str) and random.random() < 0.5:
        within[last] = json.dumps(_with_change(json.loads(within[last]), random)) if within[last][:1] == "{" else "7"
    else:
        within[last] = random.choice(HOSTILE)
    return dict(changed)


@seeds(1)
def test_a_manipulated_manifest_ends_in_a_typed_error_or_is_restored(tmp_path: Path, seed: int) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        table = create_scores(client, indexes=[["score"]], buckets=1)
        table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="c").to_arrow()
        client.create_backup()
    store, manifest = latest(tmp_path / "backups")
    random, content, refused = Random(seed), manifest.to_json(), 0
    for number in range(60):
        store.write_manifest(manifest.backup_id, _with_change(content, random))
        try:
            read = read_manifest(store, manifest.backup_id)
            verify(store, [read.backup_id], quick=True)
            restore_all(store, plan_backup(read), tmp_path / f"restored-{number}")
        except ScanKvError:
            refused += 1
    assert refused > 20


def test_a_manifest_that_contradicts_its_files_or_itself_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        create_scores(client, buckets=1)
        client.create_backup()
    store, manifest = latest(tmp_path / "backups")
    table = manifest.tables[0]
    sizes = [replace(table, files=(replace(file, size=file.size + 1),)) for file in table.files]
    huge = replace(table, files=(replace(table.files[0], size=2**60),))
    for beyond in [*sizes, huge]:
        with pytest.raises(DataLoss, match=r"damaged|has more than|the limit is"):
            restore_all(store, plan_backup(replace(manifest, tables=(beyond,))), tmp_path / "restored")
    content = manifest.to_json()
    (stored,) = content["tables"]
    states = stored["states"]["0"]
    for changed, message in (
        ({"states": {"0": states, "7": states}}, "has the state of bucket 7, but only 1 buckets"),
        ({"states": {}}, "but no state of its bucket"),
        ({"files": stored["files"] * 2}, "has a file twice"),
        ({"definition": stored["definition"] | {"buckets": 2**40}}, "a table has between 1 and 1,024"),
        ({"definition": stored["definition"] | {"name": "../x"}}, "is not a table name"),
        (
            {"states": {"0": json.dumps(json.loads(states) | {"commit_micros": "7"})}},
            "commit_micros must be a whole number",
        ),
    ):
        store.write_manifest(manifest.backup_id, content | {"tables": [stored | changed]})
        with pytest.raises(DataLoss, match=message):
            read_manifest(store, manifest.backup_id)
    path = tmp_path / "backups" / "manifests" / f"{manifest.backup_id}.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataLoss, match="cannot be read"):
        read_manifest(store, manifest.backup_id)


def test_a_pack_is_read_only_up_to_what_the_manifest_and_the_limit_allow(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "backups") as client:
        create_scores(client, buckets=1)
        client.create_backup()
    store, manifest = latest(tmp_path / "backups")
    table = manifest.tables[0]
    (pack,) = {file.pack for file in table.files if file.pack}
    files = tuple(replace(file, offset=MAX_PACK_BYTES) if file.pack else file for file in table.files)
    beyond = replace(manifest, tables=(replace(table, files=files),))
    with pytest.raises(DataLoss, match=f"pack {pack} .* the limit is 1,073,741,824"):
        restore_all(store, plan_backup(beyond), tmp_path / "a")
    with (tmp_path / "backups" / "objects" / pack[:2] / pack).open("ab") as file:
        # Without blocks on the disk.
        file.truncate(1 << 40)
    with pytest.raises(DataLoss, match=f"{pack} in .* has more than"):
        restore_all(store, plan_backup(manifest), tmp_path / "b")


def test_a_part_of_an_archive_beyond_its_file_takes_no_memory(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path))
    store.put_archived("a.wal", b"12345678")
    assert store.read_archived("a.wal", 4, 4, xxhash.xxh3_128_hexdigest(b"5678")) == b"5678"
    for offset, size in ((0, 9), (8, 1), (0, 2**62)):
        with pytest.raises(DataLoss, match="has 8 bytes, and the segment needs"):
            store.read_archived("a.wal", offset, size, "")
