"""Deleted ranges are collected until they are large, and stay few."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.deleted_space import DeletedSpace
from tests.support.offline import opened
from tests.support.tables import define

if TYPE_CHECKING:
    from pathlib import Path

MUCH = 5 << 20
TEXTS = pa.schema([pa.field("player", pa.string(), nullable=False), ("text", pa.string())])


def test_ranges_are_due_once_their_data_are_large() -> None:
    space = DeletedSpace()
    space.add([KeyRange(b"a", b"b")], 1 << 20)
    assert not space.is_due
    space.add([KeyRange(b"c", b"d")], 3 << 20)
    assert space.is_due
    assert space.take() == [KeyRange(b"a", b"b"), KeyRange(b"c", b"d")]
    assert not space.is_due
    assert space.take() == []


def test_many_ranges_become_few_that_contain_all_of_them() -> None:
    drawn, space = random.Random(5), DeletedSpace()
    ranges = [KeyRange(b"%05d" % number, b"%05d" % (number + 3)) for number in drawn.sample(range(10_000), 1000)]
    for keys in [*ranges, KeyRange(b"2", None), KeyRange(None, b"00005")]:
        space.add([keys], 10)
    found = space.take()
    assert len(found) <= 64
    for keys in ranges:
        assert any(keys & other == keys for other in found), keys
    assert any(other.start is None for other in found)
    assert any(other.end is None for other in found)


def test_the_space_of_removed_changes_is_free_after_a_compaction_and_once_a_minute_while_more_are_written(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "0000", define(TEXTS, compression="none")) as offline:
        bucket = offline.bucket

        def write() -> None:
            """Writes and removes 6 MiB of changes."""
            for _ in range(6):
                offline.upsert({"player": "ann", "text": f"{next(values)}" + "x" * (1 << 20)})
            assert bucket.trim_log(bucket.state.log_offset, offline.definition)

        values = count()
        write()
        assert stored_bytes(tmp_path) > MUCH
        deleted = bucket.take_deleted_ranges(now=1000.0)
        assert deleted is not None
        bucket.compact_ranges(deleted)
        assert stored_bytes(tmp_path) < 3 << 20
        assert bucket.take_deleted_ranges(now=1001.0) is None
        write()
        assert bucket.take_deleted_ranges(now=1059.0) is None
        assert bucket.take_deleted_ranges(now=1060.0) is not None
        write()
        assert bucket.take_deleted_ranges(now=1070.0) is None
        # Nothing was written for five seconds.
        assert bucket.take_deleted_ranges(now=1075.0) is not None


def stored_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
