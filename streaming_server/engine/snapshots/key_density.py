"""About how many keys lie where in a range, by a bounded number of looks: pure arithmetic, but for the looks.

A look gives a few keys in a row. How close they are together tells how many there are up to the next look, if the rest
is like them. The span with the most keys by that estimate is halved, and looked at in its middle, as often as
allowed. So the estimate is good where keys are even over long spans, such as numbers, times and random ids, and rough
where they are not: parts that are cut by it are less even then, but complete all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

from scankv.model.keys.key_ranges import shared_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.model.keys.key_range import KeyRange

KEYS_A_LOOK: Final = 32

_DIGITS: Final = 12


class Keys(Protocol):
    """Keys to look at."""

    def keys_from(self, start: bytes, count: int) -> list[bytes]:
        """The first keys from a place on, at most so many."""

    def last_below(self, end: bytes | None) -> bytes | None:
        """The last key below a place, or of all for None."""


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys from one place up to, but without, another, and about how many there are.

    Attributes:
        start: The first key.
        end: The place.
        run: The first keys.
        rows: The estimate; exact when there are no other keys than the run.
    """

    start: bytes
    end: bytes
    run: tuple[bytes, ...]
    rows: float

    @classmethod
    def of(cls, run: list[bytes], end: bytes, most: float) -> KeySpan | None:
        """A span that begins with some keys; None where none of them is below its end."""
        run = [key for key in run if key < end]
        if not run:
            return None
        if len(run) < KEYS_A_LOOK:
            return cls(run[0], end, tuple(run), len(run))
        near, whole = _distance(run[0], run[-1], run[0], end), _distance(run[0], end, run[0], end)
        return cls(run[0], end, tuple(run), min(max(len(run) * whole / max(near, 1), len(run)), most))

    @property
    def middle(self) -> bytes | None:
        """A place between its run and its end, None where there is none."""
        if len(self.run) < KEYS_A_LOOK:
            return None
        low, high = self.run[-1] + b"\0", self.end
        same = shared_length(low, high)
        digits = (_number(low, same) + _number(high, same)) // 2
        middle = high[:same] + digits.to_bytes(_DIGITS, "big").rstrip(b"\0")
        return middle if low < middle < high else None


def estimate_spans(keys: Keys, key_range: KeyRange, looks: int, most: float) -> Iterator[list[KeySpan] | None]:
    """Yields None wherever the event loop may take a turn, and in the end the spans of a range, ascending.

    Args:
        keys: The keys.
        key_range: The range.
        looks: How often it may look.
        most: The most keys there can be in all.
    """
    last = keys.last_below(key_range.end)
    if last is None or last < (key_range.start or b""):
        yield []
        return
    first = KeySpan.of(keys.keys_from(key_range.start or b"", KEYS_A_LOOK), last + b"\0", most)
    largest: list[tuple[float, bytes, KeySpan]] = []
    if first is not None:
        heappush(largest, (-first.rows, first.start, first))
    done: list[KeySpan] = []
    while largest and looks > 0:
        stretch = heappop(largest)[2]
        middle = stretch.middle
        if middle is None:
            done.append(stretch)
            continue
        looks -= 1
        above = KeySpan.of(keys.keys_from(middle, KEYS_A_LOOK), stretch.end, most)
        # Up to its last key: what is empty between two groups of keys must not count.
        last = keys.last_below(middle)
        below = KeySpan.of(list(stretch.run), middle if last is None else min(last + b"\0", middle), most)
        for half in (below, above):
            if half is not None:
                heappush(largest, (-half.rows, half.start, half))
        yield None
    yield sorted([*done, *(stretch for _, _, stretch in largest)], key=lambda stretch: stretch.start)


def _distance(low: bytes, high: bytes, first: bytes, end: bytes) -> int:
    """How far apart two keys are, counted in digits after what the ends of a span have in common."""
    same = shared_length(first, end)
    return _number(high, same) - _number(low, same)


def _number(key: bytes, same: int) -> int:
    return int.from_bytes(key[same : same + _DIGITS].ljust(_DIGITS, b"\0"))
