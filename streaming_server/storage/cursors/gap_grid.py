"""Where to look next in a stretch of keys that have all been deleted: pure arithmetic on encoded keys.

A key is taken for the binary fraction that its bytes are. The multiples of 2**-bits are a grid on all keys: the more
bits, the finer. A step across a gap goes to the next place of a grid; the grid becomes coarser where steps find little
to skip, and finer where they find too much.
"""

from __future__ import annotations

from typing import Final

_STEADY: Final = 4
"""Steps on a grid before a coarser one is tried again: a step that finds too much is lost."""


def next_grid_key(key: bytes, bits: int) -> bytes | None:
    """The next place of a grid behind a key. None: there is none."""
    size, shift = _size_and_shift(bits)
    place = (_head(key, size) >> shift) + 1 << shift
    return None if place >> 8 * size else place.to_bytes(size, "big")


def previous_grid_key(key: bytes | None, bits: int) -> bytes:
    """The last place of a grid before a key, where None is behind all keys; the empty key is a place of every grid."""
    size, shift = _size_and_shift(bits)
    if key is None:
        return ((1 << 8 * size) - (1 << shift)).to_bytes(size, "big")
    head = _head(key, size)
    place = head >> shift
    if head == place << shift and not key[size:].strip(b"\0"):
        place -= 1
    return (place << shift).to_bytes(size, "big") if place > 0 else b""


def _size_and_shift(bits: int) -> tuple[int, int]:
    """The bytes that places of a grid take, and the bits of these that are zero."""
    size = -(-bits // 8)
    return size, 8 * size - bits


def _head(key: bytes, size: int) -> int:
    return int.from_bytes(key[:size].ljust(size, b"\0"), "big")


class GridResolution:
    """How fine the grid is on which a gap is crossed: finer after each step that found too much, then coarser again.

    Args:
        most_bits: Those of a grid so fine that a step across it finds next to nothing.

    Attributes:
        bits: Those of the grid to try next.
    """

    def __init__(self, most_bits: int) -> None:
        self.bits = min(32, most_bits)
        self._most = most_bits
        self._too_coarse = -1
        self._finer_by = 1
        self._steady = 0

    def refine(self) -> bool:
        """Takes a finer grid, after a step that found more than it may skip; False when there is none."""
        if self.bits == self._most:
            return False
        self._too_coarse = self.bits
        self.bits = min(self.bits + self._finer_by, self._most)
        self._finer_by *= 2
        self._steady = _STEADY
        return True

    def coarsen(self) -> None:
        """Takes a coarser grid, at once or soon, after a step that crossed to its place."""
        self._finer_by = 1
        if self.bits - self._too_coarse > 1:
            self.bits = (self.bits + self._too_coarse + 1) // 2
        elif self._steady:
            self._steady -= 1
        else:
            self._steady = _STEADY
            self.bits = max(self.bits - 1, 0)
            self._too_coarse = self.bits - 2
