"""Lists of ascending key ranges and single keys: pure arithmetic on encoded keys."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from scankv.model.keys.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class KeyRanges:
    """Ascending ranges of encoded keys that do not overlap. Immutable, hashable, picklable.

    A single key is a range of one: from the key up to, but not including, the key with a zero byte appended. A list
    never contains an empty range. `len` is the number of ranges, and iteration yields each as a `KeyRange`.

    Attributes:
        starts: The first encoded key of each range; empty bytes if a range begins with the first key of the bucket.
        ends: The encoded key after the last one of each range. None, possible only for the last range: up to the last
            key of the bucket.
    """

    starts: tuple[bytes, ...]
    ends: tuple[bytes | None, ...]

    @classmethod
    def of(cls, *ranges: KeyRange) -> KeyRanges:
        """Makes a list of ascending ranges that do not overlap. Empty ranges are left out."""
        filled = [one for one in ranges if not one.is_empty]
        return cls(tuple(one.start or b"" for one in filled), tuple(one.end for one in filled))

    @classmethod
    def of_keys(cls, keys: Sequence[bytes]) -> KeyRanges:
        """Makes a list of ascending single keys, each once."""
        return cls(tuple(keys), tuple([key + b"\0" for key in keys]))

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[KeyRange]:
        return (KeyRange(start or None, end) for start, end in zip(self.starts, self.ends, strict=True))

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self.starts, key) - 1
        return place >= 0 and _is_below(key, self.ends[place])

    @property
    def span(self) -> KeyRange:
        """The smallest single range that contains all of these keys."""
        return KeyRange(self.starts[0] or None, self.ends[-1]) if self.starts else KeyRange(b"", b"")

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The single keys among the ranges."""
        return tuple([start for start, end in zip(self.starts, self.ends, strict=True) if end == start + b"\0"])

    @cached_property
    def are_keys(self) -> bool:
        """Whether the list is not empty and contains only single keys."""
        # Millions of keys a second, where `_is_key` would be called once for each.
        return bool(self.starts) and self.ends == tuple([start + b"\0" for start in self.starts])

    @property
    def is_one_range(self) -> bool:
        """Whether the list is one range that is not a single key."""
        return len(self.starts) == 1 and not _is_key(self.starts[0], self.ends[0])

    @property
    def is_bounded(self) -> bool:
        """Whether the list begins after the first possible key or ends before the last one."""
        return self.span != KeyRange()

    def at(self, places: Sequence[int]) -> KeyRanges:
        """Returns the ranges at some ascending positions of the list."""
        return KeyRanges(tuple([self.starts[place] for place in places]), tuple([self.ends[place] for place in places]))

    def within(self, key_range: KeyRange) -> KeyRanges:
        """Returns the keys that are also in a range."""
        if key_range.is_empty or not self.starts:
            return NO_KEY_RANGES
        low = key_range.start or b""
        first = max(bisect_right(self.starts, low) - 1, 0)
        after = len(self.starts) if key_range.end is None else bisect_left(self.starts, key_range.end)
        starts, ends = list(self.starts[first:after]), list(self.ends[first:after])
        if starts and not _is_below(low, ends[0]):
            del starts[0], ends[0]
        if starts:
            starts[0] = max(starts[0], low)
            if key_range.end is not None:
                ends[-1] = key_range.end if ends[-1] is None else min(ends[-1], key_range.end)
        return KeyRanges(tuple(starts), tuple(ends))

    def __and__(self, other: KeyRanges) -> KeyRanges:
        """Returns the keys that are in both lists."""
        many, few = (self, other) if len(self) >= len(other) else (other, self)
        starts: list[bytes] = []
        ends: list[bytes | None] = []
        for key_range in few:
            part = many.within(key_range)
            starts += part.starts
            ends += part.ends
        return KeyRanges(tuple(starts), tuple(ends))

    def after(self, key: bytes, *, reverse: bool = False) -> KeyRanges:
        """Returns the rest of the ranges after `key` was read; with `reverse`, in descending order."""
        return self.within(KeyRange().after(key, reverse=reverse))


def _is_key(start: bytes, end: bytes | None) -> bool:
    return end is not None and len(end) == len(start) + 1 and end == start + b"\0"


def _is_below(key: bytes, end: bytes | None) -> bool:
    return end is None or key < end


def shared_length(one: bytes, other: bytes) -> int:
    """Returns the length of the common prefix of two encodings."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)


ALL_KEY_RANGES: Final = KeyRanges((b"",), (None,))
"""A list with one range of all keys."""
NO_KEY_RANGES: Final = KeyRanges((), ())
"""The empty list."""
