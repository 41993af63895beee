"""Points of a grid on all keys lie after, or before, a key, and a finer grid has closer points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming_server.storage.cursors.gap_grid import GridResolution, next_grid_key, previous_grid_key

KEYS = st.binary(max_size=6) | st.integers(0, 2**64 - 1).map(lambda number: number.to_bytes(8, "big"))


@given(KEYS, st.integers(0, 80))
def test_the_place_behind_a_key_is_greater_and_not_farther_on_a_finer_grid(key: bytes, bits: int) -> None:
    coarse, fine = next_grid_key(key, bits), next_grid_key(key, bits + 1)
    assert coarse is None or coarse > key
    assert fine is None or fine > key
    if coarse is not None:
        assert fine is not None
        assert fine.rstrip(b"\0") <= coarse.ljust(20, b"\0")
    if coarse is None and bits:
        assert key >= b"\xff" * (bits // 8)


@given(KEYS | st.none(), st.integers(0, 80))
def test_the_place_before_a_key_is_less_and_not_farther_on_a_finer_grid(key: bytes | None, bits: int) -> None:
    coarse, fine = previous_grid_key(key, bits), previous_grid_key(key, bits + 1)
    for place in (coarse, fine):
        assert key is None or place < key or place == b""
    assert fine.ljust(20, b"\0") >= coarse.ljust(20, b"\0")


def test_a_resolution_finds_the_grid_that_fits_and_follows_it() -> None:
    resolution = GridResolution(1000)
    for fitting in (70, 75, 40, 900, 1000):
        steps = 0
        for _ in range(1200):
            steps += 1
            if resolution.bits >= fitting:
                resolution.coarsen()
            elif not resolution.refine():
                raise AssertionError
        assert abs(resolution.bits - fitting) <= 2
    assert GridResolution(10).bits == 10
    assert not GridResolution(10).refine()
