"""A delta returns the last write of each key at any instant, and takes the memory that it reports."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.columnar import delta as delta_module
from streaming_server.scan.columnar.delta import Delta, MergedDelta
from tests.support.examples import examples

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from streaming_server.scan.columnar.delta import DeltaView


def binary(values: Sequence[bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def as_dict(net: MergedDelta) -> dict[bytes, bytes | None]:
    keys = net.keys.to_pylist()
    assert keys == sorted(set(keys))
    assert len(net) == len(net.values)
    return dict(zip(keys, net.values.to_pylist(), strict=True))


def key_pools() -> st.SearchStrategy[list[bytes]]:
    """Generates encoded keys: of equal or different lengths, with zero bytes and high bytes."""
    numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12, unique=True)
    shorts = st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=12, unique=True)
    texts = st.lists(st.binary(max_size=4), min_size=1, max_size=12, unique=True)

    def encoded(values: list[int] | list[bytes], type_: pa.DataType) -> list[bytes]:
        keys: list[bytes] = KeyCodec([type_]).encode([pa.array(values, type_)]).to_pylist()
        return keys

    return st.one_of(
        numbers.map(lambda values: encoded(values, pa.int64())),
        shorts.map(lambda values: encoded(values, pa.int16())),
        texts.map(lambda values: encoded(values, pa.binary())),
    )


def write(pool: Sequence[bytes], rng: random.Random, delta: Delta, *models: dict[bytes, bytes | None]) -> None:
    """Writes one step of random keys, passed to the delta as a slice of a longer array."""
    keys = rng.sample(pool, rng.randrange(len(pool) + 1))
    kind = rng.random()
    values: list[bytes | None] = [None if kind < 0.3 else rng.randbytes(rng.randrange(4)) for _ in keys]
    if kind > 0.9:
        values = [None if rng.random() < 0.5 else value for value in values]
    before = rng.randrange(3)
    given_keys = binary([b"other"] * before + keys)[before:]
    given_values = None if kind < 0.3 else binary([b"other"] * before + values)[before:]
    delta.add(given_keys, given_values, delta.end + len(keys))
    for model in models:
        model.update(zip(keys, values, strict=True))


@pytest.mark.breadth
@given(pool=key_pools(), rng=st.randoms(use_true_random=False), steps=st.integers(0, 150))
@examples(10)
def test_every_view_is_the_last_write_of_each_key_at_its_moment(
    pool: list[bytes], rng: random.Random, steps: int
) -> None:
    delta, model = Delta(7), dict[bytes, bytes | None]()
    forked, since_fork = None, dict[bytes, bytes | None]()
    views: list[tuple[DeltaView, Mapping[bytes, bytes | None]]] = []
    for _ in range(steps):
        write(pool, rng, delta, model, since_fork)
        if rng.random() < 0.05:
            forked, since_fork = delta.fork(delta.end), {}
        if rng.random() < 0.1:
            keys = KeyRange(*(rng.choice([None, rng.choice(pool)]) for _ in "se"))
            delta.delete_ranges([keys, KeyRange(b"\xff" * 9)], delta.end + 1)
            for each in (model, since_fork):
                for key in [key for key in each if key in keys]:
                    del each[key]
        if rng.random() < 0.3:
            views.append((delta.view(), dict(model)))
        if views and rng.random() < 0.3:
            view, expected = rng.choice(views)
            assert as_dict(view.merge()) == expected
    views.append((delta.view(), model))
    if forked is not None:
        views.append((forked.view(), since_fork))
        assert forked.end == delta.end
    rng.shuffle(views)
    for view, expected in views:
        assert as_dict(view.merge()) == expected


def test_a_part_is_no_copy() -> None:
    net = MergedDelta(binary([b"a", b"b", b"c"]), binary([b"1", None, b"3"]))
    assert net.between(b"b", None).values.buffers()[2].address == net.values.buffers()[2].address


def test_a_thousand_deleted_ranges_are_merged_without_recursion() -> None:
    delta = Delta(5)
    for number in range(1000):
        delta.add(binary([b"a%03d" % number, b"b%03d" % number]), binary([b"1", b"2"]), number)
        delta.delete_ranges([KeyRange.under(b"a")], number)
    assert as_dict(delta.view().merge()) == {b"b%03d" % number: b"2" for number in range(1000)}


def test_scans_of_the_same_state_share_its_rows() -> None:
    delta = Delta(0)
    delta.add(binary([b"b", b"a"]), binary([b"1", b"2"]), 2)
    view = delta.view()
    assert delta.view() is view
    assert view.merge() is delta.view().merge()
    delta.add(binary([b"a"]), None, 3)
    assert delta.view() is not view
    assert as_dict(view.merge()) == {b"a": b"2", b"b": b"1"}


def test_a_later_view_builds_on_the_rows_of_an_earlier_one() -> None:
    """Sorted rows are not sorted again: the later view reads the rows of the earlier one, whose writes are freed."""
    delta = Delta(0)
    for number in range(1000):
        delta.add(binary([b"%05d" % (number % 10)]), binary([b"%d" % number]), number + 1)
    written = delta.nbytes
    assert len(delta.view().merge()) == 10
    assert delta.nbytes < written / 10
    delta.add(binary([b"00003"]), binary([b"new"]), 1001)
    later = delta.view()
    assert later._pending is not None
    assert len(later._pending[1]) == 1
    assert as_dict(later.merge())[b"00003"] == b"new"
    assert later._pending is None


def test_many_threads_get_the_rows_of_one_view() -> None:
    delta = Delta(0)
    with ThreadPoolExecutor(8) as threads:
        for number in range(50):
            keys = binary([b"%06d" % (place * 7919 % 20_000) for place in range(number, number + 2000)])
            delta.add(keys, keys, number)
            views = [delta.view() for _ in range(4)]
            found = list(threads.map(lambda view: view.merge(), views))
            assert all(net is found[0] for net in found)
            assert as_dict(found[0]) == {key: key for key in found[0].keys.to_pylist()}
    assert len(delta.view().merge()) == len({place * 7919 % 20_000 for place in range(2049)})


def test_a_small_slice_does_not_keep_what_it_was_cut_from() -> None:
    keys, values = binary([b"%08d" % number for number in range(10_000)]), binary([b"v" * 1000] * 10_000)
    delta = Delta(0)
    address = values.buffers()[2].address
    delta.add(keys[:3], values[:3], 3)
    delta.add(keys, values, 10_003)
    (_, small), (_, whole) = delta._new.arrays
    assert small.buffers()[2].address != address
    assert whole.buffers()[2].address == address
    assert 10_000_000 < delta.nbytes < 10_400_000


def test_single_rows_are_counted_with_what_holds_them_until_they_are_joined() -> None:
    delta = Delta(0)
    for number in range(60):
        delta.add(binary([b"%d" % number]), binary([b"v"]), number)
    assert delta.nbytes > 60 * 1500
    for number in range(60, 640):
        delta.add(binary([b"%d" % number]), binary([b"v"]), number)
    assert delta.nbytes < 60 * 1500


def test_a_delta_that_no_array_can_hold_is_refused_and_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_module, "_MOST_BYTES", 10_000)
    delta = Delta(0)
    delta.add(binary([b"a"]), binary([b"1"]), 1)
    with pytest.raises(OverflowError, match="at most 10,000 fit"):
        delta.add(binary([b"b"]), binary([b"v" * 10_000]), 2)
    assert as_dict(delta.view().merge()) == {b"a": b"1"}


def test_a_delta_counts_each_changed_key_once_when_it_is_merged_and_the_memory_of_its_fork() -> None:
    delta = Delta(0)
    for number in range(10):
        delta.add(binary([b"a", b"b"]), binary([b"%d" % number] * 2), number + 1)
    assert (delta.rows, delta.unmerged_rows) == (20, 20)
    delta.view().merge()
    assert (delta.rows, delta.unmerged_rows) == (2, 0)
    merged = delta.nbytes
    fork = delta.fork(10)
    delta.add(binary([b"c"]), binary([b"v" * 1000]), 11)
    assert delta.forked is fork
    assert (delta.rows, fork.rows, delta.unmerged_rows) == (3, 1, 1)
    assert delta.nbytes - merged >= 2 * 1000
