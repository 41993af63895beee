"""Rows are divided into requests in order and completely, and only a single row may exceed the bounds."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import RequestTooLarge
from aio_client._input.requests import cut, divide, to_ipc
from tests.support.examples import examples

SIZES = st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=8)


def batch_of(sizes: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array(["x" * size for size in sizes], pa.string())})


@given(SIZES, st.integers(1, 20), st.integers(50, 1000))
def test_rows_keep_their_order_and_requests_their_bounds(sizes: list[list[int]], max_rows: int, max_bytes: int) -> None:
    requests = list(cut(map(batch_of, sizes), max_rows=max_rows, max_bytes=max_bytes))
    joined = [len(text) for request in requests for text in request.column("text").to_pylist()]
    assert joined == [size for batch in sizes for size in batch]
    for request in requests:
        assert 1 <= request.num_rows <= max_rows
        assert request.num_rows == 1 or request.nbytes <= max_bytes + 8 * len(sizes)


def test_small_batches_are_joined() -> None:
    requests = list(cut([batch_of([1])] * 1000))
    assert [request.num_rows for request in requests] == [1000]


def test_a_batch_within_the_bounds_is_not_copied() -> None:
    batch = batch_of([1, 2, 3])
    (request,) = cut([batch])
    assert request.column(0).buffers()[2].address == batch.column(0).buffers()[2].address


def test_a_large_row_goes_alone() -> None:
    requests = list(cut([batch_of([1, 10_000, 1])], max_bytes=1000))
    assert [request.num_rows for request in requests] == [1, 1, 1]


def test_a_row_over_the_limit_is_refused_by_its_index() -> None:
    huge = pa.record_batch({"text": ["x", "y" * (17 << 20)]})
    with pytest.raises(RequestTooLarge, match=r"row 4 has .* the limit is 16,777,216") as caught:
        list(cut([batch_of([1, 2, 3]), huge]))
    assert caught.value.details["row"] == "4"


def test_a_request_is_a_whole_arrow_stream() -> None:
    batch = batch_of([3, 4]).slice(1)
    table = pa.ipc.open_stream(to_ipc(batch)).read_all()
    assert table.to_batches() == [batch]
    assert len(to_ipc(batch_of([100_000, 1]).slice(1))) < 2000


@examples(100)
@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.lists(st.integers(1, 9), max_size=8),
)
def test_batches_are_divided_by_numbers_of_rows_and_the_rest_follows(sizes: list[int], counts: list[int]) -> None:
    numbers = iter(range(100))
    batches = [pa.record_batch({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes]
    divided = list(divide(iter(batches), counts))
    assert [row["n"] for batch in divided for row in batch.to_pylist()] == list(range(sum(sizes)))
    left = sum(sizes)
    for count, batch in zip(counts, divided, strict=False):
        assert batch.num_rows == min(count, left)
        left -= batch.num_rows
