"""The column family of index entries, including in directories from before it existed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import rocksdict

from scankv.model.errors import DataLoss
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.storage.bucket.bucket_state import BucketState
from streaming_server.storage.bucket.index_build import IndexBuild
from streaming_server.storage.rocks import store as rocks
from streaming_server.storage.rocks.store import RocksStore
from tests.support.offline import OfflineBucket, opened, resources
from tests.support.tables import SCORES, define

if TYPE_CHECKING:
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.rocks.store_batch import StoreBatch

PLAIN = define(SCORES)
INDEXED = PLAIN.add_indexes([("score",)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "buckets" / "0000"


@pytest.fixture
def older(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a bucket with a row, without the column family."""
    with monkeypatch.context() as patch:
        patch.setattr(rocks, "_COLUMN_FAMILIES", ("rows", "log", "meta"))
        with opened(path, PLAIN) as bucket:
            bucket.upsert({"player": "ann", "score": 1})
    return path


def families(path: Path) -> list[str]:
    """Returns the column families of a directory."""
    return list(rocksdict.Rdict.list_cf(str(path)))


def test_a_bucket_from_before_there_were_indexes_opens_and_gets_them(older: Path) -> None:
    assert "index" not in families(older)
    with opened(older, INDEXED) as bucket:
        assert bucket.bucket.state.ready_indexes == ()
        assert bucket.bucket.builds == {1: IndexBuild()}
        bucket.upsert({"player": "bob", "score": 2})
        assert len(bucket.entries()) == 1
    assert "index" in families(older)


def test_a_checkpoint_from_before_there_were_indexes_opens_as_it_is(older: Path) -> None:
    store = RocksStore(older, "a checkpoint", compression="lz4", resources=resources(), read_only=True)
    try:
        assert len(list(store.rows.keys())) == 1
        assert store.family_bytes().indexes == 0
    finally:
        store.close()
    assert "index" not in families(older)


def test_a_state_from_before_there_were_indexes_has_none() -> None:
    state = BucketState.from_bytes(b'{"epoch": 1, "count": 5, "epoch_starts": [0, 2], "rows": 3, "longest_row": 9}')
    assert (state.indexes, state.ready_indexes, state.epoch_starts) == ((), (), (0, 2))
    assert BucketState.from_bytes(state.to_bytes()) == state


def test_entries_are_in_the_bytes_and_the_flushes_of_a_bucket(path: Path) -> None:
    with opened(path, INDEXED) as bucket:
        bucket.upsert(*({"player": f"{number:09}", "score": number} for number in range(20_000)))
        bucket.bucket.flush()
        used = bucket.bucket.family_bytes()
        entries = bucket.bucket._store.index.property_int_value("rocksdb.total-sst-files-size")
        assert entries is not None
        assert entries > 100_000
        assert used.indexes == entries
        assert min(used.rows, used.changelog) > 100_000


def test_a_range_of_entries_is_deleted_under_open_iterators_and_stays_so(path: Path) -> None:
    two = INDEXED.add_indexes([("score", "player")])
    with opened(path, two) as bucket:
        bucket.upsert(*({"player": f"{number:09}", "score": number} for number in range(5_000)))
        bucket.bucket.flush()
        bucket.upsert({"player": "late", "score": -1})
        cursor = bucket.bucket.entry_cursor(KeyRanges.of(bucket.indexes[0].all_entries))
        first, _ = cursor.next_entries(100) or ([], [])
        bucket.bucket.set_indexes([2])
        count = len(first)
        while (read := cursor.next_entries(10_000)) is not None:
            count += len(read[0])
        assert count == 5_001
        cursor.close()
        assert len(bucket.entries()) == 5_001
        assert all(key in bucket.indexes[1].all_entries for key in bucket.entries())
    dropped = two.drop_indexes([("score",)])
    with opened(path, dropped) as bucket:
        assert len(bucket.entries()) == 5_001
        bucket.bucket._store.index.compact_range(None, None)
        assert bucket.entries() == bucket.expected_entries()


def test_a_note_of_a_build_that_cannot_be_read_is_data_loss(path: Path) -> None:
    def spoil(bucket: OfflineBucket) -> None:
        batch = bucket.bucket._store.batch()
        batch.put_meta(b"index-build/1", b'{"key": 5}')
        bucket.bucket._store.write(batch)

    with opened(path, PLAIN) as bucket:
        bucket.upsert({"player": "ann", "score": 1})
        spoil(bucket)
        with pytest.raises(DataLoss, match="the progress of an index build cannot be read"):
            bucket.bucket.set_indexes([1])


def test_a_write_puts_what_its_indexes_need_and_nothing_without_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = define(pa.schema([*SCORES, ("note", pa.string())]))
    sizes: list[int] = []
    write = RocksStore.write

    def counted(store: RocksStore, batch: StoreBatch) -> None:
        sizes.append(batch.writes.len())
        write(store, batch)

    def writes_of(definition: TableDefinition, path: Path) -> list[int]:
        with opened(path, definition) as bucket, monkeypatch.context() as patch:
            patch.setattr(RocksStore, "write", counted)
            # The first write after the bucket was opened begins its epoch, too.
            bucket.upsert({"player": "bob", "score": 1, "note": "a"})
            sizes.clear()
            bucket.upsert({"player": "ann", "score": 1, "note": "a"})
            bucket.upsert({"player": "ann", "score": 1, "note": "a"})
            bucket.upsert({"player": "ann", "score": 1, "note": "b"})
            bucket.upsert({"player": "ann", "score": 2, "note": "b"})
            bucket.delete({"player": "ann"})
            return list(sizes)

    # Row, changelog record and state; with an index also an entry, and the old entry if it moves.
    assert writes_of(wide, path.with_name("0001")) == [3, 3, 3, 3]
    assert writes_of(wide.add_indexes([("score",)]), path.with_name("0002")) == [4, 3, 5, 4]
