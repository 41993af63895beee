"""Pinned snapshots on disk: complete ones, debris, disk usage, and detection of damage."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.bucket_state import BucketState
from streaming_server.storage.changelog.offsets import epoch_of
from streaming_server.storage.snapshots.checkpoint import Checkpoint
from streaming_server.storage.snapshots.snapshots import (
    LeaseRecord,
    PinnedBucket,
    ViewDirectory,
    ViewManifest,
    load_views,
    unshared_snapshot_bytes,
)
from tests.support.dying_writer import DEFINITION, write_and_die
from tests.support.offline import OfflineBucket, opened, resources
from tests.support.prepared import flip, rows_file
from tests.support.snapshots import read_all
from tests.support.tables import SCORES, define

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATE = BucketState(epoch=1, count=7, rows=5, longest_row=100)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "trash").mkdir()
    (tmp_path / "table").mkdir()
    return tmp_path / "table"


@pytest.fixture
def trash(table: Path) -> Path:
    return table.parent / "trash"


def manifest_of(view_id: str) -> ViewManifest:
    return ViewManifest(view_id=view_id, definition=DEFINITION, view_micros=17, buckets={0: PinnedBucket.of(STATE)})


def whole_view(table: Path, view_id: str) -> ViewDirectory:
    """Makes a view with a manifest and one lease, and no bucket."""
    view = ViewDirectory(table, view_id)
    view.prepare()
    view.complete(manifest_of(view_id))
    view.write_lease("lease", 5.0)
    return view


def test_a_view_that_is_removed_while_its_splits_are_read_has_none(table: Path, trash: Path) -> None:
    view, content = whole_view(table, "v"), {"0": {"rows": 1}}
    view.write_splits(content)

    def remove_and_restore() -> None:
        for _ in range(3000):
            view.path.rename(trash / "v")
            (trash / "v").rename(view.path)

    found = []
    with ThreadPoolExecutor(1) as threads:
        moving = threads.submit(remove_and_restore)
        while not moving.done():
            found.append(view.read_splits())
    assert content in found
    assert None in found
    assert all(each in (content, None) for each in found)


def test_a_view_is_read_back_as_it_was_written(table: Path, trash: Path) -> None:
    whole_view(table, "one").write_lease("other", 1.5)
    (view,) = load_views(table, trash)
    assert view.manifest() == manifest_of("one")
    assert view.leases() == {"lease": LeaseRecord(5.0, False), "other": LeaseRecord(1.5, False)}
    assert view.read_splits() is None
    view.write_splits({"a": 1})
    assert view.read_splits() == {"a": 1}


def test_a_lease_keeps_its_name_and_those_of_earlier_versions_have_none(table: Path) -> None:
    view = whole_view(table, "one")
    view.write_lease("named", 1.5, name="nightly")
    file = view.path / "leases" / "lease.json"
    assert "name" not in json.loads(file.read_text())["content"]
    assert {id_: lease.name for id_, lease in view.leases().items()} == {"lease": "", "named": "nightly"}


def test_a_lease_is_changed_and_removed(table: Path) -> None:
    view = whole_view(table, "one")
    view.write_lease("lease", 6.0)
    assert view.leases() == {"lease": LeaseRecord(6.0, False)}
    view.remove_lease("lease")
    view.remove_lease("lease")
    assert view.leases() == {}


def test_views_without_manifest_or_lease_are_removed_and_the_others_kept(table: Path, trash: Path) -> None:
    whole_view(table, "kept")
    (whole_view(table, "no-manifest").path / "manifest.json").unlink()
    whole_view(table, "no-lease").remove_lease("lease")
    ViewDirectory(table, "begun").prepare()
    assert [view.view_id for view in load_views(table, trash)] == ["kept"]
    assert [path.name for path in (table / "snapshots").iterdir()] == ["kept"]
    assert list(trash.iterdir()) == []


def test_a_table_without_snapshots_has_none(table: Path, trash: Path) -> None:
    assert list(load_views(table, trash)) == []
    assert unshared_snapshot_bytes([table, table / "gone"]) == 0


def test_removing_a_view_that_went_with_its_table_does_nothing(table: Path, trash: Path) -> None:
    view = whole_view(table, "one")
    table.rename(trash / "dropped")
    view.remove(trash)
    view.remove_lease("lease")
    assert [path.name for path in trash.iterdir()] == ["dropped"]


def test_every_flipped_bit_of_a_manifest_is_noticed(table: Path) -> None:
    view = whole_view(table, "one")
    file = view.path / "manifest.json"
    good = file.read_bytes()
    for place in range(0, len(good), 7):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            found = view.manifest()
        except DataLoss:
            continue
        # For example, white space.
        assert found == manifest_of("one")


def test_the_manifest_of_another_view_is_refused(table: Path) -> None:
    one, other = whole_view(table, "one"), whole_view(table, "other")
    (other.path / "manifest.json").write_bytes((one.path / "manifest.json").read_bytes())
    with pytest.raises(DataLoss, match="is of another view"):
        other.manifest()


def test_a_lease_that_cannot_be_read_is_still_there(table: Path) -> None:
    view = whole_view(table, "one")
    file = view.path / "leases" / "lease.json"
    stored = json.loads(file.read_text())
    stored["content"]["ttl_seconds"] = 6.0
    file.write_text(json.dumps(stored))
    assert view.leases() == {"lease": LeaseRecord(None, shared=True)}


@pytest.fixture
def bucket(table: Path) -> Iterator[OfflineBucket]:
    with opened(table / "buckets" / "0000", define(SCORES, compression="none")) as bucket:
        bucket.upsert(*({"player": f"player {i:05}", "score": i} for i in range(20_000)))
        yield bucket


def checkpoint_of(bucket: OfflineBucket, path: Path, **wrong: Any) -> Checkpoint:
    """Makes a checkpoint and opens it; `wrong` replaces values in the manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bucket.bucket.checkpoint(path)
    pinned = replace(PinnedBucket.of(bucket.bucket.state), **wrong)
    return Checkpoint(path, "bucket 0 in view x", pinned, compression="none", resources=resources())


