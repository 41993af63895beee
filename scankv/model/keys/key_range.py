"""Ranges of encoded keys: pure arithmetic on bytes in the order of `key_codec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys from `start` up to, but not including, `end`. Immutable, hashable, picklable.

    Attributes:
        start: The first encoded key. None: from the first key of the bucket.
        end: The encoded key after the last one. None: to the last key of the bucket.
    """

    start: bytes | None = None
    end: bytes | None = None

    @classmethod
    def under(cls, prefix: bytes) -> KeyRange:
        """Returns the range of the keys that begin with these bytes."""
        return cls(prefix or None, _next_prefix(prefix))

    @property
    def is_empty(self) -> bool:
        """Whether the range cannot contain any key."""
        return self.end is not None and (self.start or b"") >= self.end

    def __contains__(self, key: bytes) -> bool:
        return (self.start is None or key >= self.start) and (self.end is None or key < self.end)

    def after(self, key: bytes, *, reverse: bool = False) -> KeyRange:
        """Returns the rest of the range after `key` was read; with `reverse`, in descending order."""
        if reverse:
            return KeyRange(self.start, key if self.end is None else min(key, self.end))
        # The next possible key: no key sorts between a key and the same key with a zero byte appended.
        successor = key + b"\0"
        return KeyRange(successor if self.start is None else max(successor, self.start), self.end)

    def __and__(self, other: KeyRange) -> KeyRange:
        """Returns the range of the keys in both ranges."""
        starts = [start for start in (self.start, other.start) if start is not None]
        ends = [end for end in (self.end, other.end) if end is not None]
        return KeyRange(max(starts, default=None), min(ends, default=None))


def _next_prefix(prefix: bytes) -> bytes | None:
    """Returns the least bytes greater than all bytes with this prefix, or None if no such bytes exist."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


NO_KEYS: Final = KeyRange(b"", b"")
"""The range without keys."""
