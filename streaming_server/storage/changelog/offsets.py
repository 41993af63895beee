"""Log offsets: positions in one bucket's changelog, as one opaque integer that carries the bucket's epoch.

An unclean start begins a new epoch, because changes after the last synced one may be gone and their counts given to
others: a position of the lost tail must not be taken for one of the new changes. The count goes on over epochs, so the
offsets of a bucket that has never crashed are 0, 1, 2, ...
"""

from __future__ import annotations

_COUNT_BITS = 48
_COUNT_MASK = (1 << _COUNT_BITS) - 1


def make_offset(epoch: int, count: int) -> int:
    """The offset of change number `count` of a bucket that is in `epoch`."""
    return epoch << _COUNT_BITS | count


def epoch_of(offset: int) -> int:
    """The epoch in which the change of this offset was, or will be, written."""
    return offset >> _COUNT_BITS


def count_of(offset: int) -> int:
    """How many changes the bucket had before this offset."""
    return offset & _COUNT_MASK
