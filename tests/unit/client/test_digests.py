"""Digests of rows are equal for equal rows, whatever Arrow stores for them, and differ for others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client._input.digests import digest_of
from tests.support.examples import examples
from tests.unit.model.strategies import storable_types, values_of


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    type_ = draw(storable_types())
    return type_, draw(st.lists(st.none() | values_of(type_), max_size=8))


def batch_of(type_: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, type_)], names=["v"])


@examples(100)
@given(columns(), st.data())
def test_slices_have_the_digest_of_their_rows(column: tuple[pa.DataType, list[Any]], data: st.DataObject) -> None:
    type_, values = column
    start = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(start, len(values)))
    sliced, copied = batch_of(type_, values).slice(start, end - start), batch_of(type_, values[start:end])
    assert digest_of(sliced) == digest_of(copied)
    assert digest_of(pa.concat_batches([sliced.slice(0, 1), sliced.slice(1)])) == digest_of(copied)


@examples(100)
@given(columns(), st.data())
def test_other_rows_have_another_digest(column: tuple[pa.DataType, list[Any]], data: st.DataObject) -> None:
    type_, values = column
    order = data.draw(st.permutations(range(len(values))))
    first, second = batch_of(type_, values), batch_of(type_, [values[place] for place in order])
    # As text, because NaN does not equal itself.
    if str(first.column(0).to_pylist()) != str(second.column(0).to_pylist()):
        assert digest_of(first) != digest_of(second)
    assert digest_of(batch_of(type_, [*values, None])) != digest_of(first)


def test_what_is_stored_for_a_null_does_not_count() -> None:
    validity = pa.py_buffer(b"\x05")
    stored = bytes(range(24)), bytes(range(8)) + b"\xff" * 8 + bytes(range(16, 24))
    arrays = [pa.Array.from_buffers(pa.int64(), 3, [validity, pa.py_buffer(each)]) for each in stored]
    assert arrays[0].equals(arrays[1])
    assert len({digest_of(pa.record_batch([each], names=["v"])) for each in arrays}) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [(["ab", "c"], ["a", "bc"]), ([[1], [2]], [[1, 2], []]), ([None, 1], [1, None]), (["", None], [None, ""])],
)
def test_the_same_bytes_divided_differently_are_other_rows(first: list[Any], second: list[Any]) -> None:
    type_ = pa.array(first).type
    assert digest_of(batch_of(type_, first)) != digest_of(batch_of(type_, second))
