"""Estimates how keys are distributed over a range, with a bounded number of probes. Pure apart from the probes.

A probe reads a few consecutive keys. Their spacing gives an estimate of the number of keys up to the next probe,
as if the keys in between were spaced alike. The span with the largest estimate is halved and probed in its middle, as
often as allowed.
The estimate is good where keys are spread evenly over long spans, as numbers, times and random ids are. Elsewhere it
is rough: splits then differ more in size, but still cover every key.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

from scankv.model.keys.key_ranges import shared_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.model.keys.key_range import KeyRange

KEYS_PER_PROBE: Final = 32

_DIGITS: Final = 12


class Keys(Protocol):
    """Keys that can be probed."""

    def keys_from(self, start: bytes, count: int) -> list[bytes]:
        """Returns the first keys at or after `start`, at most `count`."""

    def last_below(self, end: bytes | None) -> bytes | None:
        """Returns the last key below `end` (None: of all), or an upper bound of it. None: no such key exists."""


@dataclass(frozen=True, slots=True)
class KeySpan:
    """The keys from `start` up to, but not including, `end`, with an estimate of their number.

    Attributes:
        start: The first key.
        end: The exclusive upper bound.
        run: The first keys, which a probe has read.
        rows: The estimate. Exact when the span has no keys besides the run.
    """

    start: bytes
    end: bytes
    run: tuple[bytes, ...]
    rows: float

    @classmethod
    def of(cls, run: list[bytes], end: bytes, most: float) -> KeySpan | None:
        """Returns the span that begins with a run of keys. None: no key of the run is below `end`."""
        run = [key for key in run if key < end]
        if not run:
            return None
        if len(run) < KEYS_PER_PROBE:
            return cls(run[0], end, tuple(run), len(run))
        near, whole = _distance(run[0], run[-1], run[0], end), _distance(run[0], end, run[0], end)
        return cls(run[0], end, tuple(run), min(max(len(run) * whole / max(near, 1), len(run)), most))

    @property
    def middle(self) -> bytes | None:
        """A key between the run and the end. None where none exists."""
        if len(self.run) < KEYS_PER_PROBE:
            return None
        low, high = self.run[-1] + b"\0", self.end
        same = shared_length(low, high)
        digits = (_number(low, same) + _number(high, same)) // 2
        middle = high[:same] + digits.to_bytes(_DIGITS, "big").rstrip(b"\0")
        return middle if low < middle < high else None


def estimate_spans(keys: Keys, key_range: KeyRange, probes: int, most: float) -> Iterator[list[KeySpan] | None]:
    """Yields None wherever the event loop may take a turn, and finally the spans of a range, ascending.

    Args:
        keys: The keys.
        key_range: The range.
        probes: The largest number of probes.
        most: An upper bound of the number of keys.
    """
    last = keys.last_below(key_range.end)
    if last is None or last < (key_range.start or b""):
        yield []
        return
    first = KeySpan.of(keys.keys_from(key_range.start or b"", KEYS_PER_PROBE), last + b"\0", most)
    largest: list[tuple[float, bytes, KeySpan]] = []
    if first is not None:
        heappush(largest, (-first.rows, first.start, first))
    done: list[KeySpan] = []
    while largest and probes > 0:
        span = heappop(largest)[2]
        middle = span.middle
        if middle is None:
            done.append(span)
            continue
        probes -= 1
        above = KeySpan.of(keys.keys_from(middle, KEYS_PER_PROBE), span.end, most)
        # Ends at the last existing key, so that an empty gap between two groups of keys does not count.
        last = keys.last_below(middle)
        below = KeySpan.of(list(span.run), middle if last is None else min(last + b"\0", middle), most)
        for half in (below, above):
            if half is not None:
                heappush(largest, (-half.rows, half.start, half))
        yield None
    yield sorted([*done, *(span for _, _, span in largest)], key=lambda span: span.start)


def _distance(low: bytes, high: bytes, first: bytes, end: bytes) -> int:
    """Returns the distance of two keys, in digits after the common prefix of the span's ends."""
    same = shared_length(first, end)
    return _number(high, same) - _number(low, same)


def _number(key: bytes, same: int) -> int:
    return int.from_bytes(key[same : same + _DIGITS].ljust(_DIGITS, b"\0"))
