"""Deleted ranges are collected until they are large, and stay few."""

from __future__ import annotations

import random

from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.deleted_space import DeletedSpace


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
