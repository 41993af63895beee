"""Merging sorted rows by key equals updating a dict, however the columns are joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_server.arrays import sorted_merge
from streaming_server.arrays.sorted_merge import Merge, stable_order
from tests.support.examples import examples
from tests.support.tables import exact_values

if TYPE_CHECKING:
    import random

TYPES = [pa.int8(), pa.int64(), pa.float32(), pa.bool_(), pa.string(), pa.decimal128(5, 2), pa.list_(pa.int16())]
KEYS = {"one length": lambda number: b"%08d" % number, "several": lambda number: b"%d" % number}


def column(type_: pa.DataType, numbers: list[int], nulls: bool) -> pa.Array:
    made: dict[Any, Any] = {pa.string(): str, pa.bool_(): lambda number: number % 2 == 0}
    make = made.get(type_, (lambda number: [number]) if pa.types.is_list(type_) else (lambda number: number % 100))
    values = [None if nulls and number % 3 == 0 else make(number) for number in [9, *numbers]]
    return pa.array(values, type_)[1:]


@pytest.mark.parametrize("few_runs", [0, 100])
@pytest.mark.parametrize("length", KEYS)
@given(rng=st.randoms(use_true_random=False), reverse=st.booleans())
@examples(8)
@pytest.mark.represented_by("one length-0")
def test_a_merge_is_what_a_dict_would_be(few_runs: int, length: str, rng: random.Random, reverse: bool) -> None:
    size = rng.choice([1, 5, 300])
    below = sorted(rng.sample(range(1000), rng.randrange(size + 1)), key=KEYS[length])
    above = sorted(rng.sample(range(1000), rng.randrange(size + 1)), key=KEYS[length])
    kept = np.array([rng.random() < 0.7 for _ in above], np.bool_) if rng.random() < 0.5 else None
    expected = {number: number for number in below}
    alive = [number for place, number in enumerate(above) if kept is None or kept[place]]
    for number in above:
        expected.pop(number, None)
    expected |= {number: number + 1000 for number in alive}
    keys, over = (pa.array(map(KEYS[length], numbers), pa.binary()) for numbers in (below, above))
    merge = Merge.of(keys, over, kept)
    order = sorted(expected, key=KEYS[length], reverse=reverse)
    if reverse:
        merge = Merge(merge.below, merge.places[::-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_merge, "_FEW_RUNS", few_runs)
        for type_ in TYPES:
            nulls = rng.random() < 0.3, rng.random() < 0.3
            written = [number + 1000 for number in alive]
            found = merge.apply(column(type_, below, nulls[0]), column(type_, written, nulls[1]))
            found.validate(full=True)
            wanted = [column(type_, [expected[number]], nulls[expected[number] >= 1000]) for number in order]
            assert exact_values(found) == [value for array in wanted for value in exact_values(array)]


@given(numbers=st.lists(st.integers(-300, 300)), sliced=st.integers(0, 3))
def test_equal_keys_keep_their_order(numbers: list[int], sliced: int) -> None:
    for width in (1, 2, 8, 9):
        values = [(number % 256).to_bytes(1, "big") * width for number in numbers]
        keys = pa.array([b"x"] * sliced + values, pa.binary())[sliced:]
        assert stable_order(keys).to_pylist() == sorted(range(len(values)), key=values.__getitem__)


EXTREMES: dict[pa.DataType, list[Any]] = {
    pa.float64(): [0.0, -0.0, float("nan"), 1.5, None],
    pa.float32(): [0.0, -0.0, float("nan"), 1.5, None],
    pa.float16(): [np.float16(0.0), np.float16(-0.0), np.float16(1.5), None],
    pa.int64(): [0, -1, 2**62, None],
    pa.uint8(): [0, 255],
    pa.bool_(): [True, False, None],
    pa.string(): ["", "a", "ab", None],
    pa.binary(): [b"", b"\0", None],
    pa.decimal128(5, 2): [1, 2, None],
    pa.list_(pa.float64()): [[0.0], [-0.0], [], None],
    pa.struct([("a", pa.float64())]): [{"a": 0.0}, {"a": -0.0}, None],
    pa.timestamp("us", "UTC"): [0, 1, None],
}


@pytest.mark.parametrize("type_", EXTREMES, ids=str)
@given(rng=st.randoms(use_true_random=False), offset=st.integers(0, 2))
@examples(15)
@pytest.mark.represented_by("double", "timestamp[us, tz=UTC]")
def test_rows_that_are_only_replaced_have_every_bit_of_the_new_ones(
    type_: pa.DataType, rng: random.Random, offset: int
) -> None:
    values = EXTREMES[type_][: rng.choice([1, 2, None])]
    count = rng.randrange(1, 30)
    replaced = sorted(rng.sample(range(count), rng.randrange(count + 1)))
    below, above = ([rng.choice(values) for _ in range(offset + size)] for size in (count, len(replaced)))
    keys = pa.array([b"%08d" % number for number in range(count)])
    merge = Merge.of(keys, keys.take(pa.array(replaced, pa.int64())))
    assert merge.replaced is not None
    found = merge.apply(pa.array(below, type_)[offset:], pa.array(above, type_)[offset:])
    found.validate(full=True)
    expected = below[offset:]
    for place, value in zip(replaced, above[offset:], strict=True):
        expected[place] = value
    assert exact_values(found) == exact_values(pa.array(expected, type_))


def test_a_column_that_no_update_has_changed_is_not_copied() -> None:
    keys = pa.array([b"a", b"b", b"c"])
    merge = Merge.of(keys, keys[1:])
    names, amounts = pa.array(["x", "y", "z"]), pa.array([1.0, 2.0, 3.0])
    assert merge.apply(names, pa.array(["y", "z"])).buffers()[2].address == names.buffers()[2].address
    assert merge.apply(amounts, pa.array([2.0, 4.0])).to_pylist() == [1.0, 2.0, 4.0]
