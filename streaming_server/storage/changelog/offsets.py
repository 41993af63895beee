"""Log offsets: positions in the changelog of one bucket, as opaque integers that carry the epoch of the bucket.

An unclean start begins a new epoch. Changes after the last sync may be lost then, and later changes get their counts; a
position in the lost tail must not be mistaken for one of the later changes. The count continues over epochs, so the
offsets of a bucket that has never crashed are 0, 1, 2, ...
"""

from __future__ import annotations

_COUNT_BITS = 48
_COUNT_MASK = (1 << _COUNT_BITS) - 1


def make_offset(epoch: int, count: int) -> int:
    """Returns the offset of change number `count` of a bucket that is in `epoch`."""
    return epoch << _COUNT_BITS | count


def epoch_of(offset: int) -> int:
    """Returns the epoch in which the change of this offset was, or will be, written."""
    return offset >> _COUNT_BITS


def count_of(offset: int) -> int:
    """Returns the number of changes before this offset."""
    return offset & _COUNT_MASK


def row_key(offset: int) -> bytes:
    """Returns the key of the row at this offset in a table without a primary key, whose rows are its changes."""
    return offset.to_bytes(8, "big")
