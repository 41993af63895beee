"""Where to seek next in a gap, which is a key range whose keys have all been deleted: arithmetic on encoded keys.

A key is read as a binary fraction whose digits are its bytes. The multiples of 2**-bits form a grid over all keys: the
more bits, the finer the grid. Each step across a gap goes to the next grid key. The grid becomes coarser while steps
find little to skip, and finer when a step finds too much.
"""

from __future__ import annotations

from typing import Final

_STEADY: Final = 4
"""Steps on a grid before a coarser one is tried again, because a step that finds too much is wasted."""


def next_grid_key(key: bytes, bits: int) -> bytes | None:
    """Returns the next grid key after a key. None: no such key exists."""
    size, shift = _size_and_shift(bits)
    grid_key = (_head(key, size) >> shift) + 1 << shift
    return None if grid_key >> 8 * size else grid_key.to_bytes(size, "big")


def previous_grid_key(key: bytes | None, bits: int) -> bytes:
    """Returns the last grid key before a key; None is the end of all keys. The empty key is on every grid."""
    size, shift = _size_and_shift(bits)
    if key is None:
        return ((1 << 8 * size) - (1 << shift)).to_bytes(size, "big")
    head = _head(key, size)
    grid_key = head >> shift
    if head == grid_key << shift and not key[size:].strip(b"\0"):
        grid_key -= 1
    return (grid_key << shift).to_bytes(size, "big") if grid_key > 0 else b""


def _size_and_shift(bits: int) -> tuple[int, int]:
    """Returns the number of bytes of grid keys, and the number of their trailing bits that are zero."""
    size = -(-bits // 8)
    return size, 8 * size - bits


def _head(key: bytes, size: int) -> int:
    return int.from_bytes(key[:size].ljust(size, b"\0"), "big")


class GridResolution:
    """The adaptive resolution of the grid on which a gap is crossed.

    Args:
        most_bits: The finest resolution, at which a step finds next to nothing.

    Attributes:
        bits: The resolution to try next.
    """

    def __init__(self, most_bits: int) -> None:
        self.bits = min(32, most_bits)
        self._most = most_bits
        self._too_coarse = -1
        self._finer_by = 1
        self._steady = 0

    def refine(self) -> bool:
        """Makes the grid finer after a step that reached the skip limit; False when it is the finest already."""
        if self.bits == self._most:
            return False
        self._too_coarse = self.bits
        self.bits = min(self.bits + self._finer_by, self._most)
        self._finer_by *= 2
        self._steady = _STEADY
        return True

    def coarsen(self) -> None:
        """Makes the grid coarser, at once or soon, after a step that reached its grid key."""
        self._finer_by = 1
        if self.bits - self._too_coarse > 1:
            self.bits = (self.bits + self._too_coarse + 1) // 2
        elif self._steady:
            self._steady -= 1
        else:
            self._steady = _STEADY
            self.bits = max(self.bits - 1, 0)
            self._too_coarse = self.bits - 2