def rows_of(checkpoint: Checkpoint, bucket: OfflineBucket, *, reverse: bool = False) -> pa.Table:
    decoder = bucket.codec.decoder()
    cursor = checkpoint.cursor(bucket.codec, decoder, bucket.keys.codec, KeyRange(), reverse=reverse)
    try:
        return pa.Table.from_batches(read_all(cursor), schema=decoder.schema)
    finally:
        cursor.close()


def test_a_checkpoint_has_the_rows_of_its_making(bucket: OfflineBucket, tmp_path: Path) -> None:
    before = bucket.rows()
    checkpoint = checkpoint_of(bucket, tmp_path / "views" / "0000")
    bucket.upsert({"player": "newcomer", "score": 0})
    bucket.delete({"player": "player 00000"})
    bucket.bucket.flush()
    assert rows_of(checkpoint, bucket).equals(before)
    checkpoint.close()


@pytest.mark.parametrize("wrong", [{"rows": 19_999}, {"log_offset": 19_999}, {"log_offset": 20_001}])
def test_a_checkpoint_that_is_not_what_the_manifest_says_is_refused(
    bucket: OfflineBucket, tmp_path: Path, wrong: dict[str, int]
) -> None:
    with pytest.raises(DataLoss, match="bucket 0 in view x is damaged: it has 20,000 changes and 20,000 rows"):
        checkpoint_of(bucket, tmp_path / "views" / "0000", **wrong)


def test_a_checkpoint_can_be_opened_by_several(bucket: OfflineBucket, tmp_path: Path) -> None:
    path = tmp_path / "views" / "0000"
    first = checkpoint_of(bucket, path)
    pinned = PinnedBucket.of(bucket.bucket.state)
    second = Checkpoint(path, "bucket 0 in view x", pinned, compression="none", resources=resources())
    assert rows_of(first, bucket).equals(rows_of(second, bucket))
    first.close()
    assert rows_of(second, bucket).num_rows == 20_000
    second.close()


def test_a_checkpoint_made_right_after_an_unclean_stop_opens(tmp_path: Path) -> None:
    path = tmp_path / "table" / "buckets" / "0000"
    write_and_die(path, ("upsert", [{"player": "ann", "score": 1}]), ("sync",))
    with opened(path, DEFINITION) as bucket:
        assert epoch_of(bucket.bucket.state.log_offset) == 1
        checkpoint = checkpoint_of(bucket, tmp_path / "views" / "0000")
        assert rows_of(checkpoint, bucket).to_pylist() == [{"player": "ann", "score": 1}]
        checkpoint.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("place", [0.05, 0.5, 0.85])
def test_a_damaged_block_of_a_checkpoint_is_data_loss_and_never_fewer_rows(
    bucket: OfflineBucket, tmp_path: Path, place: float, reverse: bool
) -> None:
    path = tmp_path / "views" / "0000"
    checkpoint_of(bucket, path).close()
    file = rows_file(path)
    flip(file, int(file.stat().st_size * place))
    pinned = PinnedBucket.of(bucket.bucket.state)
    checkpoint = Checkpoint(path, "bucket 0 in view x", pinned, compression="none", resources=resources())
    with pytest.raises(DataLoss, match="bucket 0 in view x"):
        rows_of(checkpoint, bucket, reverse=reverse)
    checkpoint.close()


def test_what_a_snapshot_shares_with_its_table_is_not_held_by_it(bucket: OfflineBucket, table: Path) -> None:
    view = ViewDirectory(table, "one")
    view.prepare()
    bucket.bucket.checkpoint(view.bucket(0))
    own = unshared_snapshot_bytes([table])
    assert own < 20_000
    files = {file.name: file.stat().st_size for file in view.bucket(0).glob("*.sst")}
    assert sum(files.values()) > 500_000
    for file in (table / "buckets" / "0000").glob("*.sst"):
        file.rename(table / file.name)
    assert unshared_snapshot_bytes([table]) == own + sum(files.values())
    for file in table.glob("*.sst"):
        file.rename(table / "buckets" / "0000" / file.name)
    assert unshared_snapshot_bytes([table]) == own
